"""Killed at any moment, the index opens, holds what was committed, and the run resumes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import foveate
from foveate.pipeline.testing import HashedWords

CHILD = """
import sys
import foveate
from foveate.pipeline import update
from foveate.pipeline.testing import HashedWords
update.GROUP_PASSAGES = 16

def told(stage, done, total):
    if stage == "write":
        print(stage, flush=True)

with foveate.open(sys.argv[1], create=True, encoders={"text": HashedWords()}) as engine:
    print("ready", flush=True)
    engine.add(sys.argv[2], prune=True, timeout_s=30, progress=told)
"""
CHANGES = """
import sys, os, random, time
import foveate
from foveate.pipeline import update
from foveate.pipeline.testing import HashedWords
update.GROUP_PASSAGES = 16
rng, end = random.Random(int(sys.argv[3])), time.monotonic() + float(sys.argv[4])
n = 0
while time.monotonic() < end:
    for _ in range(3):
        path = os.path.join(sys.argv[2], f"w{sys.argv[3]}-{rng.randrange(40)}.txt")
        if rng.random() < 0.2 and os.path.exists(path):
            os.unlink(path)
        else:
            with open(path + ".part", "w") as handle:
                handle.write(f"writer {sys.argv[3]} says {rng.randrange(10**6)} glacier")
            os.replace(path + ".part", path)
    with foveate.open(sys.argv[1], encoders={"text": HashedWords()}) as engine:
        engine.add(sys.argv[2], prune=True, timeout_s=60, exclude=["*.part"])
    n += 1
print("rounds", n)
"""
READS = """
import sys, time
import foveate
from foveate.pipeline.testing import HashedWords
end, n = time.monotonic() + float(sys.argv[3]), 0
with foveate.open(sys.argv[1], encoders={"text": HashedWords()}) as engine:
    while time.monotonic() < end:
        for hit in engine.search("writer says glacier", k=10, collapse=False):
            start, stop = hit.passage.locator.span
            assert hit.passage.text.startswith(("writer", "seed")), hit.passage.text
        n += 1
assert n > 0
print("searches", n)
"""


def corpus(folder: Path, n_files: int = 40, n_rows: int = 120) -> None:
    folder.mkdir()
    rng = random.Random(7)
    for n in range(n_files):
        words = " ".join(str(rng.randrange(10**6)) for _ in range(60))
        (folder / f"{n:03}.txt").write_text(f"Document {n}. {words}.", encoding="utf-8")
    rows = ({"_id": str(n), "text": f"Row {n} {rng.randrange(10**9)}"} for n in range(n_rows))
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def content(path: Path) -> set[tuple[str, tuple[str, ...], int, str]]:
    """Return what the index holds, without the ids that depend on the order of events."""
    with foveate.open(path, encoders={"text": HashedWords()}) as engine:
        report = engine.check()
        assert report["ok"], report
        held = set()
        for source in engine.index.sources():
            text = engine.text(source.id)
            held.add((source.id, tuple(sorted(source.uris)), len(text), text[:40]))
        return held


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def kill_many(tmp_path: Path, n_kills: int) -> None:
    docs = tmp_path / "docs"
    corpus(docs)
    finish(start(CHILD, tmp_path / "undisturbed", docs))
    want = content(tmp_path / "undisturbed")
    timing = start(CHILD, tmp_path / "timing", docs)
    assert timing.stdout is not None
    timing.stdout.readline()
    began = time.monotonic()
    n_writes = finish(timing).count("write")
    whole = time.monotonic() - began
    rng, path, n_midway = random.Random(n_kills), tmp_path / "killed", 0
    for n in range(n_kills):
        process = start(CHILD, path, docs)
        assert process.stdout is not None
        process.stdout.readline()
        if n % 2:  # anywhere
            time.sleep(rng.random() * whole)
        else:  # between two groups, however fast the machine is
            for _ in range(rng.randrange(1, n_writes)):
                process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        if path.exists():
            held = content(path)
            assert held <= want or all(h[0] in {w[0] for w in want} for h in held)
            n_midway += 0 < len(held) < len(want)
            if held == want:
                path = tmp_path / f"killed-{rng.randrange(10**9)}"
    finish(start(CHILD, path, docs))
    assert content(path) == want
    assert n_midway > 0


def test_killed_at_random_moments(tmp_path: Path) -> None:
    kill_many(tmp_path, 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_fifty_random_moments(tmp_path: Path) -> None:
    kill_many(tmp_path, 50)


def work_together(tmp_path: Path, seconds: float) -> None:
    docs, path = tmp_path / "docs", tmp_path / "ix"
    docs.mkdir()
    (docs / "seed.txt").write_text("seed writer says glacier")
    with foveate.open(path, create=True, encoders={"text": HashedWords()}) as engine:
        engine.add(docs)
    writers = [start(CHANGES, path, docs, n, seconds) for n in range(2)]
    readers = [start(READS, path, docs, seconds) for _ in range(4)]
    try:
        for process in [*readers, *writers]:
            finish(process)
    finally:
        for process in [*readers, *writers]:
            process.kill()
            process.communicate(timeout=60)
    with foveate.open(path, encoders={"text": HashedWords()}) as engine:
        engine.add(docs, prune=True)
        assert engine.check()["ok"]
        files = sorted(str(p) for p in docs.iterdir())
        assert sorted(u for s in engine.index.sources() for u in s.uris) == files


def test_two_write_and_four_search(tmp_path: Path) -> None:
    work_together(tmp_path, 6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_write_and_four_search_for_a_minute(tmp_path: Path) -> None:
    work_together(tmp_path, 60)
