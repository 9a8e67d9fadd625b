"""The demo: a packaged folder of small documents and pictures, and what to ask of it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

QUERIES = (
    ("how long do lemons keep", ()),
    ("a hot air balloon", ("--modality", "image")),
)
QUESTION = "At what temperature does water boil on a mountain 3000 metres high?"


def steps(folder: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (the command as a person types it, its arguments) of each step.

    folder: where the index is made and kept; None takes a temporary one that goes at the end.
    """
    if folder is None:
        place = Path(tempfile.mkdtemp(prefix="foveate-demo-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    else:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
    index = ["--index", str(place / "demo.fov")]
    sample = str(resources.files("foveate.pipeline").joinpath("sample"))
    yield "index sample/", ["index", sample, *index]
    for query, options in QUERIES:
        shown = " ".join(["search", f'"{query}"', *options, "-k 3"])
        yield shown, ["search", query, *options, "-k", "3", *index]
    yield f'ask "{QUESTION}"', ["ask", QUESTION, *index]
