"""Token vectors: kept in codes, found by MaxSim, and as safe as everything else."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from foveate.index import centroids, tokens
from foveate.index.disk import DiskIndex, Tower
from foveate.index.token_segments import TokenRows, decode, encode, open_segment, write_segment
from foveate.pipeline.errors import CorruptIndex, QueryError, ShapeError, SpaceMismatch
from foveate.pipeline.types import MultiVectors

DIM = 32
CHILD = Path(__file__).with_name("token_writer.py")


def unit(seed: object, n: int) -> np.ndarray:
    number = int.from_bytes(hashlib.sha256(repr(seed).encode()).digest()[:8], "little")
    x = np.random.default_rng(number).standard_normal((n, DIM)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def word_vectors(text: str) -> np.ndarray:
    """One vector a word, the same word always the same; none for the word 'mute'."""
    words = [w for w in text.split() if w != "mute"]
    return np.concatenate([np.empty((0, DIM), np.float32), *(unit(w, 1) for w in words)])


def ragged(parts: list[np.ndarray]) -> MultiVectors:
    sizes = [len(p) for p in parts]
    flat = np.concatenate([np.empty((0, DIM), np.float32), *parts])
    return MultiVectors(flat, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))


def put(writer, maker, path: str, text: str) -> None:
    document, drafts = maker.document(text), maker.drafts(text)
    vectors = maker.vectors(drafts)
    vectors["tokens"] = (np.arange(len(drafts)), ragged([word_vectors(d.text) for d in drafts]))
    writer.begin(path, len(text), 10**18, document.digest)
    writer.add(path, document, drafts, vectors, maker.keys(drafts))
    writer.finish(path, "indexed", ())


def make(maker, path: Path, code: str = "int8") -> DiskIndex:
    tower = Tower("tokens", f"fake-tokens@1 {code}", f"fake-tokens/{DIM}", DIM, code)
    return DiskIndex.create(path, towers={**maker.towers, "tokens": tower}, settings={})


@pytest.fixture(params=["int8", "onebit"])
def index(request, tmp_path, maker):
    made = make(maker, tmp_path / "x.fov", request.param)
    yield made
    made.close()


def ask(text: str) -> MultiVectors:
    return ragged([word_vectors(text)])


def by_hand(index: DiskIndex, query: MultiVectors) -> dict[int, float]:
    """MaxSim over every stored passage, by a loop."""
    ids = np.sort(np.concatenate([index.search_words("common", 9999)[1]]))
    stored = index.token_vectors(ids)
    weight = np.linalg.norm(query.vectors, axis=1).sum()
    return {
        int(i): float((query.vectors @ stored[row].T).max(1).sum() / weight)
        for row, i in enumerate(ids)
        if len(stored[row])
    }


def check_search(index: DiskIndex, query: MultiVectors, k: int = 5) -> None:
    want = sorted(by_hand(index, query).items(), key=lambda p: (-round(p[1], 5), p[0]))[:k]
    scores, ids = index.search_tokens(query, k)
    assert ids.tolist() == [i for i, _ in want]
    np.testing.assert_allclose(scores, [s for _, s in want], atol=1e-4)


def test_search_is_the_formula_through_adding_removing_and_compacting(index, maker):
    random_ = random.Random(0)
    words = [f"w{i}" for i in range(60)]
    held: set[str] = set()
    for _ in range(5):
        with index.writer() as writer:
            for _ in range(12):
                path = f"/{random_.randint(0, 30)}"
                if path in held and random_.random() < 0.4:
                    writer.remove(path)
                    held.discard(path)
                    continue
                line = " ".join(random_.sample(words, random_.randint(1, 9)))
                put(writer, maker, path, f"common {path} {line}")
                held.add(path)
            writer.commit()
        query = ask(" ".join(random_.sample(words, 4)))
        check_search(index, query)
        with DiskIndex.open(index.path) as other:
            check_search(other, query)
    before = index.search_tokens(query, 40)
    index.compact()
    after = index.search_tokens(query, 40)
    assert before[1].tolist() == after[1].tolist()
    np.testing.assert_allclose(before[0], after[0], atol=1e-6)
    assert index.check()["ok"]


def test_passages_without_tokens_are_stored_and_never_found(index, maker):
    with index.writer() as writer:
        put(writer, maker, "/a", "mute\nmute mute\ncommon word")
    stored = index.token_vectors([1, 2, 3, 99])
    assert np.diff(stored.offsets).tolist() == [0, 0, 2, 0]
    assert index.search_tokens(ask("word"), 10)[1].tolist() == [3]
    assert index.search_tokens(ask("mute"), 10)[1].tolist() == []


def test_filters_and_modalities_hold(index, maker):
    with index.writer() as writer:
        for i in range(4):
            put(writer, maker, f"/f{i}.txt", f"common word {i}")
    found = index.search_tokens(ask("word"), 10, where="name = 'f2.txt'")[1]
    assert [p.text for p in index.passages(found)] == ["common word 2"]
    assert index.search_tokens(ask("word"), 10, modalities=["image"])[1].tolist() == []


def test_a_source_that_is_there_is_not_written_again(index, maker):
    for _ in range(2):
        with index.writer() as writer:
            put(writer, maker, "/a", "common word")
    assert index.status()["towers"]["tokens"]["vectors"] == 1
    with index.writer() as writer:
        keys = maker.keys(maker.drafts("common word"))
        known = writer.vectors_for(keys, "tokens")[keys[0]]
    np.testing.assert_allclose(known, index.token_vectors([1])[0])


@pytest.mark.parametrize("code", ["int8", "onebit"])
def test_what_is_decoded_is_coded_alike_again(code):
    first = ragged([unit("a", 500)])
    codes, scales = encode(first, code)
    values = decode(codes, scales, DIM)
    again, sizes = encode(MultiVectors(values, first.offsets), code)
    np.testing.assert_array_equal(codes, again)
    np.testing.assert_array_equal(scales, sizes)
    cosines = (values * first.vectors).sum(1) / np.linalg.norm(values, axis=1)
    assert cosines.mean() > {"int8": 0.9999, "onebit": 0.78}[code]


@pytest.mark.parametrize("code", ["int8", "onebit"])
def test_a_segment_is_read_as_it_was_written(tmp_path, code):
    parts, at = [], 0
    for sizes in ([], [0], [3, 0, 1], [5]):
        vectors = ragged([unit((code, at, i), n) for i, n in enumerate(sizes)])
        codes, scales = encode(vectors, code)
        ids = np.arange(at, at + len(sizes))
        kinds = np.zeros(len(sizes), np.uint8)
        parts.append(TokenRows(ids, ids + 1, kinds, vectors.offsets, scales, codes))
        at += len(sizes)
    picked = parts[2].keep(np.array([2, 0])).keep(np.array([1]))
    n, crc = write_segment(tmp_path / "a.seg", [*parts, picked], parts[2].codes.shape[1])
    assert n == 6
    got = open_segment(tmp_path / "a.seg", n, DIM, crc)
    assert got.lengths.tolist() == [0, 3, 0, 1, 5, 3]
    assert got.ids.tolist() == [0, 1, 2, 3, 4, 1]
    codes, scales, _ = got.take(np.array([1, 5]))
    np.testing.assert_array_equal(codes[:3], codes[3:])
    np.testing.assert_array_equal(scales[:3], parts[2].scales[:3])
    assert (tmp_path / "a.seg").stat().st_mode & 0o777 == 0o600


def test_damage_is_found(index, maker):
    with index.writer() as writer:
        put(writer, maker, "/a", "common word")
    (path,) = index.path.glob("tokens/*/*.seg")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with DiskIndex.open(index.path) as again:
        assert not again.check()["ok"]
        with pytest.raises(CorruptIndex, match="damaged"):
            again.search_tokens(ask("word"), 1)
    path.write_bytes(data[:40])
    with DiskIndex.open(index.path) as again, pytest.raises(CorruptIndex):
        again.search_tokens(ask("word"), 1)


def test_what_does_not_fit_is_refused(index, maker, new_index):
    with pytest.raises(ShapeError, match="one query"):
        index.search_tokens(ragged([unit(1, 2), unit(2, 2)]), 1)
    with pytest.raises(QueryError):
        index.search_tokens(ask("word"), 0)
    with pytest.raises(SpaceMismatch, match="a token"):
        index.search_vectors("tokens", unit(1, 1), 1)
    with pytest.raises(SpaceMismatch, match="late-minilm"):
        new_index().search_tokens(ask("word"), 1)
    with index.writer() as writer:
        document, drafts = maker.document("common"), maker.drafts("common")
        writer.begin("/a", 1, 1, document.digest)
        for bad in (unit(1, 1), ragged([unit(1, 1), unit(2, 1)]), ragged([2 * unit(1, 1)])):
            with pytest.raises(ShapeError):
                writer.add("/a", document, drafts, {"tokens": (np.arange(1), bad)})
        writer.add("/a", document, drafts, {"tokens": (np.arange(1), ragged([unit(1, 1)]))})
        writer.finish("/a", "indexed", ())
    assert index.count() == 1


def clustered(n: int, seed: int = 0) -> list[np.ndarray]:
    """n passages whose tokens lie around 200 topics, three topics each."""
    random_ = np.random.default_rng(seed)
    topics = unit("topics", 200)
    found = []
    for _ in range(n):
        some = topics[random_.choice(200, 3)][random_.integers(0, 3, random_.integers(5, 40))]
        noisy = some + 0.1 * random_.standard_normal(some.shape).astype(np.float32)
        found.append(noisy / np.linalg.norm(noisy, axis=1, keepdims=True))
    return found


def test_centroids_find_what_an_exact_search_finds(tmp_path, maker, monkeypatch):
    monkeypatch.setattr(tokens, "LEAST_TOKENS", 1000)
    index = make(maker, tmp_path / "x.fov")
    parts = clustered(2400)
    for low in range(0, 2400, 800):
        with index.writer() as writer:
            for i in range(low, low + 800, 100):
                text = "\n".join(f"common {j}" for j in range(i, i + 100))
                document, drafts = maker.document(text), maker.drafts(text)
                vectors = maker.vectors(drafts)
                vectors["tokens"] = (np.arange(100), ragged(parts[i : i + 100]))
                writer.begin(f"/{i}", 1, 1, document.digest)
                writer.add(f"/{i}", document, drafts, vectors)
                writer.finish(f"/{i}", "indexed", ())
    snapshot = index._many("tokens")
    assert snapshot.centroids is not None
    assert snapshot.centroids.n == 2400
    hits = wanted = 0
    for seed in range(20):
        query = ragged([clustered(1, 1000 + seed)[0][:6]])
        few = index.search_tokens(query, 10, depth=100)
        every = index.search_tokens(query, 10, depth=10_000)
        assert (few[0] <= every[0] + 1e-6).all()
        hits += len(set(few[1].tolist()) & set(every[1].tolist()))
        wanted += 10
    assert hits / wanted > 0.9
    with DiskIndex.open(index.path) as again:
        assert again.search_tokens(query, 10, depth=100)[1].tolist() == few[1].tolist()
    # the cache may go at any time
    for path in index.path.glob("tokens/*/*.centres"):
        path.write_bytes(b"no")
    with DiskIndex.open(index.path) as again:
        assert again.search_tokens(query, 10, depth=100)[1].tolist() == every[1].tolist()
    index.close()


def test_a_row_nobody_probed_is_estimated_from_below_by_the_best_unprobed(monkeypatch):
    monkeypatch.setattr(centroids, "_PROBES", 1)
    axes = np.eye(3, DIM, dtype=np.float32)
    made = centroids.Centroids(axes, np.array([0, 1, 2, 3]), np.array([0, 1, 1], np.int32), 2, 3)
    query = np.zeros((1, DIM), np.float32)
    query[0, :3] = 0.9, 0.4, 0.1
    np.testing.assert_allclose(made.estimate(query), [0.9, 0.4], atol=1e-6)


def kill_and_look(path: Path, seed: int) -> None:
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(path), str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline(), child.stderr.read()
    time.sleep(random.Random(seed).random() * 0.3)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with DiskIndex.open(path) as index:
        report = index.check()
        assert report["ok"], report
        ids = index.search_words("common", 9999)[1]
        stored = index.token_vectors(ids)
        for row, passage in enumerate(index.passages(ids)):
            want = decode(*encode(ragged([word_vectors(passage.text)]), "onebit"), DIM)
            np.testing.assert_allclose(stored[row], want, atol=1e-6)


def run_kills(tmp_path: Path, maker, n: int) -> None:
    path = tmp_path / "x.fov"
    make(maker, path, "onebit").close()
    for seed in range(n):
        kill_and_look(path, seed)
    with DiskIndex.open(path) as index:
        with index.writer():
            pass
        listed = index.status()["towers"]["tokens"]["segments"]
        assert len(list(path.glob("tokens/*/*.seg"))) == listed
        assert not list(path.glob("tokens/*/*.new"))


def test_killed_at_random_moments_everything_committed_is_there(tmp_path, maker):
    run_kills(tmp_path, maker, 3)


@pytest.mark.slow
def test_killed_thirty_times(tmp_path, maker):
    run_kills(tmp_path, maker, 30)


def test_killed_and_resumed_gives_what_an_undisturbed_run_gives(tmp_path, maker):
    texts = {f"/{i}": f"common {i} w{i % 7} w{i % 5} w{i % 3}" for i in range(60)}
    calm = make(maker, tmp_path / "calm.fov")
    with calm.writer() as writer:
        for path, text in texts.items():
            put(writer, maker, path, text)
    shaken = make(maker, tmp_path / "shaken.fov")
    pid = os.fork()
    if pid == 0:
        own = DiskIndex.open(shaken.path)
        with own.writer() as writer:
            for number, (path, text) in enumerate(texts.items()):
                put(writer, maker, path, text)
                if number == 20:
                    writer.commit()
                if number == 35:
                    os._exit(9)
    os.waitpid(pid, 0)
    with shaken.writer() as writer:
        for path, text in texts.items():
            if not writer.is_complete(path):
                put(writer, maker, path, text)
    for seed in range(7):
        query = ask(f"w{seed} w{seed % 5} common")
        a, b = calm.search_tokens(query, 60), shaken.search_tokens(query, 60)
        names = [[p.text for p in i.passages(r[1])] for i, r in ((calm, a), (shaken, b))]
        assert names[0] == names[1]
        np.testing.assert_allclose(a[0], b[0], atol=1e-6)
    calm.close()
    shaken.close()
