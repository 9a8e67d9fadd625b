"""What a run makes of files that changed their kind, their settings, their place or their name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import foveate
from foveate.pipeline import changes, config, update
from foveate.pipeline.ingest import read
from foveate.pipeline.ingest.options import IngestOptions
from foveate.pipeline.testing import HashedWords
from foveate.pipeline.types import AddReport, Note

COUNTS = ("added", "changed", "unchanged", "moved", "removed", "empty", "skipped", "failed")


def make(path: Path, encoder: HashedWords | None = None, **settings: object) -> foveate.Engine:
    overrides = {f"ingest.{name}": value for name, value in settings.items()}
    return foveate.open(
        path,
        create=True,
        config=config.load(overrides=overrides),
        encoders={"text": encoder or HashedWords()},
    )


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def counts(report: AddReport) -> dict[str, int]:
    return {name: n for name in COUNTS if (n := getattr(report, f"n_{name}"))}


def problems(report: AddReport) -> dict[str, str]:
    return {os.path.basename(r.path): r.state for r in report.problems}


def held(engine: foveate.Engine) -> dict[str, list[str]]:
    """Return {uri: the texts of its source}."""
    found: dict[str, list[str]] = {}
    for source in engine.index.sources():
        for uri in source.uris:
            found.setdefault(uri, []).append(engine.text(source.id))
    return found


def rows(n: int, changed: int = -1) -> str:
    records = (
        {"text": f"Row {i}{' anew' if i == changed else ''} of the table."} for i in range(n)
    )
    return "".join(json.dumps(r) + "\n" for r in records)


BAD = {
    "empty.txt": b"",
    "copy of empty.txt": b"",
    "blank.csv": b"\n\n",
    "bad.pdf": b"%PDF-1.7\nnothing that follows\n",
    "copy of bad.pdf": b"%PDF-1.7\nnothing that follows\n",
    "cut.docx": b"PK\x03\x04 cut short",
    "._junk.txt": b"x",
    "latin.txt": "Größe und Maße über alles, schöne Grüße an Jörg. ".encode("cp1252") * 3,
    "half.jsonl": b'{"text": "a good row"}\nnot a row\n',
    "good.txt": b"Nothing is wrong with this one.",
}


def test_a_second_run_encodes_nothing_and_tells_the_same(tmp_path: Path) -> None:
    docs, encoder = tmp_path / "docs", HashedWords()
    for name, data in BAD.items():
        write(docs / name, data)
    with make(tmp_path / "ix", encoder) as engine:
        first = engine.add(docs)
        assert counts(first) == {"added": 3, "empty": 3, "skipped": 1, "failed": 3}
        assert set(problems(first)) == set(BAD) - {"good.txt"}
        n_encoded = encoder.n_encoded
        plan = engine.add(docs, dry_run=True)
        again = engine.add(docs)
        assert encoder.n_encoded == n_encoded
        assert problems(again) == problems(first) == problems(plan)
        assert counts(again) == counts(plan) == {"unchanged": 6, "skipped": 1, "failed": 3}


@pytest.mark.parametrize("refresh", [False, True])
def test_a_dry_run_counts_what_a_run_does(tmp_path: Path, refresh: bool) -> None:
    docs = tmp_path / "docs"
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        write(docs / name, f"This is {name} as it was.")
    with make(tmp_path / "ix") as engine:
        engine.add(docs)
        write(docs / "a.txt", "This is another text than there was before.")
        write(docs / "new.txt", "A new file.")
        write(docs / "none.txt", "")
        (docs / "b.txt").unlink()
        (docs / "c.txt").unlink()
        write(docs / "c.txt" / "inside.txt", "The name is a folder's now.")
        chosen = {"prune": True, "refresh": refresh}
        plan = engine.add(docs, dry_run=True, **chosen)
        assert counts(plan) == counts(engine.add(docs, **chosen))
        assert plan.n_removed == 2


def test_a_failed_file_that_becomes_readable_is_read(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    twins = [write(docs / name, b"%PDF-1.7\nno page\n") for name in ("a.pdf", "b.pdf")]
    with make(tmp_path / "ix") as engine:
        assert counts(engine.add(docs)) == {"failed": 2}
        for path in twins:
            write(path, "It is a text after all.")
        assert counts(engine.add(docs)) == {"added": 2}


def test_failed_twins_are_each_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "docs"
    for name in ("a.txt", "b.txt"):
        write(docs / name, "Words behind a lock.")
    real = read.read

    def locked(path: str, options: IngestOptions) -> object:
        raise read.LoadError("locked")

    with make(tmp_path / "ix") as engine:
        monkeypatch.setattr(read, "read", locked)
        assert counts(engine.add(docs)) == {"failed": 2}
        monkeypatch.setattr(read, "read", real)
        assert counts(engine.add(docs)) == {"added": 2}


def test_what_a_limit_cut_is_read_again_when_the_limit_changes(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    write(docs / "long.txt", "A sentence of the long text. " * 20)
    write(docs / "short.txt", "A short one.")
    with make(tmp_path / "ix", max_text_chars=100) as engine:
        assert problems(engine.add(docs)) == {"long.txt": "indexed"}
        assert counts(engine.add(docs)) == {"unchanged": 2}
    with make(tmp_path / "ix") as engine:
        assert counts(engine.add(docs, dry_run=True)) == {"changed": 1, "unchanged": 1}
        report = engine.add(docs)
        assert counts(report) == {"changed": 1, "unchanged": 1}
        assert not report.problems
        assert len(held(engine)[str(docs / "long.txt")][0]) == 580


@pytest.mark.parametrize(
    ("message", "limited"),
    [
        ("900 pages, cut at ingest.max_pages = 10", True),
        ("900 pages, cut at ingest.max_pages = 10000", False),
        ("OCR is off: ingest.ocr = 'never'", True),
        ("OCR is on: ingest.ocr = 'auto'", False),
        ("no such setting: ingest.nothing = 5", False),
        ("encoding guessed: cp1252", False),
    ],
)
def test_a_note_names_the_setting_that_cut(message: str, limited: bool) -> None:
    assert changes.is_limited([Note("truncated", message)], IngestOptions()) is limited


def test_a_folder_in_the_place_of_a_file_replaces_it(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    write(docs / "x", "Once a file.")
    with make(tmp_path / "ix") as engine:
        engine.add(docs)
        (docs / "x").unlink()
        write(docs / "x" / "y.txt", "Now a folder.")
        assert counts(engine.add(docs)) == {"added": 1, "removed": 1}
        assert list(held(engine)) == [str(docs / "x" / "y.txt")]


def test_prune_keeps_what_may_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    write(docs / "shut" / "a.txt", "Behind a door that is shut.")
    real = os.stat

    def refuse(path: object, *args: object, **named: object) -> os.stat_result:
        if isinstance(path, str) and path.startswith(str(docs / "shut" / "")):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **named)

    monkeypatch.setattr(os, "stat", refuse)
    assert not changes.is_gone(str(docs / "shut" / "a.txt"))
    assert changes.is_gone(str(docs / "nothing"))


def test_a_name_in_another_spelling_is_the_same_file_where_the_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = str(write(tmp_path / "Notes.txt", "x"))
    before = str(tmp_path / "notes.txt")
    monkeypatch.setattr(os.path, "samefile", lambda a, b: True)
    assert changes.folded(now) == changes.folded(before)
    assert changes.is_respelled(before, now)
    assert not changes.is_respelled(now, now)
    write(tmp_path / "notes.txt", "x")  # both are there: two names of one file
    assert not changes.is_respelled(before, now)


@pytest.mark.parametrize("names", [("docs", "docs"), ("docs", "docs/sub"), ("docs/sub", "docs")])
def test_paths_given_twice_or_nested_count_once(tmp_path: Path, names: tuple[str, str]) -> None:
    write(tmp_path / "docs" / "a.txt", "First.")
    write(tmp_path / "docs" / "sub" / "b.txt", "Second.")
    paths = [tmp_path / name for name in names]
    with make(tmp_path / "ix") as engine:
        assert counts(engine.add(*paths)) == {"added": 2}
        assert counts(engine.add(*paths)) == {"unchanged": 2}
        for path in (tmp_path / "docs").rglob("*.txt"):
            path.unlink()
        assert engine.add(*paths, prune=True, dry_run=True).n_removed == 2
        assert counts(engine.add(*paths, prune=True)) == {"removed": 2}


def test_one_file_by_two_paths_is_stored_once(tmp_path: Path) -> None:
    real = write(tmp_path / "docs" / "real" / "a.txt", "One file, two ways to it.")
    (tmp_path / "docs" / "link").symlink_to("real")
    (tmp_path / "docs" / "b.txt").symlink_to(real)
    encoder = HashedWords()
    with make(tmp_path / "ix", encoder) as engine:
        engine.add(tmp_path / "docs")
        assert encoder.n_encoded == 1
        (source,) = engine.index.sources()
        assert len(source.uris) == 3
        real.unlink()
        engine.add(tmp_path / "docs", prune=True)
        # the broken link is there still, and said to be broken
        assert held(engine) == {}
        assert [f.state for f in engine.files()] == ["skipped"]


def test_three_thousand_rows_of_which_one_changes(tmp_path: Path) -> None:
    path, encoder = tmp_path / "big.jsonl", HashedWords()
    write(path, rows(3000))
    with make(tmp_path / "ix", encoder) as engine:
        engine.add(path)
        assert encoder.n_encoded == 3000
        write(path, rows(3000, changed=1500))
        engine.add(path)
        assert encoder.n_encoded == 3001
        (file,) = engine.files()
        assert (file.n_sources, file.n_passages) == (3000, 3000)
        texts = held(engine)
        assert texts[f"{path}#row=1501"] == ["Row 1500 anew of the table."]
        assert len(texts) == 3000


def test_repeated_rows_are_one_source_and_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = "".join(json.dumps({"text": f"Pair {i // 2}."}) + "\n" for i in range(200))
    path = write(tmp_path / "pairs.jsonl", pairs)
    flushes: list[int] = []
    real = update.Update._flush
    monkeypatch.setattr(update.Update, "_flush", lambda self: (flushes.append(1), real(self))[1])
    for refresh in (False, True):
        with make(tmp_path / "ix") as engine:
            engine.add(path, refresh=refresh)
            (file,) = engine.files()
            assert (file.n_sources, file.n_passages) == (100, 100)
            assert len(held(engine)) == 200
    assert len(flushes) <= 4


def test_rows_of_two_files_live_as_long_as_one_holds_them(tmp_path: Path) -> None:
    shared = json.dumps({"text": "A row that two files hold."}) + "\n"
    one = write(tmp_path / "docs" / "one.jsonl", shared + rows(2))
    two = write(tmp_path / "docs" / "two.jsonl", rows(1) + "\n" + rows(4) + shared)
    with make(tmp_path / "ix") as engine:
        engine.add(tmp_path / "docs")
        one.unlink()
        engine.add(tmp_path / "docs", prune=True)
        hit = engine.search("A row that two files hold", k=1)[0]
        assert hit.passage.source.uris == (f"{two}#row=6",)


def test_an_interrupted_file_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, encoder = write(tmp_path / "big.jsonl", rows(60)), HashedWords()
    monkeypatch.setattr(update, "GROUP_PASSAGES", 10)
    real = read.read

    def cut(name: str, options: IngestOptions) -> object:
        for n, document in enumerate(real(name, options)):
            if n == 35:
                raise KeyboardInterrupt
            yield document

    monkeypatch.setattr(read, "read", cut)
    with make(tmp_path / "ix", encoder) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.add(path)
        assert [f.state for f in engine.files()] == ["partial"]
        assert engine.search("Row 5", k=1)
        monkeypatch.setattr(read, "read", real)
        engine.add(path)
        assert [(f.state, f.n_sources) for f in engine.files()] == [("indexed", 60)]
    assert encoder.n_encoded <= 60 + 10


def test_what_goes_wrong_in_writing_is_not_laid_on_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "GROUP_PASSAGES", 10)
    encoder = HashedWords()
    for n in range(3):
        write(tmp_path / "docs" / f"{n}.txt", f"Small file {n}.")
    write(tmp_path / "docs" / "z.jsonl", rows(40))

    class Broken(HashedWords):
        def encode(self, *args: object, **named: object) -> object:
            raise OSError(28, "No space left on device")

    with make(tmp_path / "ix", Broken()) as engine, pytest.raises(OSError, match="No space"):
        engine.add(tmp_path / "docs")
    with make(tmp_path / "ix", encoder) as engine:
        assert counts(engine.add(tmp_path / "docs")) == {"added": 4}


@pytest.mark.parametrize("change", ["grows", "shrinks", "goes"])
def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = write(tmp_path / "log.jsonl", rows(8))
    real = read.read

    def meddle(name: str, options: IngestOptions) -> object:
        for n, document in enumerate(real(name, options)):
            if n == 3 and change == "goes":
                path.unlink()
            elif n == 3:
                write(path, rows(12) if change == "grows" else rows(2))
            yield document

    with make(tmp_path / "ix") as engine:
        monkeypatch.setattr(read, "read", meddle)
        report = engine.add(path)
        assert any("changed while" in n.message for r in report.problems for n in r.notes)
        monkeypatch.setattr(read, "read", real)
        if change == "goes":
            assert counts(engine.add(path, prune=True)) == {"removed": 1}
            return
        engine.add(path)
        (file,) = engine.files()
        assert (file.n_sources, file.notes) == (12 if change == "grows" else 2, ())


def test_notes_of_a_file_are_bounded_and_name_their_row(tmp_path: Path) -> None:
    path = write(tmp_path / "blank.jsonl", '{"text": " "}\n' * 500 + '{"text": "Words."}\n')
    with make(tmp_path / "ix") as engine:
        (record,) = engine.add(path).problems
        assert len(record.notes) == update.MAX_NOTES + 1
        assert record.notes[0].message.startswith("row 1: ")
        assert str(500 - update.MAX_NOTES) in record.notes[-1].message


def test_a_huge_file_is_refused_before_it_is_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "sparse.txt", "The start of a text. " * 10_000)
    os.truncate(path, 1 << 40)
    monkeypatch.setattr(update, "digest_of", lambda path: pytest.fail("read through"))
    with make(tmp_path / "ix") as engine:
        (record,) = engine.add(path).problems
        assert "ingest.max_file_bytes" in record.notes[0].message


def test_the_same_bytes_under_another_kind_of_name_are_read_in_their_own_way(
    tmp_path: Path,
) -> None:
    table = "name,city\nAda,London\nKurt,Brno\n"
    for name in ("t.csv", "t.txt", "u.csv"):
        write(tmp_path / "docs" / name, table)
    with make(tmp_path / "ix") as engine:
        for _ in range(2):
            engine.add(tmp_path / "docs")
            names = sorted(os.path.basename(uri) for uri in held(engine))
            assert names == ["t.csv#row=1", "t.csv#row=2", "t.txt", "u.csv#row=1", "u.csv#row=2"]
