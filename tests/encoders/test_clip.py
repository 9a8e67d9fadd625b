from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.encoders.clip import OpenCLIP
from foveate.pipeline.errors import ConfigError, ModelError, ShapeError
from foveate.pipeline.testing import TEXTS, EncoderContract, cosines

SETTINGS = {
    "embed_dim": 32,
    "vision_cfg": {
        "image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16,
    },
    "text_cfg": {
        "context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2,
    },
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def picture(seed: int, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small architecture of our own with random weights, saved by the library's names."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    place = tmp_path_factory.mktemp("clip")
    (place / "tiny-clip.json").write_text(json.dumps(SETTINGS))
    open_clip.add_model_config(place / "tiny-clip.json")
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = open_clip.create_model("tiny-clip")
        state = {name: part.contiguous() for name, part in model.state_dict().items()}
        save_file(state, place / f"{seed}.safetensors")
    torch.save(state, place / "1.pt")
    return place


def load(folder: Path, weights: str = "0.safetensors", **options) -> OpenCLIP:
    options = {"dtype": "fp32", **options}
    return OpenCLIP(str(folder / "tiny-clip.json"), weights=folder / weights, **options)


@pytest.fixture(scope="module")
def shared(folder) -> OpenCLIP:
    return load(folder)


class TestOpenCLIP(EncoderContract):
    @pytest.fixture
    def encoder(self, shared) -> OpenCLIP:
        return shared

    @pytest.fixture
    def other(self, folder) -> OpenCLIP:
        return load(folder, "1.safetensors")

    @pytest.fixture
    def inputs(self) -> list[object]:
        return [
            *TEXTS[:4], picture(0), picture(1, (7, 90)), "a dog", picture(2, (1, 1)),
            picture(3, (50, 50), "L"), TEXTS[8], picture(4, (33, 32), "P"),
        ]  # fmt: skip

    @pytest.fixture
    def queries(self, inputs) -> list[object]:
        return inputs


def test_vectors_equal_the_librarys(folder) -> None:
    import open_clip
    import torch

    model, _, transform = open_clip.create_model_and_transforms(
        "tiny-clip", pretrained=str(folder / "0.safetensors")
    )
    model.eval()
    texts, pictures = ["a dog", "Two  CATS, café!", ""], [picture(5), picture(6, (64, 20))]
    with torch.no_grad():
        ids = open_clip.get_tokenizer("tiny-clip")(texts)
        want = [
            model.encode_text(ids, normalize=True),
            model.encode_image(torch.stack([transform(p) for p in pictures]), normalize=True),
        ]
    got = load(folder).encode([*texts, *pictures])
    assert cosines(got, torch.cat(want).numpy()).min() > 0.99999


def test_pickled_tensors_load_as_weights_only(folder) -> None:
    ours, theirs = load(folder, "1.pt"), load(folder, "1.safetensors")
    assert cosines(ours.encode(["a dog"]), theirs.encode(["a dog"])).min() > 0.99999
    assert ours.tower == theirs.tower


def test_bf16_stays_close(folder) -> None:
    inputs = ["a dog", picture(7)]
    assert cosines(load(folder, dtype="bf16").encode(inputs), load(folder).encode(inputs)).min() > (
        0.999
    )


def test_a_long_caption_is_read_to_its_end(folder) -> None:
    encoder = load(folder)
    caption = "a red boat on a calm lake at dawn " * 20
    ends = [caption + "with a dog", caption + "under seven bright lanterns"]
    vectors = encoder.encode(ends)
    assert cosines(vectors[:1], vectors[1:]).max() < 0.99999


@pytest.mark.parametrize("text", ["Hello, World's end", "naïve café 日本語", "İstanbul 🧑‍🚀 123"])
def test_spans_count_the_models_tokens(folder, text) -> None:
    encoder = load(folder)
    tokenizer = encoder._loaded[2]
    spans = encoder.token_spans(text)
    assert abs(len(spans) - len(tokenizer.encode(text))) <= (3 if "İ" in text else 0)
    assert "".join(text[a:b] for a, b in spans[:1].tolist())


def test_what_cannot_be_loaded_is_one_line(folder, tmp_path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="needs weights"):
        OpenCLIP("ViT-B-32")
    with pytest.raises(ModelError, match="no weights at"):
        load(folder, "none.safetensors").encode(["x"])
    with pytest.raises(ModelError, match="knows no architecture"):
        OpenCLIP("ViT-Z-99", weights=folder / "0.safetensors").encode(["x"])
    (tmp_path / "bad.pt").write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(ModelError, match=r"^cannot load [^\n]*$"):
        OpenCLIP(str(folder / "tiny-clip.json"), weights=tmp_path / "bad.pt").encode(["x"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"^cannot load [^\n]*hub[^\n]*$"):
        OpenCLIP("ViT-S-32-alt", weights="hub:absent").encode(["x"])


def test_bytes_are_no_picture(folder) -> None:
    with pytest.raises(ShapeError, match="expected texts or pictures"):
        load(folder).encode([b"x"])  # type: ignore[list-item]
