"""Each file of an index damaged in each way: mended, or named in one line. Never another result."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate.index.disk import DiskIndex
from foveate.index.lexical import Words, WordsWriter
from foveate.index.word_files import utf8_path
from foveate.pipeline.errors import FoveateError


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def scribble(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(64) + data[place + 64 :]


def found(path: Path, maker) -> list[list[tuple[int, str]]]:
    with DiskIndex.open(path) as index:
        lists = [
            index.search_words("common stone", 20)[1],
            index.search_words("wind", 20, where="year >= 2010")[1],
            index.search_vectors("text", maker.vector("stone 3 common")[None], 9)[1][0],
        ]
        return [sorted((p.id, p.text) for p in index.passages(ids)) for ids in lists]


@pytest.fixture
def whole(new_index, maker) -> Path:
    index = new_index()
    with index.writer() as writer:
        for i in range(12):
            text = f"{'stone' if i % 2 else 'wind'} {i} common"
            maker.put(writer, f"/{i}", text, metadata={"year": 2005 + i})
    with index.writer() as writer:
        writer.remove("/4")
    index.close()
    return index.path


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (k, d)
        for k in ("vectors", "words")
        for d in (cut, flip, scribble)
        if (k, d) != ("words", cut)
    ],
)
def test_damaged_vectors_and_words(
    whole: Path, maker, tmp_path: Path, kind: str, damage: Callable[..., bytes]
):
    want = found(whole, maker)
    for name in sorted(p.relative_to(whole) for p in whole.glob(f"{kind}/**/*") if p.is_file()):
        rng = random.Random(str(name))
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        data = (whole / name).read_bytes()
        (copy / name).write_bytes(damage(data, rng) if data else b"")
        if kind == "words":
            assert found(copy, maker) == want, name
            continue
        with pytest.raises(FoveateError, match="damaged") as error:
            found(copy, maker)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [cut, flip, scribble])
def test_a_damaged_catalogue_is_named_in_one_line(whole: Path, maker, tmp_path: Path, damage):
    data = (whole / "catalog.sqlite").read_bytes()
    for seed in range(8):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        (copy / "catalog.sqlite").write_bytes(damage(data, random.Random(seed)))
        said = ""
        try:
            found(copy, maker)
        except FoveateError as error:
            said = str(error)
        assert "\n" not in said


def test_what_is_deleted_stays_deleted_whatever_is_merged(tmp_path: Path):
    from foveate.index.lexical import WordDocument

    folder = tmp_path / "words"
    folder.mkdir()
    rng = random.Random(3)
    alive: set[int] = set()
    last = generation = 0
    for _ in range(4):
        writer = WordsWriter(folder)
        for _ in range(9):
            generation += 1
            gone = set(rng.sample(sorted(alive), min(len(alive), rng.randrange(5))))
            new = range(last + 1, last + 1 + rng.randrange(1, 9))
            last = new[-1]
            made = (WordDocument(i, i, 0, "", f"common {i}", "en") for i in new)
            writer.update(made, gone, generation, last)
            alive = alive - gone | set(new)
        # at times as a killed writer leaves it
        if rng.random() < 0.5:
            writer.close()
        del writer
        words = Words(folder)
        assert (words.generation, words.last, words.n) == (generation, last, len(alive))
        assert set(words.search("common", 10_000, ["en"])[1].tolist()) == alive


def test_a_list_of_deletions_that_a_killed_writer_left_is_no_hindrance(whole: Path, maker, caplog):
    (old,) = whole.glob("words/*/*.del")
    stem = old.name.split(".")[0]
    for opstamp in range(200):
        name = old.with_name(f"{stem}.{opstamp}.del")
        if name != old:
            name.write_bytes(b"left")
    with DiskIndex.open(whole) as index:
        with index.writer() as writer:
            writer.remove("/2")
        assert index.check()["ok"]
    assert "built anew" not in caplog.text


def test_a_path_that_is_not_utf8_is_linked(tmp_path: Path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff\xe4")
    os.mkdir(odd)
    path = utf8_path(Path(odd))
    path.encode("utf-8")
    assert os.path.samefile(path, odd)
    assert utf8_path(tmp_path) == str(tmp_path)
