"""What the index holds after any sequence of changes to a folder."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import foveate
from foveate.pipeline.errors import FoveateError
from foveate.pipeline.testing import HashedWords

WORDS = [
    "cooling",
    "loop",
    "wing",
    "aspect",
    "river",
    "bridge",
    "copper",
    "lemon",
    "piano",
    "orbit",
]


def make(path: Path, encoder: HashedWords | None = None) -> foveate.Engine:
    return foveate.open(path, create=True, encoders={"text": encoder or HashedWords()})


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def contents(engine: foveate.Engine) -> dict[str, set[str]]:
    """Return {path: the source ids it holds}, read from the index."""
    held: dict[str, set[str]] = {}
    for source in engine.index.sources():
        for uri in source.uris:
            held.setdefault(uri.split("#row=")[0], set()).add(source.id)
    return held


def texts(engine: foveate.Engine) -> dict[str, list[str]]:
    """Return {path: its canonical texts}."""
    return {path: sorted(engine.text(i) for i in ids) for path, ids in contents(engine).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    for n in range(6):
        write(docs / f"note{n}.txt", f"Note {n} is about {WORDS[n]} and {WORDS[n + 1]}.")
    rows = [{"_id": str(n), "text": f"Record {n}: {WORDS[n]}.", "year": 2000 + n} for n in range(8)]
    write(docs / "records.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    return docs


def test_twice_the_same_folder_encodes_nothing(tmp_path: Path, folder: Path) -> None:
    encoder = HashedWords()
    with make(tmp_path / "ix", encoder) as engine:
        first = engine.add(folder)
        assert (first.n_added, first.n_sources, first.n_passages) == (7, 14, 14)
        assert encoder.n_encoded == 14
        again = engine.add(folder)
        assert again.n_unchanged == 7
        assert (again.n_encoded, again.n_passages) == (0, 0)
        assert encoder.n_encoded == 14


def test_a_touched_file_is_not_encoded_again(tmp_path: Path, folder: Path) -> None:
    encoder = HashedWords()
    with make(tmp_path / "ix", encoder) as engine:
        engine.add(folder)
        for path in folder.iterdir():
            os.utime(path, (1, 1))
        assert engine.add(folder).n_unchanged == 7
        assert encoder.n_encoded == 14


def test_an_edited_file_loses_its_old_passages(tmp_path: Path, folder: Path) -> None:
    with make(tmp_path / "ix") as engine:
        engine.add(folder)
        write(folder / "note0.txt", "Now it speaks of zeppelins.")
        report = engine.add(folder)
        assert (report.n_changed, report.n_unchanged) == (1, 6)
        assert engine.search("zeppelins", k=1)[0].passage.source.name == "note0.txt"
        assert texts(engine)[str(folder / "note0.txt")] == ["Now it speaks of zeppelins."]
        assert not any("Note 0" in h.passage.text for h in engine.search("Note 0 cooling", k=20))


def test_one_edited_record_encodes_one_record(tmp_path: Path, folder: Path) -> None:
    encoder = HashedWords()
    with make(tmp_path / "ix", encoder) as engine:
        engine.add(folder)
        before = {
            h.passage.metadata["_id"]: h.passage.id
            for h in engine.search("Record", k=20)
            if "_id" in h.passage.metadata
        }
        lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
        lines[3] = json.dumps({"_id": "3", "text": "Record 3 is new: zeppelin."}) + "\n"
        write(folder / "records.jsonl", "".join(lines))
        report = engine.add(folder)
        assert report.n_encoded == 1
        after = {
            h.passage.metadata["_id"]: h.passage.id
            for h in engine.search("Record", k=20)
            if "_id" in h.passage.metadata
        }
        assert {k: v for k, v in after.items() if k != "3"} == {
            k: v for k, v in before.items() if k != "3"
        }
        assert after["3"] not in before.values()


def test_a_moved_file_keeps_its_vectors(tmp_path: Path, folder: Path) -> None:
    encoder = HashedWords()
    with make(tmp_path / "ix", encoder) as engine:
        engine.add(folder)
        ids = {h.passage.id for h in engine.search("note", k=50)}
        (folder / "sub").mkdir()
        (folder / "note1.txt").rename(folder / "sub" / "renamed.txt")
        report = engine.add(folder)
        assert report.n_moved == 1
        assert encoder.n_encoded == 14
        assert str(folder / "note1.txt") not in texts(engine)
        assert str(folder / "sub" / "renamed.txt") in texts(engine)
        assert {h.passage.id for h in engine.search("note", k=50)} == ids


def test_copies_are_stored_once_and_both_listed(tmp_path: Path, folder: Path) -> None:
    with make(tmp_path / "ix") as engine:
        engine.add(folder)
        shutil.copy(folder / "note2.txt", folder / "copy.txt")
        engine.add(folder)
        hit = engine.search("Note 2 wing aspect", k=1)[0]
        assert set(hit.passage.source.uris) == {str(folder / "note2.txt"), str(folder / "copy.txt")}
        (folder / "note2.txt").unlink()
        assert engine.add(folder, prune=True).n_removed == 1
        hit = engine.search("Note 2 wing aspect", k=1)[0]
        assert hit.passage.source.uris == (str(folder / "copy.txt"),)


def test_deleted_files_go_only_with_prune(tmp_path: Path, folder: Path) -> None:
    with make(tmp_path / "ix") as engine:
        engine.add(folder)
        (folder / "note4.txt").unlink()
        assert engine.add(folder).n_removed == 0
        assert str(folder / "note4.txt") in texts(engine)
        assert engine.add(folder, prune=True).n_removed == 1
        assert str(folder / "note4.txt") not in texts(engine)


def test_prune_reaches_no_further_than_the_paths(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "docs-other"
    write(other / "x.txt", "Elsewhere.")
    with make(tmp_path / "ix") as engine:
        engine.add(folder, other)
        shutil.rmtree(other)
        assert engine.add(folder, prune=True).n_removed == 0
        assert engine.add(other, prune=True).n_removed == 1


def test_dry_run_says_what_would_be_done(tmp_path: Path, folder: Path) -> None:
    with make(tmp_path / "ix") as engine:
        assert engine.add(folder, dry_run=True).n_added == 7
        assert list(engine.files()) == []
        engine.add(folder)
        write(folder / "note0.txt", "Something longer than it was before, surely.")
        (folder / "note1.txt").unlink()
        plan = engine.add(folder, dry_run=True, prune=True)
        assert (plan.n_changed, plan.n_removed, plan.n_unchanged) == (1, 1, 5)
        assert str(folder / "note1.txt") in texts(engine)


def test_a_bad_file_is_reported_and_the_rest_goes_on(tmp_path: Path, folder: Path) -> None:
    (folder / "bad.pdf").write_bytes(b"%PDF-1.7\nnothing that follows\n")
    (folder / "cut.docx").write_bytes(b"PK\x03\x04 cut short")
    (folder / "empty.txt").write_bytes(b"")
    with make(tmp_path / "ix") as engine:
        report = engine.add(folder)
        assert report.n_added == 7
        assert report.n_failed + report.n_skipped == 2
        assert report.n_empty == 1
        states = {os.path.basename(f.path): f for f in engine.files()}
        for name in ("bad.pdf", "cut.docx"):
            assert states[name].state in ("failed", "skipped")
            assert states[name].notes[0].message
        assert states["empty.txt"].state == "empty"
        assert {os.path.basename(p.path) for p in report.problems} == {
            "bad.pdf",
            "cut.docx",
            "empty.txt",
        }


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with make(tmp_path / "ix") as engine, pytest.raises(FoveateError, match="no file or folder"):
        engine.add(tmp_path / "nowhere")


def test_remove_by_path_folder_and_label(tmp_path: Path, folder: Path) -> None:
    with make(tmp_path / "ix") as engine:
        engine.add(folder)
        assert engine.remove(folder / "note0.txt") == 1
        label = engine.search("Note 1 loop wing", k=1)[0].passage.label
        assert engine.remove(label) == 1
        with pytest.raises(FoveateError, match="not in the index"):
            engine.remove(folder / "note0.txt")
        assert engine.remove(folder) == 5
        assert engine.search("note", k=5) == []


ACTIONS = ("edit", "new", "delete", "move", "copy", "restore", "records")


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8))
def test_random_changes_give_exactly_the_folders_content(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str]
) -> None:
    base = tmp_path_factory.mktemp("random")
    docs, rng, trash = base / "docs", random.Random(seed), []
    for n in range(3):
        write(docs / f"{n}.txt", f"File {n} {' '.join(rng.sample(WORDS, 3))}.")
    with make(base / "ix") as engine:
        engine.add(docs, prune=True)
        for step in steps:
            act(step, docs, rng, trash)
            engine.add(docs, prune=True)
            assert texts(engine) == expected(docs)
            known = {t for some in texts(engine).values() for t in some}
            for hit in engine.search(rng.choice(WORDS), k=50, collapse=False):
                start, end = hit.passage.locator.span or (0, 0)
                source = engine.text(hit.passage.source.id)
                assert source in known
                assert source[start:end] == hit.passage.text


def expected(docs: Path) -> dict[str, list[str]]:
    want = {}
    for path in sorted(docs.rglob("*")):
        if path.suffix == ".txt":
            want[str(path)] = [path.read_text(encoding="utf-8")]
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            want[str(path)] = sorted({r["text"] for r in rows})
    return want


def act(step: str, docs: Path, rng: random.Random, trash: list[tuple[Path, bytes]]) -> None:
    files = sorted(p for p in docs.rglob("*.txt"))
    fresh = docs / rng.choice(["", "a", "b"]) / f"{rng.randrange(10**9)}.txt"
    if step == "records":
        rows = [{"text": f"Row about {rng.choice(WORDS)}"} for _ in range(rng.randint(1, 5))]
        write(docs / "r.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    elif step == "new" or not files:
        write(fresh, f"Fresh {' '.join(rng.sample(WORDS, 4))}.")
    elif step == "restore" and trash:
        path, data = trash.pop()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    else:
        chosen = rng.choice(files)
        if step == "edit":
            write(chosen, f"Edited {rng.randrange(1000)} {rng.choice(WORDS)}.")
        elif step == "delete":
            trash.append((chosen, chosen.read_bytes()))
            chosen.unlink()
        elif step in ("move", "copy"):
            fresh.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(chosen, fresh)
            if step == "move":
                chosen.unlink()


class EnglishWords(HashedWords):
    languages = frozenset({"en"})


def test_a_foreign_text_under_an_english_encoder_is_warned_of(tmp_path: Path) -> None:
    write(
        tmp_path / "docs" / "en.txt", "The bridge over the river was built of stone and iron. " * 4
    )
    with make(tmp_path / "ix", EnglishWords()) as engine:
        assert engine.add(tmp_path / "docs").warnings == []
        german = "Die Brücke über den Fluss wurde aus Stein und Eisen gebaut und hält noch heute. "
        write(tmp_path / "docs" / "de.txt", german * 4)
        (warning,) = engine.add(tmp_path / "docs").warnings
        assert "1 source is in a language" in warning
        assert "(1 de)" in warning
    with make(tmp_path / "ix2") as engine:
        assert engine.add(tmp_path / "docs").warnings == []


def test_a_record_that_moves_is_found_at_its_new_row(tmp_path: Path, folder: Path) -> None:
    encoder = HashedWords()
    with make(tmp_path / "ix", encoder) as engine:
        engine.add(folder)
        lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
        first = json.dumps({"_id": "new", "text": "A record about zeppelins."}) + "\n"
        write(folder / "records.jsonl", first + "".join(reversed(lines)))
        assert engine.add(folder).n_encoded == 1
        for hit in engine.search("Record", k=20, where="_id >= '0'"):
            row = hit.passage.locator.row
            text = (folder / "records.jsonl").read_text().splitlines()[(row or 0) - 1]
            assert json.loads(text)["text"] == hit.passage.text
            assert hit.passage.source.uri.endswith(f"#row={row}")


def test_the_files_that_say_what_to_ignore_are_not_indexed(tmp_path: Path, folder: Path) -> None:
    write(folder / ".foveateignore", "note0.txt\n")
    write(folder / ".gitignore", "note1.txt\n")
    with make(tmp_path / "ix") as engine:
        report = engine.add(folder)
        names = {os.path.basename(file.path) for file in engine.files()}
        assert names == {"note2.txt", "note3.txt", "note4.txt", "note5.txt", "records.jsonl"}
        assert report.problems == []
