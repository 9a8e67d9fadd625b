from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from foveate.encoders.minilm import MiniLM
from foveate.pipeline.errors import ModelError
from foveate.pipeline.testing import cosines

WORDS = [f"w{number}" for number in range(200)]


def write_model(folder: Path, *, pooling: str = "mean_tokens", prefix: str = "", **changes) -> None:
    """Write a small random BERT sentence encoder in sentence-transformers' layout."""
    import tokenizers
    import torch
    from safetensors.torch import save_file
    from tokenizers import normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel

    folder.mkdir(exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "vocab_size": len(pieces),
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        **changes,
    }
    torch.manual_seed(0)
    model = BertModel(BertConfig(**settings), add_pooling_layer=False)
    with torch.no_grad():  # the library starts biases at zero and norms at one
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.config.save_pretrained(folder)
    state = {prefix + name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {"pooling_mode_mean_tokens": False, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))


def encode_plainly(folder: Path, texts: list[str], *, pooling: str = "mean_tokens") -> np.ndarray:
    import torch
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    state = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("bert."): part for name, part in state.items()})
    rows = []
    for text in texts:
        words = [4 + WORDS.index(word) for word in text.split()]
        ids = [2, *words[:62], 3]
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        rows.append(states[0] if pooling == "cls_token" else states.mean(0))
    return torch.nn.functional.normalize(torch.stack(rows), dim=1).numpy()


@pytest.fixture
def texts() -> list[str]:
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, n)) for n in (0, 1, 5, 5, 5, 20, 62, 63, 90, 3)]


@pytest.mark.parametrize(
    ("pooling", "prefix", "changes"),
    [
        ("mean_tokens", "", {}),
        ("cls_token", "bert.", {}),
        ("mean_tokens", "", {"hidden_act": "gelu_new", "num_attention_heads": 3}),
    ],
)
def test_the_folded_forward_equals_the_plain_one(tmp_path, texts, pooling, prefix, changes) -> None:
    write_model(tmp_path, pooling=pooling, prefix=prefix, **changes)
    want = encode_plainly(tmp_path, texts, pooling=pooling)
    for batch_tokens in (16, 512):
        encoder = MiniLM(tmp_path, dtype="fp32", batch_tokens=batch_tokens)
        got = encoder.encode(texts)
        assert np.sqrt(((got - want) ** 2).mean() / (want**2).mean()) < 1e-5
    half = MiniLM(tmp_path, dtype="bf16").encode(texts)
    assert cosines(half, want).min() > 0.999


def test_pooling_and_weights_stand_in_the_fingerprint(tmp_path) -> None:
    write_model(tmp_path / "a")
    write_model(tmp_path / "b", pooling="cls_token")
    write_model(tmp_path / "c", num_hidden_layers=2)
    towers = {MiniLM(tmp_path / letter, name="same").tower for letter in "abc"}
    assert len(towers) == 3
    assert MiniLM(tmp_path / "a", name="same").tower in towers
    assert MiniLM(tmp_path / "a").space == "a/48"


def test_weights_that_are_cut_short_or_incomplete(tmp_path) -> None:
    write_model(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot read the weights"):
        MiniLM(tmp_path).encode(["w1"])
    write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9}))
    with pytest.raises(ModelError, match="no tensor"):
        MiniLM(tmp_path).encode(["w1"])


def test_a_dense_module_is_not_ignored(tmp_path) -> None:
    write_model(tmp_path)
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Pooling", "Dense")]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"Dense.*sentence-transformers"):
        MiniLM(tmp_path).encode(["w1"])
