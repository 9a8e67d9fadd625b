"""Forty files that people really have, in one run: each is indexed or truly reported.

Where we differ from the manifest, which says what pypdf and Pillow alone made of a file:
hopper.heif is a picture here, imagemagick-images.pdf is read by OCR, and duplicate_xref_entry.pdf
opens but has two blank pages, so that it is empty.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import foveate
from foveate.pipeline import changes
from foveate.pipeline.testing import HashedWords

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"
FOLDER = Path(os.environ.get("FOVEATE_EVAL_DATA", BESIDE)) / "messy_docs"

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(
        not (FOLDER / "manifest.jsonl").exists(),
        reason="no messy_docs: set FOVEATE_EVAL_DATA to the folder of evaluation data",
    ),
]

REASONS = {
    "encrypted": r"encrypted",
    "error": r"empty|damaged|truncated",
    "refuse or cap": r"ingest\.max_\w+ = \d+|inflates beyond|cut at",
    "truncated": r"truncated",
}


def entries() -> list[dict[str, Any]]:
    if not (FOLDER / "manifest.jsonl").exists():
        return []
    lines = (FOLDER / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Index all files once, without the picture that OCR spends half a minute on."""
    encoders = {"text": HashedWords()}
    place = tmp_path_factory.mktemp("messy") / "ix"
    with foveate.open(place, create=True, encoders=encoders) as made:
        made.report = made.add(FOLDER / "files", exclude=["pport_g4.tif"])
        yield made


@pytest.fixture(scope="module")
def files(engine: Any) -> dict[str, Any]:
    return {os.path.basename(record.path): record for record in engine.files()}


def text_of(engine: Any, name: str) -> str:
    path = str(FOLDER / "files" / name)
    return "\n".join(engine.text(s.id) for s in engine.index.sources() if path in s.uris)


def wanted(entry: dict[str, Any]) -> str | None:
    """Return which reason the manifest calls for, None if the file is to be indexed."""
    if entry.get("encrypted") and entry.get("password"):
        return "encrypted"
    if "expect" in entry:
        return str(entry["expect"])
    return "truncated" if "pillow_load_error" in entry else None


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["file"])
def test_each_file_is_indexed_or_reported_truly(
    engine: Any, files: dict[str, Any], entry: dict[str, Any]
) -> None:
    name = entry["file"]
    if name == "pport_g4.tif":
        pytest.skip("read by test_a_fax_is_read")
    record, reason = files[name], wanted(entry)
    told = "; ".join(note.message for note in record.notes)
    if reason is None and entry.get("text_chars_first5") != 0:
        assert (record.state, record.n_passages > 0) == ("indexed", True)
    elif reason is None:
        assert record.state == "indexed" or "no text" in told
    else:
        assert record.state in ("failed", "empty")
        assert re.search(REASONS[reason], told)
    if record.state != "indexed":
        assert changes.is_noteworthy(record)
        assert record.path in {problem.path for problem in engine.report.problems}


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e["kind"] == "text"], ids=lambda entry: entry["file"]
)
def test_texts_are_decoded_as_the_manifest_says(engine: Any, entry: dict[str, Any]) -> None:
    found = " ".join(text_of(engine, entry["file"]).replace("\ufeff", "").split())
    first = " ".join(entry["first_chars"].replace("\ufeff", "").split())
    if entry["file"].endswith(".html"):  # of a page what is seen, not its tags
        first = " ".join(re.sub(r"<[^>]*>", " ", first).split())
    assert first in found


@pytest.mark.parametrize(
    "entry",
    [e for e in entries() if e.get("text_chars_first5", 0) > 200 and not e.get("password")],
    ids=lambda entry: entry["file"],
)
def test_pdfs_give_about_as_much_text_as_the_manifest_says(
    engine: Any, entry: dict[str, Any]
) -> None:
    text = text_of(engine, entry["file"])
    pages = text.split("\f")
    assert len(pages) == entry["pages"]
    n_chars = sum(len("".join(page.split())) for page in pages[:5])
    assert n_chars >= 0.7 * entry["text_chars_first5"]


def test_every_passage_stands_at_its_span(engine: Any) -> None:
    ids = range(1, engine.status()["passages"] + 1)
    checked = 0
    for passage in engine.index.passages(list(ids)):
        if passage.locator.span is not None:
            start, end = passage.locator.span
            assert engine.text(passage.source.id)[start:end] == passage.text
            checked += 1
    assert checked > 200


def test_a_second_run_reads_only_what_failed(engine: Any) -> None:
    again = engine.add(FOLDER / "files", exclude=["pport_g4.tif"])
    assert (again.n_encoded, again.n_added, again.n_changed) == (0, 0, 0)
    assert {p.path for p in again.problems} == {p.path for p in engine.report.problems}


def test_a_password_opens_what_was_encrypted(engine: Any, tmp_path: Path) -> None:
    from foveate.pipeline import config

    settings = config.load(overrides={"ingest.pdf_passwords": ["test"]})
    encoders = {"text": HashedWords()}
    with foveate.open(tmp_path / "ix", create=True, config=settings, encoders=encoders) as made:
        assert made.add(FOLDER / "files" / "password-example.pdf").n_added == 1


@pytest.mark.slow
def test_a_fax_is_read(tmp_path: Path) -> None:
    encoders = {"text": HashedWords()}
    with foveate.open(tmp_path / "ix", create=True, encoders=encoders) as made:
        assert made.add(FOLDER / "files" / "pport_g4.tif").n_added == 1
        (source,) = made.index.sources()
        assert len(made.text(source.id)) > 7000
