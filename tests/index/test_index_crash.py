"""Killed at any moment, and used by many at once."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foveate.index.disk import DiskIndex

CHILD = Path(__file__).with_name("crash_writer.py")


def start(path: Path, seed: int, name: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(path), str(seed), name, *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def agrees(index: DiskIndex) -> None:
    """Every part of the index holds the same sources."""
    report = index.check()
    assert report["ok"], report
    n = index.count()
    _, ids = index.search_words("common", 10_000)
    assert len(ids) == len(list(index.sources()))
    found = index.passages(ids)
    assert len(found) == len(ids)
    for passage in found:
        start_, end = passage.locator.span
        assert index.source_text(passage.source.id)[start_:end] == passage.text
    assert index.status()["words"]["passages"] == n
    assert index.status()["words"]["generation"] == index.generation


def kill_and_look(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    child = start(path, seed, "k")
    first = child.stdout.readline()
    assert first, child.stderr.read()
    time.sleep(rng.random() * 0.4)
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate()
    lines = [ast.literal_eval(s) for s in (first + rest).split("\n")[:-1] if s.endswith("]")]
    with DiskIndex.open(path) as index:
        agrees(index)
        state = sorted((f.path, f.digest) for f in index.files())
        # the commit after the last one that was told may have happened too
        if state != lines[-1]:
            told = dict(lines[-1])
            assert len(set(told.items()) ^ set(state)) <= 24
        else:
            assert state == lines[-1]


def run_kills(tmp_path: Path, maker, n: int) -> None:
    path = tmp_path / "x.fov"
    DiskIndex.create(path, towers=maker.towers, settings={}).close()
    for seed in range(n):
        kill_and_look(path, seed)
    with DiskIndex.open(path) as index:
        left = {p.name for p in path.glob("vectors/*/*")}
        listed = sum(t["segments"] for t in index.status()["towers"].values())
        with index.writer():
            pass
        assert len(list(path.glob("vectors/*/*.seg"))) == listed, left


def test_killed_at_random_moments_everything_committed_is_there(tmp_path, maker):
    run_kills(tmp_path, maker, 8)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path, maker):
    run_kills(tmp_path, maker, 50)


def test_killed_between_catalogue_and_words(tmp_path, maker, new_index, monkeypatch):
    """The one gap between two files: the commit stands, and who opens next mends the words."""
    index = new_index()
    with index.writer() as writer:
        maker.put(writer, "/a", "common first")
    pid = os.fork()
    if pid == 0:
        own = DiskIndex.open(index.path)
        with own.writer() as writer:
            maker.put(writer, "/b", "common second")
            writer.remove("/a")
            writer.keeper.catch_up = lambda db: os._exit(0)
            writer.commit()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with DiskIndex.open(index.path) as again:
        assert [p.text for p in again.passages(again.search_words("common", 9)[1])] == [
            "common second"
        ]
        agrees(again)


def test_two_writers_and_two_readers_at_once(tmp_path, maker):
    path = tmp_path / "x.fov"
    DiskIndex.create(path, towers=maker.towers, settings={}).close()
    writers = [start(path, i, f"w{i}", "6") for i in range(2)]
    index = DiskIndex.open(path)
    n_looks = 0
    while any(w.poll() is None for w in writers) or n_looks < 3:
        n_looks += 1
        _, ids = index.search_words("common", 1000)
        for passage in index.passages(ids):
            assert passage.text.startswith("common")
        scores, found = index.search_vectors("text", maker.vector("x")[None], 20)
        passages = {p.id: p for p in index.passages(found[0][found[0] >= 0])}
        for score, i in zip(scores[0], found[0], strict=True):
            if int(i) in passages:
                want = float(maker.vector(passages[int(i)].text) @ maker.vector("x"))
                assert abs(want - score) < 1e-5
    for writer in writers:
        _, error = writer.communicate()
        assert writer.returncode == 0, error
    agrees(index)
    index.close()
