"""A server on a small index, with encoders that need no weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image, ImageDraw

import foveate
from foveate.pipeline import config
from foveate.pipeline.testing import HashedWords

for needed in ("fastapi", "uvicorn", "mcp", "prometheus_client"):
    if importlib.util.find_spec(needed) is None:
        collect_ignore_glob = ["test_*.py"]

TEXTS = {
    "lemons.md": "# Lemons\n\nLemons keep four weeks in the refrigerator. A tree wants sun.\n",
    "wing.txt": "A wing of high aspect ratio bends under load. Weight limits the aspect ratio.\n",
    "loop.txt": "The cooling loop carries water past the reactor. Two pumps drive the loop.\n",
    "stations.csv": "place,note,year\nRidge,Deep snow lay,2019\nValley,Hail broke glass,2021\n",
}
COLOURS = {"red": (214, 40, 40), "green": (46, 160, 67), "blue": (38, 92, 214)}


class Colours:
    """A picture encoder without weights: the mean colour of nine cells; reads colour words too."""

    reads = frozenset({"image", "text"})
    window_tokens = None
    dim = 27
    space = "colours/27"
    tower = "colours/27|mean"

    def encode(self, inputs, *, progress=None):
        if progress is not None:
            progress(len(inputs))
        return self.encode_queries(inputs)

    def encode_queries(self, queries):
        rows = [self._words(q) if isinstance(q, str) else self._picture(q) for q in queries]
        vectors = np.asarray(rows, dtype=np.float32).reshape(-1, self.dim)
        return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def token_spans(self, text):
        return HashedWords().token_spans(text)

    @staticmethod
    def _picture(image):
        small = image.convert("RGB").resize((3, 3))
        return np.asarray(small, dtype=np.float32).ravel() / 255 + 1e-3

    @staticmethod
    def _words(text):
        named = [colour for word, colour in COLOURS.items() if word in text.casefold()]
        return np.tile(np.mean(named or [(128, 128, 128)], axis=0) / 255 + 1e-3, 9)


def paint(path: Path, colour: tuple[int, int, int]) -> Path:
    image = Image.new("RGB", (320, 240), (245, 245, 240))
    ImageDraw.Draw(image).ellipse((10, 10, 310, 230), fill=colour)
    image.save(path)
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder of four texts and three pictures."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, colour in COLOURS.items():
        paint(folder / f"{name}.png", colour)
    return folder


def make_engine(place: Path, corpus: Path | None) -> foveate.Engine:
    encoders = {"text": HashedWords(), "image": Colours()}
    settings = config.load(overrides={"ingest.ocr": "never"})
    engine = foveate.open(place, create=True, config=settings, encoders=encoders)
    if corpus is not None:
        engine.add(corpus)
    return engine


@pytest.fixture(scope="session")
def shared(tmp_path_factory, corpus):
    """A server that only tests which change nothing may use."""
    from foveate.pipeline.serve.options import ServeOptions
    from foveate.pipeline.serve.run import Listener

    engine = make_engine(tmp_path_factory.mktemp("shared") / "ix.fov", corpus)
    with engine, Listener(engine, ServeOptions(port=0)) as listener:
        yield listener


@pytest.fixture
def client(shared):
    with httpx.Client(base_url=shared.url, timeout=30) as client:
        yield client


@pytest.fixture
def start(tmp_path, corpus):
    """Start a server of one's own: start(token=..., **options) returns a listener."""
    from contextlib import ExitStack

    from foveate.pipeline.serve.options import ServeOptions
    from foveate.pipeline.serve.run import Listener

    with ExitStack() as stack:

        def begin(*, token=None, files=True, engine=None, **options):
            if engine is None:
                engine = stack.enter_context(
                    make_engine(tmp_path / "own.fov", corpus if files else None)
                )
            chosen = ServeOptions(**{"port": 0, **options})
            return stack.enter_context(Listener(engine, chosen, token=token))

        yield begin
