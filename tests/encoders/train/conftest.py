from __future__ import annotations

import json
from pathlib import Path

import pytest

WORDS = [f"w{number}" for number in range(60)]


def write_model(folder: Path, *, pooling: str = "mean_tokens") -> Path:
    """Write a small random BERT sentence encoder in sentence-transformers' layout."""
    import tokenizers
    import torch
    from safetensors.torch import save_file
    from tokenizers import normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel

    folder.mkdir(exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    )
    torch.manual_seed(0)
    settings = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    model = BertModel(settings, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    settings.architectures = ["BertModel"]
    settings.save_pretrained(folder)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True}
    flags.setdefault("pooling_mode_mean_tokens", False)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def write_clip(folder: Path, name: str = "tiny-clip", **more) -> Path:
    """Write a small random CLIP: its architecture as JSON, its weights by open_clip's names."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    settings = {
        "embed_dim": 32,
        "vision_cfg": {
            "image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16,
        },
        "text_cfg": {
            "context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2,
        },
        **more,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(settings))
    open_clip.add_model_config(folder / f"{name}.json")
    torch.manual_seed(0)
    state = open_clip.create_model(name).state_dict()
    save_file({n: t.contiguous() for n, t in state.items()}, folder / f"{name}.safetensors")
    return folder


COLOURS = {
    "red": (220, 0, 0), "green": (0, 180, 0), "blue": (0, 0, 220), "white": (250, 250, 250),
    "black": (5, 5, 5), "yellow": (230, 220, 0), "violet": (150, 0, 200), "grey": (120, 120, 120),
}  # fmt: skip


def write_squares(folder: Path) -> Path:
    """Write 64 pictures of two coloured squares side by side, with a caption each."""
    from PIL import Image

    (folder / "images").mkdir()
    rows = []
    for number in range(64):
        left, right = list(COLOURS)[number // 8], list(COLOURS)[number % 8]
        picture = Image.new("RGB", (32, 32), COLOURS[left])
        picture.paste(COLOURS[right], (16, 0, 32, 32))
        picture.save(folder / "images" / f"{number}.png")
        rows.append({"image": f"{number}.png", "captions": [f"{left} left of {right}"]})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="session")
def make_clip():
    return write_clip


@pytest.fixture(scope="session")
def clip(tmp_path_factory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    return write_squares(tmp_path_factory.mktemp("squares"))


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def cls_model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny-cls", pooling="cls_token")
