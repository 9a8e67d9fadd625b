"""The library inside another program: odd folders, odd arguments, many hits."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from PIL import Image

import foveate
from foveate.pipeline import config, evidence, opening, search
from foveate.pipeline import query as queries
from foveate.pipeline.errors import FoveateError, IndexWriteError, QueryError, SpaceMismatch
from foveate.pipeline.testing import HashedWords


def make(path: Path, records: list[dict]) -> foveate.Engine:
    folder = path / "docs"
    folder.mkdir()
    lines = (json.dumps(record) for record in records)
    (folder / "r.jsonl").write_text("\n".join(lines), "utf-8")
    engine = foveate.open(path / "ix", create=True, encoders={"text": HashedWords()})
    engine.add(folder)
    return engine


def test_true_and_one_are_two_values_whichever_is_asked_first(tmp_path: Path) -> None:
    records = [
        {"_id": "a", "text": "stone one", "v": True},
        {"_id": "b", "text": "stone two", "v": 1},
        {"_id": "c", "text": "stone three", "v": "1"},
        {"_id": "d", "text": "stone four", "v": 0},
        {"_id": "e", "text": "stone five", "v": False},
    ]
    with make(tmp_path, records) as engine:
        for value, want in [
            ("true", "a"), ("1", "b"), ("'1'", "c"), ("0", "d"), ("false", "e"), ("1.0", "b"),
        ]:  # fmt: skip
            hits = engine.search("stone", where=f"v = {value}")
            assert [h.passage.metadata["_id"] for h in hits] == [want], value


def test_an_empty_folder_becomes_an_index_and_a_full_one_does_not(tmp_path: Path) -> None:
    encoders = {"text": HashedWords()}
    with foveate.open(tmp_path, create=True, encoders=encoders) as engine:
        assert engine.status()["passages"] == 0
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(IndexWriteError, match="something is there"):
        foveate.open(full, create=True, encoders=encoders)
    assert (full / "mine.txt").read_text() == "mine"


def test_many_may_create_one_index_at_once(tmp_path: Path) -> None:
    start = threading.Barrier(6)
    failed: list[BaseException] = []

    def work() -> None:
        start.wait()
        try:
            foveate.open(tmp_path / "ix", create=True, encoders={"text": HashedWords()}).close()
        except FoveateError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize(
    "asked",
    [
        {"text": 5}, {"text": b"stone"}, {"where": 5}, {"modality": []}, {"modality": 5},
        {"image": 5}, {"image": b"no picture"}, {"image": "/no/such/file.png"},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_told_in_one_line(asked: dict) -> None:
    with pytest.raises(QueryError) as error:
        queries.parse(**{"text": "stone"} | asked)
    assert "\n" not in str(error.value)


def test_a_question_for_no_passages_is_refused(tmp_path: Path) -> None:
    with make(tmp_path, [{"text": "A stone lies here."}]) as engine:
        for k in (0, -1, True):
            with pytest.raises(QueryError, match="at least 1"):
                engine.ask("What lies here?", k=k)


def test_a_picture_is_refused_where_none_can_be_compared(tmp_path: Path) -> None:
    with make(tmp_path, [{"text": "stone"}]) as engine:
        picture = Image.new("RGB", (8, 8))
        for text in (None, "stone"):
            with pytest.raises(QueryError, match="no encoder for pictures"):
                engine.search(text, image=picture)


def test_a_role_that_the_index_was_built_without_is_named(tmp_path: Path) -> None:
    make(tmp_path, [{"text": "stone"}]).close()
    more = {"text": HashedWords(), "image": HashedWords(name="other")}
    with (
        foveate.open(tmp_path / "ix", encoders=more) as engine,
        pytest.raises(SpaceMismatch, match="without a tower for 'image', but 'other/64"),
    ):
        engine.search("stone")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_object_is_asked_as_its_file_is(tmp_path: Path, orientation: int) -> None:
    picture = Image.new("RGB", (24, 16), (20, 30, 200))
    picture.paste((220, 10, 10), (0, 0, 8, 8))
    exif = picture.getexif()
    exif[0x0112] = orientation
    path = tmp_path / "p.png"
    picture.save(path, exif=exif)
    with Image.open(path) as opened:
        by_object = queries.parse(image=opened).image
    by_file = queries.parse(image=path).image
    assert by_object is not None
    assert by_file is not None
    assert by_object.size == by_file.size
    assert by_object.tobytes() == by_file.tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_a_picture_object_of_any_mode_has_the_colours_of_its_file(
    tmp_path: Path, mode: str
) -> None:
    kind = "jpg" if mode in ("CMYK", "YCbCr") else "png"
    base = Image.new("RGBA" if "A" in mode else "RGB", (16, 16), "orange")
    picture = Image.new("I;16", (16, 16), 40_000) if mode == "I;16" else base.convert(mode)
    if "A" in mode:
        picture.putalpha(60)
    path = tmp_path / f"p.{kind}"
    picture.save(path)
    with Image.open(path) as opened:
        by_object = queries.parse(image=opened).image
    by_file = queries.parse(image=path).image
    assert by_object is not None
    assert by_file is not None
    assert by_object.tobytes() == by_file.tobytes()


def test_folding_many_hits_takes_neither_memory_nor_a_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_COMPARED", 10)
    records = [{"text": f"stone {i % 40} {'abcdefgh'[i % 8]}", "n": i} for i in range(80)]
    with make(tmp_path, records) as engine:
        folded = engine.search("stone", k=500)
        every = engine.search("stone", k=500, collapse=False)
        assert len(every) == 80
        kept = [h.passage.id for h in folded]
        away = [i for h in folded for i in h.duplicates]
        assert sorted(kept + away) == sorted(h.passage.id for h in every)
        texts = [h.passage.text for h in folded]
        assert len(set(texts)) == len(texts)


def test_a_short_record_is_quoted_whole(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "t.csv").write_text("city,mayor\nAlder,Ann Lee\nBirch,Tom Ray\n")
    with foveate.open(tmp_path / "ix", create=True, encoders={"text": HashedWords()}) as engine:
        engine.add(folder)
        answer = engine.ask("Who is the mayor of the city of Birch?")
        assert answer.citations
        for c in answer.citations:
            assert c.span is not None
            assert engine.text(c.passage.source.id)[c.span[0] : c.span[1]] == c.quote
        assert "Tom Ray" in answer.citations[0].quote


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("a: b\nc: d", 1), ("a: b", 1), ("Note: this holds. That too.\nIt ends here.", 3),
        ("a: b\n\nc: d", 2), ("city: Birch\npopulation: 72000", 1),
    ],
)  # fmt: skip
def test_only_records_are_kept_in_one_piece(text: str, n: int) -> None:
    spans = evidence.pieces(text)
    assert len(spans) == n
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())


def test_what_is_removed_between_search_and_answer_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path, [{"text": "The stone weighs 40 tons."}]) as engine:
        found = engine._search

        def removing(*args: object, **options: object) -> list[foveate.Hit]:
            hits = found(*args, **options)
            engine.remove(tmp_path / "docs")
            return hits

        monkeypatch.setattr(engine, "_search", removing)
        answer = engine.ask("How heavy is the stone?")
        assert not answer.answered
        assert "left the index" in answer.trace["evidence"]["notes"][0]


def test_an_empty_question_is_told_from_an_empty_search(tmp_path: Path) -> None:
    with (
        foveate.open(tmp_path / "ix", create=True, encoders={"text": HashedWords()}) as ix,
        pytest.raises(QueryError, match="the question is empty"),
    ):
        ix.ask("  ")


def test_a_model_named_by_a_relative_path_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = config.load(
        overrides={"encoders.text.path": "model", "encoders.image.use": "none"},
    )
    kept = opening.built_with(settings)
    assert kept["encoders.text.path"] == str(tmp_path / "model")
    assert kept["encoders.text.use"] == "minilm"
