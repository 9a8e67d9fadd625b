import numpy as np
import pytest
import torch

from foveate.encoders.late import LateMiniLM
from foveate.encoders.minilm import MiniLM
from foveate.encoders.rotation import Rotation, learn, vocabulary_texts
from foveate.pipeline.errors import ConfigError, ModelError, ShapeError
from foveate.pipeline.testing import TEXTS

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def minilm():
    return MiniLM(dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def plain(minilm):
    return minilm.late(rotation="none", skip="nothing")


def states(minilm, text):
    """The library's own forward pass: (t + 2, 384), special tokens at both ends."""
    transformers = pytest.importorskip("transformers")
    folder = minilm._folder
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    ids = [minilm._pieces.start, *minilm._pieces.ids([text])[0], minilm._pieces.end]
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


def test_vectors_are_the_models_own_token_states(minilm, plain):
    text = "The wing's aspect ratio is limited by its weight."
    want = states(minilm, text)[1:-1]
    want = want / np.linalg.norm(want, axis=1, keepdims=True)
    got = plain.encode([text])
    assert got.offsets.tolist() == [0, len(want)]
    np.testing.assert_allclose(got.vectors, want, atol=2e-5)


def test_items_are_ragged_and_do_not_depend_on_each_other(plain):
    together = plain.encode(TEXTS)
    assert len(together) == len(TEXTS)
    assert together.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together.vectors, axis=1), 1, atol=1e-4)
    for i, text in enumerate(TEXTS):
        alone = plain.encode([text])
        assert len(alone[0]) == len(together[i])
        np.testing.assert_allclose(alone[0], together[i], atol=1e-4)
    assert len(together[TEXTS.index("")]) == 0
    assert len(plain.encode([])) == 0


def test_a_long_text_is_taken_whole(plain):
    n_words = 700
    text = " ".join(["word"] * n_words)
    assert len(plain.encode([text])[0]) == n_words
    assert len(plain.encode_queries([text])[0]) == n_words


def test_spans_name_what_each_vector_stands_for(minilm):
    late = minilm.late(rotation="none")
    text = "Wings, said the engineer (twice), bend."
    spans = late.spans(text)
    assert len(spans) == len(late.encode([text])[0])
    words = [text[a:b] for a, b in spans.tolist()]
    assert words == ["Wings", "said", "the", "engineer", "twice", "bend"]
    assert len(late.query_spans(text)) == len(late.encode_queries([text])[0])


def test_rare_words_of_a_query_weigh_more_and_signs_nothing(minilm):
    late = minilm.late()
    asked = late.encode_queries(["the algorithm, of cells?", "?!"])
    weights = np.linalg.norm(asked.vectors, axis=1)
    assert asked.offsets.tolist() == [0, 4, 4]
    assert weights.argsort()[::-1].tolist()[:2] == [1, 3]
    assert (weights > 0).all()
    assert weights.max() <= 1
    even = minilm.late(weights="even").encode_queries(["the algorithm, of cells?"])
    np.testing.assert_allclose(np.linalg.norm(even.vectors, axis=1), 1, atol=1e-4)


def test_the_rotation_that_ships_is_of_this_model(minilm):
    late = minilm.late()
    found = late.encode(["a dog on a beach", "share prices fell"])
    assert found.vectors.shape[1] == late.dim == 256
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-4)
    # one bit a dimension keeps the neighbours
    signs = np.sign(found.vectors) / 16
    near = (found.vectors @ found.vectors.T)[np.triu_indices(len(signs), 1)]
    kept = (signs @ signs.T)[np.triu_indices(len(signs), 1)]
    assert np.corrcoef(near, kept)[0, 1] > 0.95


def test_texts_from_a_vocabulary_are_always_the_same():
    words = ["[CLS]", "!", *(f"w{c}".replace("w", "") * 3 for c in "abcdefgh"), "##ing"]
    first = vocabulary_texts(words, n=3, length=5)
    assert first == vocabulary_texts(words, n=3, length=5)
    assert len(first) == 3
    assert all(len(text.split()) == 5 for text in first)
    assert "##ing" not in " ".join(first)


def test_a_rotation_keeps_cosines_of_centred_states(minilm, plain):
    some = plain.encode([t for t in TEXTS if t.strip()] * 2).vectors
    turn = learn(some)
    assert turn.dim == 384
    np.testing.assert_allclose(turn.matrix.T @ turn.matrix, np.eye(384), atol=1e-4)
    whole = turn.turn(some)
    np.testing.assert_allclose(
        whole @ whole.T, (some - turn.centre) @ (some - turn.centre).T, atol=1e-3
    )
    spread = whole.var(0)
    assert (np.diff(spread) <= 1e-5).all()
    assert turn.keep(32).dim == 32
    with pytest.raises(ConfigError, match=r"1\.\.384"):
        turn.keep(385)


def test_a_rotation_is_read_from_a_file_and_stands_in_the_tower(minilm, plain, tmp_path):
    turn = learn(plain.encode(TEXTS).vectors)
    with pytest.raises(ConfigError, match="needs a rotation"):
        minilm.late(rotation="none", dim=8).encode(["x"])
    turn.write(tmp_path / "r.safetensors", {"corpus": "a test"})
    late = minilm.late(rotation=tmp_path / "r.safetensors", dim=32)
    found = late.encode(["a dog on a beach"])
    assert found.vectors.shape == (5, 32)
    assert late.dim == 32
    assert late.space == "all-MiniLM-L6-v2-tokens/32"
    assert late.tower != plain.tower
    assert Rotation.read(tmp_path / "r.safetensors").keep(32).digest in late.tower
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="bad"):
        minilm.late(rotation=tmp_path / "bad.safetensors").encode(["x"])


def test_what_cannot_be_is_said(minilm):
    with pytest.raises(ConfigError, match="punctuation"):
        LateMiniLM(skip="verbs")
    with pytest.raises(ConfigError, match="rank"):
        LateMiniLM(weights="heavy")
    with pytest.raises(ConfigError, match="onebit"):
        LateMiniLM(code="zip")
    with pytest.raises(ShapeError, match="text"):
        minilm.late(rotation="none").encode([3])
