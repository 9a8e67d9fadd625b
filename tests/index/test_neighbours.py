"""FAISS kinds: chosen by size, trained only when they can be, exact where it matters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.index.disk import DiskIndex, Tower
from foveate.index.neighbours import Plan
from foveate.index.vectors import top
from foveate.pipeline.types import Document, Draft, Locator

DIM = 32


def unit(rng, n, dim=DIM, n_centres=20):
    centres = rng.standard_normal((n_centres, dim))
    x = centres[rng.integers(0, n_centres, n)] + 0.7 * rng.standard_normal((n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def fill(index: DiskIndex, vectors: np.ndarray, name: str = "a", per_source: int = 500) -> None:
    with index.writer() as w:
        for start in range(0, len(vectors), per_source):
            part = vectors[start : start + per_source]
            text = "x" * len(part) + f"{name}{start}"
            digest = f"{name}{start}".encode().hex().ljust(64, "0")
            document = Document(digest, "text/plain", "text", 1, text, metadata={"start": start})
            drafts = [Draft("text", "x", Locator((i, i + 1))) for i in range(len(part))]
            w.begin(f"/{name}{start}", 1, 1, digest)
            w.add(f"/{name}{start}", document, drafts, {"text": (np.arange(len(part)), part)})
            w.finish(f"/{name}{start}", "indexed", ())


def make(tmp_path, name="x", **options) -> DiskIndex:
    towers = {"text": Tower("text", "t", "s", DIM)}
    return DiskIndex.create(tmp_path / f"{name}.fov", towers=towers, settings={}, **options)


def exact(vectors, queries, k):
    scores = queries @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order + 1


def test_the_exact_search_is_a_full_sort(tmp_path):
    rng = np.random.default_rng(1)
    vectors, queries = unit(rng, 1300), unit(rng, 7)
    with make(tmp_path) as index:
        fill(index, vectors[:700])
        fill(index, vectors[700:], "b")
        for q in (queries, queries[:1]):
            for k in (1, 10, 1300, 1400):
                scores, ids = index.search_vectors("text", q, k)
                want, order = exact(vectors, q, k)
                assert np.allclose(scores[:, : len(vectors)], want, atol=1e-5)
                if k <= 10:
                    assert (ids == order).all()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([-np.inf, 0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=20),
       st.integers(1, 25))  # fmt: skip
def test_top_takes_the_best_and_of_equals_the_first(row, k):
    _, places = top(np.array([row], np.float32), k)
    want = sorted((i for i, s in enumerate(row) if s > -np.inf), key=lambda i: (-row[i], i))[:k]
    assert sorted(p for p in places[0].tolist() if p >= 0) == sorted(want)


def test_asked_for_pq_with_111_vectors_a_kind_that_can_be_trained_is_used(tmp_path):
    rng = np.random.default_rng(2)
    vectors = unit(rng, 111)
    with make(tmp_path, kind="ivfpq") as index:
        fill(index, vectors)
        tower = index.status()["towers"]["text"]
        assert (tower["kind"], tower["wanted"]) == ("flat", "ivfpq")
        assert "at least 9984 vectors to train on, got 111" in tower["note"]
        _, ids = index.search_vectors("text", vectors[:5], 3)
        assert (ids[:, 0] == np.arange(1, 6)).all()


@pytest.mark.parametrize("n", [0, 1, 2, 15, 111])
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq", "auto"])
def test_every_kind_at_every_small_size(tmp_path, kind, n):
    vectors = unit(np.random.default_rng(n), max(n, 1))[:n]
    with make(tmp_path, kind=kind, exact_max=1) as index:
        if n:
            fill(index, vectors)
        _, ids = index.search_vectors("text", unit(np.random.default_rng(5), 3), 20)
        assert (ids >= 0).sum() == 3 * min(n, 20)
        assert index.check()["ok"]


@pytest.mark.parametrize("kind", ["hnsw", pytest.param("ivfpq", marks=pytest.mark.slow)])
def test_recall_is_measured_and_filters_and_removals_hold(tmp_path, kind):
    rng = np.random.default_rng(3)
    vectors, queries = unit(rng, 11_000), unit(rng, 20)
    options = {"kind": kind, "n_lists": 64, "exact_max": 600, "tail_max": 400}
    with make(tmp_path, **options) as index:
        fill(index, vectors[:10_500])
        tower = index.status()["towers"]["text"]
        assert tower["kind"] == kind
        assert tower["covered"] == 10_500
        assert tower["recall_at_10"] >= 0.9
        fill(index, vectors[10_500:10_800], "b")  # fewer than tail_max: searched exactly
        assert index.status()["towers"]["text"]["covered"] == 10_500
        _, ids = index.search_vectors("text", vectors[10_500:10_600], 1)
        assert (ids[:, 0] == np.arange(10_501, 10_601)).all()
        fill(index, vectors[10_800:], "c")
        assert index.status()["towers"]["text"]["covered"] == 11_000
        _, ids = index.search_vectors("text", queries, 10)
        want = exact(vectors, queries, 10)[1]
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, want, strict=True)])
        assert recall >= 0.9
        # a filter that lets little through, and one that lets much through
        _, ids = index.search_vectors("text", queries, 10, where="start = 3000")
        inside = exact(vectors[3000:3500], queries, 10)[1] + 3000
        assert (ids == inside).all()
        _, ids = index.search_vectors(
            "text", queries, 10, where="start >= 3000 and path contains '/a'"
        )
        inside = exact(vectors[3000:10_500], queries, 10)[1] + 3000
        assert (ids > 3000).all()
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, inside, strict=True)])
        assert recall >= 0.9
        with index.writer() as w:
            for start in range(0, 10_500, 1000):
                w.remove(f"/a{start}")
        _, ids = index.search_vectors("text", queries, 10)
        gone = (ids - 1 < 10_500) & ((ids - 1) // 500 % 2 == 0)
        assert not gone.any()
        assert (ids > 0).all()
        index.compact()
        _, after = index.search_vectors("text", vectors[[600, 10_900]], 1)
        assert after[:, 0].tolist() == [601, 10_901]
        assert index.check()["ok"]


def test_the_faiss_file_is_a_cache(tmp_path):
    rng = np.random.default_rng(4)
    vectors = unit(rng, 3000)
    with make(tmp_path, kind="hnsw", exact_max=10) as index:
        fill(index, vectors)
        path = index.path
    (file,) = path.glob("vectors/*/*.faiss")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with DiskIndex.open(path) as index:  # damaged: left alone, searched exactly
        assert index.search_vectors("text", vectors[7:8], 1)[1][0, 0] == 8
    file.unlink()
    with DiskIndex.open(path) as index:
        assert index.search_vectors("text", vectors[9:10], 1)[1][0, 0] == 10
        with index.writer():
            pass
        assert list(path.glob("vectors/*/*.faiss"))
        assert index.search_vectors("text", vectors[9:10], 1)[1][0, 0] == 10


def test_modalities_are_kept_apart(tmp_path, new_index, maker):
    index = new_index()
    text = "one\ntwo"
    document, drafts = maker.document(text), maker.drafts(text)
    drafts[1] = Draft("image", "two", drafts[1].locator)
    with index.writer() as w:
        w.begin("/a", 1, 1, document.digest)
        w.add("/a", document, drafts, maker.vectors(drafts))
        w.finish("/a", "indexed", ())
    query = maker.vector("one")[None]
    for modality, want in (("text", [1]), ("image", [2]), ("page", [])):
        _, ids = index.search_vectors("text", query, 5, modalities={modality})
        assert ids[0][ids[0] >= 0].tolist() == want
        _, ids = index.search_words("one two", 5, modalities={modality})
        assert ids.tolist() == want


def test_plan_follows_the_size():
    plan = Plan()
    assert [plan.choose(n, 384)[0] for n in (0, 100_000, 100_001, 1_000_001)] == [
        "flat", "flat", "hnsw", "ivfpq"]  # fmt: skip
