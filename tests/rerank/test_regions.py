import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.protocols import Resources
from foveate.pipeline.types import Hit, Locator, Passage, Source
from foveate.rerank.regions import Conditioned, grid

D = 8


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


class Tower:
    """Patches as they are drawn: a picture of 2 x 3 cells whose red says which axis each is."""

    space, tower, dim = "toy/8", "toy@1", D
    reads, window_tokens = frozenset({"image"}), None
    n_seen = 0

    def encode_regions(self, image):
        self.n_seen += 1
        cells = np.asarray(image.convert("RGB"))[..., 0].ravel() // 10
        y, x = np.divmod(np.arange(6), 3)
        boxes = np.stack([x / 3, y / 2, (x + 1) / 3, (y + 1) / 2], axis=1).astype(np.float32)
        return np.eye(D, dtype=np.float32)[cells], boxes

    def encode_queries(self, queries):
        return np.eye(D, dtype=np.float32)[[int(q) for q in queries]]


class Stored:
    def __init__(self, vectors):
        self._vectors = vectors

    def vectors(self, ids, role):
        assert role == "image"
        return self._vectors[[i - 1 for i in ids]]


def picture(cells):
    pixels = np.zeros((2, 3, 3), dtype=np.uint8)
    pixels[..., 0] = np.reshape(cells, (2, 3)) * 10
    return Image.fromarray(pixels)


PICTURES = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 3], [3, 3, 3, 1, 1, 1], [2, 2, 2, 2, 2, 2]]


def stage(encoder=None, **options):
    means = unit(np.eye(D, dtype=np.float32)[np.array(PICTURES)].mean(axis=1))
    encoder = Tower() if encoder is None else encoder
    known = {f.name: None for f in dataclasses.fields(Resources)} | {
        "encoders": {"image": encoder},
        "index": Stored(means),
        "folder": Path(),
        "image": lambda passage: picture(PICTURES[passage.id - 1]),
    }
    return Conditioned(Resources(**known), **options), means


def hits():
    source = Source("0" * 32, ("/a.png",), "image/png", "image", 1, 0.0)
    return [
        Hit(Passage(i + 1, i, source, "image", "", Locator()), 0.5, {"picture": 0.1})
        for i in range(len(PICTURES))
    ]


def test_scores_are_the_formula():
    reranker, means = stage(share=0.4, temperature=0.2)
    want = []
    for cells, mean in zip(PICTURES, means, strict=True):
        patches = np.eye(D)[cells]
        logits = patches[:, 3] / 0.2
        weights = np.exp(logits) / (np.exp(logits).sum() + 1)
        pooled = weights @ patches
        want.append(0.6 * mean[3] + 0.4 * pooled[3] / np.linalg.norm(pooled))
    np.testing.assert_allclose(reranker.score("3", hits()), want, atol=1e-6)


def test_a_small_thing_is_found_where_the_whole_picture_hides_it():
    """The second picture holds the third axis in one cell of six."""
    reranker, means = stage(share=1.0, temperature=0.05)
    found = reranker.rerank("3", hits(), 4)
    assert [hit.passage.id for hit in found][:2] == [2, 3] or found[0].scores["regions"] > 0.99
    assert found[1].scores["regions"] > 0.99 > means[1, 3]
    assert found[0].scores["picture"] == 0.1
    assert found[0].score == pytest.approx((found[0].scores["regions"] + 1) / 2)


def test_no_share_is_the_stored_order():
    reranker, means = stage(share=0.0)
    np.testing.assert_allclose(reranker.score("1", hits()), means[:, 1], atol=1e-6)


def test_alike_patches_pool_the_same_for_every_query():
    reranker, _ = stage(share=1.0)
    pooled = [reranker.score(str(q), hits()[:1])[0] for q in range(D)]
    np.testing.assert_allclose(pooled, np.eye(D)[0], atol=1e-6)


def test_the_heat_stands_where_the_thing_is():
    reranker, _ = stage(temperature=0.5)
    weights, boxes = reranker.heat("3", hits()[1].passage)
    assert weights.sum() < 1
    heat = grid(weights, boxes)
    assert heat.shape == (2, 3)
    assert np.unravel_index(heat.argmax(), heat.shape) == (1, 2)
    assert heat[1, 2] == 1
    nothing, _ = reranker.heat("7", hits()[1].passage)
    np.testing.assert_allclose(nothing, 1 / 7, atol=1e-6)


def test_cells_that_are_cut_at_the_edges_are_laid_on_even_ones():
    boxes = np.array([[0, 0, 0.1, 1], [0.1, 0, 0.6, 1], [0.6, 0, 1, 1]], dtype=np.float32)
    np.testing.assert_allclose(grid(np.array([0.1, 0.4, 0.2]), boxes), [[1, 1, 0.5]])


def test_patches_are_kept_and_the_oldest_dropped():
    tower = Tower()
    reranker, _ = stage(tower, keep=2)
    reranker.score("1", hits()[:2])
    reranker.score("2", hits()[:2])
    assert tower.n_seen == 2
    reranker.score("1", hits()[2:3])
    reranker.score("1", hits()[1:2])
    assert tower.n_seen == 3
    reranker.score("1", hits()[:1])
    assert tower.n_seen == 4


def test_no_hits_and_no_patches():
    reranker, _ = stage()
    assert reranker.rerank("1", [], 5) == []
    without, _ = stage(object())
    without._resources.encoders["image"] = type("Blind", (), {"tower": "blind@1"})()
    with pytest.raises(ConfigError, match="'blind@1' gives none"):
        without.score("1", hits())
    with pytest.raises(ConfigError, match=r"share in 0\.\.1"):
        stage(share=2)


@pytest.mark.models
def test_an_index_of_pictures_is_reranked_and_lit(tmp_path):
    import foveate
    from foveate import cli

    blank = Image.new("RGB", (448, 224), (120, 160, 110))
    blank.save(tmp_path / "blank.png")
    scene = blank.copy()
    for x in range(300, 440, 20):  # stripes on the right
        scene.paste((240, 240, 240), (x, 20, x + 10, 200))
    scene.save(tmp_path / "stripes.png")
    with foveate.open(tmp_path / "i.fov", create=True) as ix:
        ix.add(tmp_path)
        plain = ix.search("white stripes", modality="image")
        found = ix.search("white stripes", modality="image", rerank="regions")
        assert {hit.passage.id for hit in found} == {hit.passage.id for hit in plain}
        assert all("regions" in hit.scores for hit in found)
        striped = next(hit.passage for hit in found if hit.passage.source.name == "stripes.png")
        heat = ix.heat_map(striped, "white stripes")
        assert heat.shape == (7, 7)
        assert heat.max() == 1
        place = tmp_path / "lit.png"
        assert cli.run(["show", striped.label, "--heat", "white stripes", "--save", str(place),
                        "--index", str(tmp_path / "i.fov")]) == 0  # fmt: skip
        lit = np.asarray(Image.open(place).convert("L"), dtype=float)
        dark = np.asarray(scene.convert("L"), dtype=float)
        assert lit.shape == dark.shape
        assert lit.mean() < dark.mean()
