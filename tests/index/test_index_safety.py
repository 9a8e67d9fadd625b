"""The disk is full, the folder read-only, the format another, the lock held, a file damaged."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from foveate.index import catalog
from foveate.index.disk import DiskIndex
from foveate.pipeline.errors import (
    ConfigError,
    CorruptIndex,
    IndexLocked,
    IndexVersionError,
    IndexWriteError,
)


def test_only_the_owner_can_read_any_of_it(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello")
    index.compact()
    for path in (index.path, *index.path.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        # whatever tantivy and SQLite make, it stands in folders that nobody else can enter
        assert mode & 0o077 == 0 or (path.is_file() and path.parent != index.path.parent), path
        if path.is_dir():
            assert mode == 0o700, path


def run_child(code: str, *args: object, limit: int | None = None):
    def prepare():
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True,
        preexec_fn=prepare, check=False, timeout=120,
    )  # fmt: skip


FILL = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("maker", sys.argv[2])
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
from foveate.index.disk import DiskIndex
from foveate.pipeline.errors import IndexWriteError
index = DiskIndex.open(sys.argv[1])
n = 0
try:
    for group in range(400):
        with index.writer() as w:
            for i in range(40):
                text = "\\n".join(f"common line {group} {i} {j}" for j in range(20))
                module.Maker().put(w, f"/g{group}/{i}", text)
        n = group + 1
except IndexWriteError as error:
    print(n, error)
"""


@pytest.mark.parametrize("limit", [300_000, 700_000])
def test_a_full_disk_is_named_and_the_last_commit_stands(new_index, maker, limit):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/first", "common first")
    here = Path(__file__).with_name("conftest.py")
    child = run_child(FILL, index.path, here, limit=limit)
    assert child.returncode == 0, child.stderr
    n, _, message = child.stdout.partition(" ")
    assert "the disk is full" in message or "the words" in message, child.stdout
    assert index.check()["ok"] or "behind" in str(index.check())
    with index.writer() as w:  # the limit was the child's: here there is room again
        maker.put(w, "/last", "common last")
    assert index.check()["ok"], index.check()
    files = {f.path for f in index.files()}
    assert {"/first", "/last"} <= files
    groups = {f.split("/")[1] for f in files if f.startswith("/g")}
    assert len(groups) in (int(n), int(n) + 1)
    assert len(files) == 2 + 40 * len(groups)


def look(path: Path, query, say) -> None:
    """What a process that may only read does with the index; `say` gets one line."""
    with DiskIndex.open(path) as index:
        words = index.search_words("hello", 3)[1].tolist()
        near = index.search_vectors("text", query, 1, where="year > 1")[1].tolist()
        say(f"{words} {near} {index.passages(words)[0].text} {index.check()['ok']}\n")
        try:
            with index.writer():
                say("not refused")
        except IndexWriteError as error:
            say(f"refused: {error}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "with a log beside it"])
def test_a_folder_that_may_only_be_read_is_searched(new_index, maker, closed, tmp_path):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello there")
    index.search_words("hello", 1)
    index.search_vectors("text", maker.vector("x")[None], 1)
    if closed:
        index.close()
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o055)
    before = {p: p.read_bytes() for p in index.path.rglob("*") if p.is_file()}
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            look(index.path, maker.vector("x")[None], lambda text: os.write(writer, text.encode()))
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert said.startswith("[1] [[1]] hello there True\nrefused: could not write"), said
    assert {p: p.read_bytes() for p in index.path.rglob("*") if p.is_file()} == before


def test_a_second_writer_waits_or_says_who_holds_it(new_index, maker):
    index = new_index()
    other = DiskIndex.open(index.path)
    with index.writer():
        with pytest.raises(IndexLocked, match=rf"process {os.getpid()} on .* since 2"):
            other.writer().__enter__()
        with pytest.raises(IndexLocked), other.writer(timeout_s=0.15):
            pass
        assert other.count() == 0
    with other.writer(timeout_s=5) as w:
        maker.put(w, "/a", "hello")
    assert index.count() == 1
    other.close()


def test_a_killed_holder_frees_the_lock(new_index):
    index = new_index()
    code = (
        "import sys, time; from foveate.index.disk import DiskIndex\n"
        "with DiskIndex.open(sys.argv[1]).writer(): print('in', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(index.path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "in\n"
    with pytest.raises(IndexLocked, match=f"process {child.pid} "):
        index.writer().__enter__()
    child.kill()
    child.communicate()
    with index.writer():
        pass


def test_a_newer_format_is_refused_and_an_older_migrated_with_a_backup(
    new_index, maker, monkeypatch
):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello")
    index.close()
    path = index.path
    db = sqlite3.connect(path / "catalog.sqlite")
    db.execute("PRAGMA user_version = 99")
    with pytest.raises(IndexVersionError, match=r"format 99 .* upgrade foveate"):
        DiskIndex.open(path)
    db.execute("PRAGMA user_version = 1")
    db.close()
    monkeypatch.setattr(catalog, "FORMAT", 2)
    monkeypatch.setattr("foveate.index.disk.FORMAT", 2)
    with pytest.raises(IndexVersionError, match="cannot bring"):
        DiskIndex.open(path)
    monkeypatch.setitem(
        catalog.MIGRATIONS, 1, lambda db: db.execute("ALTER TABLE files ADD COLUMN added TEXT")
    )
    with DiskIndex.open(path) as again:
        assert again.count() == 1
        assert again.status()["format"] == 2
        with again.writer() as w:
            maker.put(w, "/b", "more")
    backup = sqlite3.connect(path / "catalog.sqlite.v1.bak")
    assert backup.execute("PRAGMA user_version").fetchone() == (1,)
    assert backup.execute("SELECT count(*) FROM files").fetchone() == (1,)
    backup.close()
    with DiskIndex.open(path) as again:
        again.compact()
    assert not list(path.glob("*.bak"))


def test_damaged_files_are_named(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello")
    (segment,) = index.path.glob("vectors/*/*.seg")
    data = segment.read_bytes()
    segment.write_bytes(data[:-4] + b"\0\0\x80\x3f")
    report = index.check()
    assert not report["ok"]
    assert segment.name in report["problems"][0]
    segment.write_bytes(data[:-8])
    index.close()
    with DiskIndex.open(index.path) as again:
        with pytest.raises(CorruptIndex, match="damaged"):
            again.search_vectors("text", maker.vector("x")[None], 1)
        assert len(again.search_words("hello", 1)[1]) == 1  # the rest works
    (index.path / "catalog.sqlite").write_bytes(b"not a database at all" * 500)
    with pytest.raises(CorruptIndex):
        DiskIndex.open(index.path)


def test_a_failed_change_leaves_the_others_of_the_group(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "kept")
        document = maker.document("x\ny")
        with pytest.raises(sqlite3.Error):
            w.begin("/b", "no number", object(), "d")
        w.begin("/b", 1, 1, document.digest)
        w.finish("/b", "empty", ())
    assert {f.path: f.state for f in index.files()} == {"/a": "indexed", "/b": "empty"}
    assert index.check()["ok"]


def test_an_error_of_the_caller_stays_what_it_is_and_undoes_the_group(new_index, maker):
    index = new_index()

    def fail():
        with index.writer() as w:
            maker.put(w, "/a", "hello")
            raise FileNotFoundError("theirs")

    with pytest.raises(FileNotFoundError, match="theirs"):
        fail()
    assert index.count() == 0
    with index.writer() as w:
        assert w.file("/a") is None


def test_what_a_dead_writer_left_is_swept(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello")
    folder = next(index.path.glob("vectors/*"))
    for name in ("00000009-dead.seg", "00000009-dead.seg.new", "x.faiss.new"):
        (folder / name).write_bytes(b"x")
    (index.path / "words" / "77").mkdir()
    with index.writer():
        pass
    assert len(list(folder.iterdir())) == 1
    assert [p.name for p in index.path.glob("words/*")] == ["1"]


def test_unknown_options_are_named(tmp_path, maker):
    for options, message in [
        ({"kind": "magic"}, "auto, flat, hnsw"),
        ({"knd": "flat"}, "has no option 'knd'"),
        ({"m": "x"}, "expected int"),
    ]:
        with pytest.raises(ConfigError, match=message):
            DiskIndex.create(tmp_path / "x", towers=maker.towers, settings={}, **options)
    assert not (tmp_path / "x").exists()


def test_status_is_json(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello", language="en")
    assert json.loads(json.dumps(index.status())) == index.status()
