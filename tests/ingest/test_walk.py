"""CASES rows 5 and 13: what is in folders that should not be opened, and names of any bytes."""

import os
import socket

import pytest

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.options import IngestOptions
from foveate.pipeline.ingest.read import read
from foveate.pipeline.ingest.walk import walk

JUNK = [
    "._IMG.JPG",
    ".DS_Store",
    "Thumbs.db",
    "~$report.docx",
    ".~lock.sheet.ods#",
    "desktop.ini",
    ".notes.md.swp",
]


def names(found):
    return [os.path.basename(f.path) for f in found]


def write(folder, *paths):
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("words")


@pytest.mark.parametrize("name", JUNK)
def test_a_junk_file_is_reported_and_not_to_be_opened(tmp_path, name):
    write(tmp_path, name, "real.txt")
    found = {os.path.basename(f.path): f.note for f in walk(tmp_path)}
    assert found["real.txt"] is None
    assert found[name].kind == "skipped"


def test_a_file_that_is_no_regular_one_is_reported(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.txt")
    monkeypatch.chdir(tmp_path)
    server = socket.socket(socket.AF_UNIX)
    server.bind("sock")
    os.symlink("/dev/zero", tmp_path / "zero.txt")
    write(tmp_path, "real.txt")
    notes = {os.path.basename(f.path): f.note for f in walk(tmp_path)}
    server.close()
    assert notes.pop("real.txt") is None
    assert "FIFO" in notes["pipe.txt"].message
    assert "socket" in notes["sock"].message
    assert "device" in notes["zero.txt"].message


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_read_refuses_what_became_special_after_the_walk(tmp_path, target):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError, match="not a regular file"):
        list(read(str(tmp_path / target), IngestOptions()))


def test_symlink_loops_end_and_are_reported(tmp_path):
    write(tmp_path, "a/b/deep.txt")
    os.symlink(tmp_path / "a", tmp_path / "a" / "b" / "up")
    os.symlink("self", tmp_path / "self")
    os.symlink("nowhere", tmp_path / "broken")
    found = list(walk(tmp_path))
    assert names(f for f in found if f.note is None) == ["deep.txt"]
    messages = [f.note.message for f in found if f.note]
    assert len(messages) == 3
    assert any("loop: it leads to a folder above" in m for m in messages)


def test_a_linked_folder_beside_is_followed(tmp_path):
    write(tmp_path, "in/one.txt", "out/two.txt")
    os.symlink(tmp_path / "out", tmp_path / "in" / "link")
    assert names(walk(tmp_path / "in")) == ["one.txt", "two.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_folders_and_files_are_reported(tmp_path):
    write(tmp_path, "closed/a.txt", "secret.txt", "open.txt")
    os.chmod(tmp_path / "closed", 0)
    os.chmod(tmp_path / "secret.txt", 0)
    found = {os.path.basename(f.path): f.note for f in walk(tmp_path)}
    os.chmod(tmp_path / "closed", 0o700)
    assert found["open.txt"] is None
    assert "cannot be read" in found["closed"].message
    assert "permission" in found["secret.txt"].message


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path, monkeypatch):
    write(tmp_path, "closed/a.txt", "open.txt")
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = {os.path.basename(f.path): f.note for f in walk(tmp_path)}
    assert found["open.txt"] is None
    assert "Permission denied" in found["closed"].message


NAMES = [
    b"line\nbreak.txt",
    b"bad\xff\xfeutf8.txt",
    "\U0001f600 emoji.txt".encode(),
    b"n" * 251 + b".txt",
    b"-rf.txt",
    b" lead and trail .txt",
    "\u00e4\u0308\u202e.txt".encode(),
    b"quote'\"$(x).txt",
    b"tab\there.txt",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_found_and_read(tmp_path, name):
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as handle:
        handle.write(b"some words")
    (found,) = walk(tmp_path)
    assert os.fsencode(found.path).endswith(name)
    (document,) = read(found.path, IngestOptions())
    assert document.text == "some words"


def test_patterns_hold_for_names_that_are_no_text(tmp_path):
    for name in NAMES:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as handle:
            handle.write(b"x")
    assert len(list(walk(tmp_path, include=["*.txt"]))) == len(NAMES)
    assert not list(walk(tmp_path, exclude=["*.txt"]))


def test_ignore_files_and_globs(tmp_path):
    write(tmp_path, "a.txt", "b.md", "logs/c.txt", "keep/d.log", "keep/e.log", "deep/x/f.txt")
    (tmp_path / ".gitignore").write_text("*.log\n/logs/\n")
    (tmp_path / "keep" / ".foveateignore").write_text("!e.log\n")
    ignored = {".gitignore", ".foveateignore"}
    assert set(names(walk(tmp_path))) - ignored == {"a.txt", "b.md", "e.log", "f.txt"}
    everything = set(names(walk(tmp_path, ignore_files=False))) - ignored
    assert everything == {"a.txt", "b.md", "c.txt", "d.log", "e.log", "f.txt"}
    assert names(walk(tmp_path, include=["*.md"])) == ["b.md"]
    assert set(names(walk(tmp_path, exclude=["deep/", "*.md"]))) - ignored == {"a.txt", "e.log"}
    # a file that is named itself is meant
    assert names(walk(tmp_path / "keep" / "d.log", exclude=["*.log"])) == ["d.log"]


def test_indexes_and_tool_folders_are_left_out(tmp_path):
    write(tmp_path, "notes.fov/x.txt", ".git/y.txt", "node_modules/z.js", "a.txt")
    write(tmp_path, "store/catalog.sqlite", "store/words/w", ".foveate/v")
    assert names(walk(tmp_path)) == ["a.txt"]


def test_order_is_that_of_the_names_and_each_file_comes_once(tmp_path):
    write(tmp_path, "b.txt", "a.txt", "c/d.txt", "c/a.txt")
    first = [f.path for f in walk([tmp_path, tmp_path / "c"])]
    assert first == [f.path for f in walk(str(tmp_path))]
    assert names(walk(tmp_path)) == ["a.txt", "b.txt", "a.txt", "d.txt"]


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(LoadError, match="no such file"):
        list(walk(tmp_path / "missing"))


def test_a_very_deep_folder_is_walked(tmp_path):
    folder = tmp_path
    for _ in range(150):
        folder = folder / "d"
    folder.mkdir(parents=True)
    (folder / "deep.txt").write_text("x")
    assert names(walk(tmp_path)) == ["deep.txt"]


def test_links_that_multiply_paths_end(tmp_path):
    n = 40
    for i in range(n):
        (tmp_path / f"d{i}").mkdir()
    (tmp_path / f"d{n - 1}" / "x.txt").write_text("x")
    for i in range(n - 1):
        for name in "ab":
            (tmp_path / f"d{i}" / name).symlink_to(f"../d{i + 1}")
    found = list(walk([tmp_path / "d0"]))
    assert 1 <= sum(item.note is None for item in found) <= 16
    assert len(found) < 50 * n
    assert any("other paths" in item.note.message for item in found if item.note)
