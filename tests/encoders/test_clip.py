from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.encoders.clip import OpenCLIP, _boxes
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


POOLS = {"test_vit3": "map", "test_vit": "token"}


def timm_tower(place, trunk: str) -> tuple[OpenCLIP, object]:
    """A SigLIP-like model: a timm trunk, its own pooling, a bias beside the scale."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    vision = {
        "timm_model_name": trunk,
        "timm_pool": POOLS[trunk],
        "timm_proj": "none",
        "image_size": 160,
    }
    settings = {
        **SETTINGS, "embed_dim": 64 if trunk != "test_vit3" else 96, "vision_cfg": vision,
        "custom_text": True, "init_logit_bias": -10,
    }  # fmt: skip
    (place / f"{trunk}.json").write_text(json.dumps(settings))
    open_clip.add_model_config(place / f"{trunk}.json")
    torch.manual_seed(0)
    model = open_clip.create_model(trunk).eval()
    state = {name: part.contiguous() for name, part in model.state_dict().items()}
    save_file(state, place / f"{trunk}.safetensors")
    ours = OpenCLIP(
        str(place / f"{trunk}.json"), weights=place / f"{trunk}.safetensors", dtype="fp32"
    )
    return ours, model


@pytest.mark.parametrize("trunk", ["test_vit3", "test_vit"])
def test_siglip_like_towers_equal_the_librarys(tmp_path, trunk) -> None:
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2

    ours, model = timm_tower(tmp_path, trunk)
    pictures = [picture(5), picture(6, (64, 20))]
    transform = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)
    with torch.no_grad():
        want = model.encode_image(torch.stack([transform(p) for p in pictures]), normalize=True)
    assert cosines(ours.encode(pictures), want.numpy()).min() > 0.99999
    vectors, boxes = ours.encode_regions(pictures[0])
    assert vectors.shape == (100, ours.dim)
    assert boxes.shape == (100, 4)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)


def test_one_patch_alone_is_the_whole_of_an_averaging_model(tmp_path) -> None:
    """A picture of one patch pools to that patch, so its region is the picture's own vector."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    vision = {**SETTINGS["vision_cfg"], "image_size": 16, "pool_type": "avg"}
    (tmp_path / "one-patch.json").write_text(json.dumps({**SETTINGS, "vision_cfg": vision}))
    open_clip.add_model_config(tmp_path / "one-patch.json")
    torch.manual_seed(3)
    state = open_clip.create_model("one-patch").state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "w.safetensors")
    encoder = OpenCLIP(
        str(tmp_path / "one-patch.json"), weights=tmp_path / "w.safetensors", dtype="fp32"
    )
    shown = picture(8, (20, 20))
    vectors, boxes = encoder.encode_regions(shown)
    assert cosines(vectors, encoder.encode([shown])).min() > 0.99999
    np.testing.assert_allclose(boxes, [[0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        ("shortest", (0.25, 0, 0.5, 0.5)),
        ("squash", (0, 0, 0.5, 0.5)),
        ("longest", (0, 0, 0.5, 0.5)),
    ],
)
def test_patches_lie_where_the_transform_showed_them(mode, first) -> None:
    boxes = _boxes(picture(0, (80, 40)), 2, 2, mode)
    assert boxes.shape == (4, 4)
    np.testing.assert_allclose(boxes[0], first)


def test_padding_has_no_patch(folder) -> None:
    boxes = _boxes(picture(0, (80, 20)), 4, 4, "longest")
    inside = (boxes[:, 1] < boxes[:, 3]).reshape(4, 4)
    assert inside.any(axis=1).tolist() == [False, True, True, False]
    vectors, boxes = load(folder).encode_regions(picture(1, (60, 30)))
    assert vectors.shape == (4, 32)
    assert boxes[:, 0].min() == 0.25
    assert boxes[:, 2].max() == 0.75


def test_a_convolutional_clip_says_that_it_has_no_patches(tmp_path) -> None:
    import open_clip
    import torch
    from safetensors.torch import save_file

    vision = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
    (tmp_path / "tiny-rn.json").write_text(json.dumps({**SETTINGS, "vision_cfg": vision}))
    open_clip.add_model_config(tmp_path / "tiny-rn.json")
    torch.manual_seed(0)
    state = open_clip.create_model("tiny-rn").state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "w.safetensors")
    encoder = OpenCLIP(str(tmp_path / "tiny-rn.json"), weights=tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match="has no patches"):
        encoder.encode_regions(picture(0))
