"""Late interaction from end to end, with a token encoder that needs no weights."""

from __future__ import annotations

import re
import zlib

import numpy as np
import pytest

import foveate
from foveate.pipeline import config
from foveate.pipeline.errors import QueryError, SpaceMismatch
from foveate.pipeline.testing import HashedWords
from foveate.pipeline.types import MultiVectors


class WordVectors:
    """One random vector a word, the same word always the same. n_encoded counts texts."""

    reads = frozenset({"text"})
    window_tokens = None
    dim = 128
    space = "words-tokens/128"

    def __init__(self, code="int8"):
        self.code = code
        self.tower = "words-tokens@1"
        self.n_encoded = 0

    def encode(self, inputs, *, progress=None):
        self.n_encoded += len(inputs)
        return self.encode_queries(inputs)

    def encode_queries(self, queries):
        parts = [[self.vector(w) for w in re.findall(r"\w+", q.casefold())] for q in queries]
        flat = np.array([v for p in parts for v in p], np.float32).reshape(-1, self.dim)
        return MultiVectors(flat, np.cumsum([0, *map(len, parts)]))

    def vector(self, word):
        x = np.random.default_rng(zlib.crc32(word.encode())).standard_normal(self.dim)
        return x / np.linalg.norm(x)

    def spans(self, text):
        found = [m.span() for m in re.finditer(r"\w+", text)]
        return np.array(found, np.int32).reshape(-1, 2)

    query_spans = spans


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("The pump moves water through the cooling loop.\n")
    (folder / "b.txt").write_text("Bread rises because yeast makes gas.\n")
    (folder / "c.txt").write_text("A loop of string, a pump of hands.\n")
    return folder


@pytest.fixture(params=["int8", "onebit"])
def encoders(request):
    return {"text": HashedWords(), "tokens": WordVectors(request.param)}


@pytest.fixture
def engine(tmp_path, notes, encoders):
    with foveate.open(tmp_path / "x.fov", create=True, encoders=encoders) as engine:
        engine.add(notes)
        yield engine


def names(hits):
    return [h.passage.source.name for h in hits]


def test_mode_late_ranks_by_tokens(engine):
    hits = engine.search("cooling pump", k=3, mode="late")
    assert names(hits)[0] == "a.txt"
    # signs give 2 / pi of a cosine
    least = 0.98 if engine.encoders["tokens"].code == "int8" else 0.55
    assert least < hits[0].scores["late"] < 1.02
    assert set(hits[0].scores) == {"late"}
    assert names(engine.search("loop", k=1, mode="late", where="name = 'c.txt'")) == ["c.txt"]


def test_the_reranker_reads_what_the_index_keeps(engine, encoders):
    before = encoders["tokens"].n_encoded
    hits = engine.search("yeast gas", k=3, rerank="late")
    assert encoders["tokens"].n_encoded == before
    assert names(hits)[0] == "b.txt"
    # signs give 2 / pi of a cosine
    least = 0.98 if engine.encoders["tokens"].code == "int8" else 0.55
    assert least < hits[0].scores["late"] < 1.02


def test_what_is_unchanged_is_not_encoded_again(engine, notes, encoders):
    assert encoders["tokens"].n_encoded == 3
    (notes / "b.txt").write_text("Yeast makes bread rise, and beer.\n")
    (notes / "d.txt").write_bytes((notes / "a.txt").read_bytes())
    engine.add(notes)
    (notes / "e.jsonl").write_text(
        '{"text": "The pump moves water through the cooling loop."}\n{"text": "Rust never sleeps"}'
    )
    engine.add(notes)
    assert encoders["tokens"].n_encoded == 5
    engine.remove(notes / "e.jsonl")
    assert names(engine.search("beer", k=1, mode="late")) == ["b.txt"]
    engine.remove(notes / "b.txt")
    assert "b.txt" not in names(engine.search("beer", k=9, mode="late"))
    engine.compact()
    assert engine.check()["ok"]
    assert names(engine.search("cooling pump", k=1, mode="late")) == ["a.txt"]


def test_an_index_without_tokens_says_what_to_do(tmp_path, notes):
    with foveate.open(tmp_path / "y.fov", create=True, encoders={"text": HashedWords()}) as engine:
        engine.add(notes)
        with pytest.raises(SpaceMismatch, match="late-minilm"):
            engine.search("pump", mode="late")
        with pytest.raises(QueryError, match="needs some words"):
            engine.search(image=_picture(tmp_path), mode="late")


def test_another_token_encoder_is_refused(tmp_path, engine, encoders):
    other = WordVectors()
    other.tower = "words-tokens@2"
    again = foveate.open(tmp_path / "x.fov", encoders={**encoders, "tokens": other})
    with pytest.raises(SpaceMismatch, match="words-tokens@1"):
        again.search("pump", mode="late")


@pytest.mark.models
def test_the_configuration_names_it(tmp_path, notes):
    wanted = {
        "encoders.image.use": "none",
        "encoders.tokens.use": "late-minilm",
        "encoders.tokens.code": "int8",
    }
    settings = config.load(overrides=wanted)
    with foveate.open(tmp_path / "z.fov", create=True, config=settings) as engine:
        engine.add(notes)
        assert names(engine.search("what makes dough go up", k=1, mode="late")) == ["b.txt"]
        assert engine.status()["towers"]["tokens"]["kind"] == "int8"
    with foveate.open(tmp_path / "z.fov") as engine:
        assert names(engine.search("what makes dough go up", k=1, mode="late")) == ["b.txt"]
    asked = config.load(overrides={"encoders.tokens.use": "multi-vector"})
    with pytest.raises(SpaceMismatch, match="tokens encoder"):
        foveate.open(tmp_path / "z.fov", config=asked)


def _picture(folder):
    from PIL import Image

    Image.new("RGB", (8, 8)).save(folder / "p.png")
    return folder / "p.png"
