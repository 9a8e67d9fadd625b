from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import foveate
from foveate.encoders.minilm import MiniLM
from foveate.encoders.train.text_tower import TextTower
from foveate.pipeline import config as configuration
from foveate.pipeline.reencode import reencode


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    place = Path(__file__).parents[1] / "encoders" / "train" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_models", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def place(model, tmp_path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    for i in range(12):
        (docs / f"{i}.txt").write_text(f"w{i} w{i + 1} w{i + 2}")
    config = configuration.load(
        overrides={
            "encoders.text.path": str(model),
            "encoders.text.dtype": "fp32",
            "encoders.image.use": "none",
        }
    )
    with foveate.open(tmp_path / "a.fov", create=True, config=config) as engine:
        engine.add(docs)
        engine.remove(docs / "3.txt")
    return tmp_path / "a.fov"


def changed(model: Path, folder: Path, **options) -> Path:
    import torch

    tower = TextTower(model, dtype="fp32", **options)
    with torch.no_grad():
        for tensor in tower.parameters().values():
            tensor.add_(
                0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
            )
    tower.save(folder, {"use": "minilm"})
    return folder


def held(place: Path) -> tuple[list[str], np.ndarray, str]:
    with foveate.open(place) as engine:
        ids = sorted(
            hit.passage.id for hit in engine.search("w1", k=50, mode="dense", collapse=False)
        )
        texts = [p.text for p in engine.index.passages(ids)]
        return texts, engine.index.vectors(ids, "text"), engine.encoders["text"].tower


def test_every_living_passage_gets_the_new_vector(model, place, tmp_path) -> None:
    out = changed(model, tmp_path / "out")
    assert reencode(place, out) == 11
    texts, vectors, tower = held(place)
    encoder = MiniLM(out)
    assert tower == encoder.tower
    assert len(texts) == 11
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-5)
    with foveate.open(place) as engine:
        hits = engine.search("w5 w6 w7", mode="words")
        assert hits[0].passage.text == "w5 w6 w7"
        (tmp_path / "docs" / "new.txt").write_text("w40 w41")
        assert engine.add(tmp_path / "docs").n_encoded == 2  # the new one and the removed one


def test_an_encoder_of_queries_alone_encodes_nothing(model, place, tmp_path) -> None:
    out = changed(model, tmp_path / "out", sides="query")
    before = held(place)
    assert reencode(place, out) == 0
    after = held(place)
    assert after[0] == before[0]
    np.testing.assert_array_equal(after[1], before[1])
    with foveate.open(place) as engine:
        asked = engine.encoders["text"].encode_queries(["w1 w2"])
    assert np.abs(asked - MiniLM(model).encode_queries(["w1 w2"])).max() > 1e-3


def test_a_failure_leaves_the_index_as_it_was(model, place, tmp_path, monkeypatch) -> None:
    out = changed(model, tmp_path / "out")
    before = held(place)
    monkeypatch.setattr(MiniLM, "encode", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reencode(place, out)
    monkeypatch.undo()
    after = held(place)
    assert after[0] == before[0]
    assert after[2] == before[2]
    np.testing.assert_array_equal(after[1], before[1])
