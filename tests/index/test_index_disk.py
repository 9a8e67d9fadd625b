"""What goes in comes out: passages, files, places, and what happens to them over time."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import tantivy

from foveate.index.disk import DiskIndex, Tower
from foveate.index.terms import analyser
from foveate.pipeline.errors import (
    IndexNotFound,
    IndexWriteError,
    QueryError,
    ShapeError,
    SpaceMismatch,
)
from foveate.pipeline.types import Box, Draft, Locator, Note, WordBoxes


def texts(index: DiskIndex, ids) -> list[str]:
    return [p.text for p in index.passages(ids)]


def test_passages_come_back_as_they_went_in(new_index, maker):
    index = new_index()
    text = "Grüße, 世界 🚀\nsecond \x00 line\f page two"
    words = WordBoxes(
        np.array([[0, 5], [7, 9]], np.int32), np.array([1, 1], np.int32),
        np.array([[0, 0, 0.1, 0.1], [0.2, 0.2, 0.3, 0.3]], np.float32),
    )  # fmt: skip
    document = maker.document(
        text, title="T\u00eftle", language="de", encoding="utf-8", page_starts=(0, 20), words=words,
        metadata={"_id": "1", "n": 2.5, "tags": ["a", "b"], "deep": {"x": None}},
    )  # fmt: skip
    boxes = (Box(0.1, 0.2, 0.30000000000000004, 0.4), Box(0, 0, 1, 1))
    drafts = [
        Draft("text", text[:13], Locator((0, 13), 1, boxes), "Title > Head"),
        Draft("table", text[14:], Locator((14, len(text)), 2, row=7)),
        Draft("image", "", Locator(page=2)),
    ]
    vectors = {
        "text": (np.array([1, 0]), np.stack([maker.vector("b"), maker.vector("a")])),
        "image": (np.array([2]), maker.vector("c")[None]),
    }
    with index.writer() as w:
        w.begin("/d/x.pdf", 9, 1_700_000_000_000_000_000, document.digest)
        w.add("/d/x.pdf", document, drafts, vectors, ["k1", None, "k3"])
        w.finish("/d/x.pdf", "indexed", (Note("ocr", "page 2", 2),))
    _, ids = index.search_vectors("text", maker.vector("a")[None], 5)
    found = index.passages(sorted(i for i in ids[0] if i >= 0))
    first, second = found
    assert (first.text, first.context, first.locator) == (
        text[:13], "Title > Head", Locator((0, 13), 1, boxes))  # fmt: skip
    assert (second.text, second.modality, second.locator.row) == (text[14:], "table", 7)
    assert first.source.metadata == document.metadata
    assert (first.source.title, first.source.language, first.source.n_pages) == ("Tïtle", "de", 2)
    assert first.source.uris == ("/d/x.pdf",)
    assert first.source.modified == 1_700_000_000
    assert index.source_text(document.source_id) == text
    back = index.word_boxes(document.source_id)
    assert (back.spans == words.spans).all()
    assert (back.boxes == words.boxes).all()
    assert index.find(first.label) == first
    assert index.find(str(second.id)) == second
    assert [p.number for p in index.neighbours(second, 1, 5)] == [0, 1, 2]
    stored = index.vectors([second.id, first.id, 10**9], "text")
    assert np.allclose(stored[:2], [maker.vector("b"), maker.vector("a")])
    assert np.isnan(stored[2]).all()
    record = next(index.files())
    assert record.notes == (Note("ocr", "page 2", 2),)
    assert (record.n_sources, record.n_passages) == (1, 3)


def test_a_long_text_is_cut_across_its_chunks(new_index, maker):
    index = new_index()
    text = "".join(chr(0x4E00 + i % 20_000) for i in range(100_000))
    spans = [(0, 10), (32_760, 32_780), (65_530, 100_000), (99_999, 100_000), (10, 70_000)]
    document = maker.document(text)
    drafts = [Draft("text", text[a:b], Locator((a, b))) for a, b in spans]
    with index.writer() as w:
        w.begin("/x", 1, 1, document.digest)
        w.add("/x", document, drafts, {})
        w.finish("/x", "indexed", ())
    assert texts(index, [1, 2, 3, 4, 5]) == [text[a:b] for a, b in spans]


def test_what_is_not_verbatim_or_does_not_fit_is_refused_and_nothing_stays(new_index, maker):
    index = new_index()
    document, good = maker.document("abc"), Draft("text", "abc", Locator((0, 3)))
    unit = maker.vector("abc")[None]
    bad = [
        ([Draft("text", "abd", Locator((0, 3)))], {}, ShapeError),
        ([Draft("text", "abc", Locator())], {}, ShapeError),
        ([good], {"text": ([0], unit[:, :-1])}, ShapeError),
        ([good], {"text": ([1], unit)}, ShapeError),
        ([good], {"text": ([0, 0], np.repeat(unit, 2, 0))}, ShapeError),
        ([good], {"text": ([0], unit * 2)}, ShapeError),
        ([good], {"text": ([0], unit * np.nan)}, ShapeError),
        ([good], {"sound": ([0], unit)}, SpaceMismatch),
    ]
    with index.writer() as w:
        w.begin("/x", 1, 1, document.digest)
        for drafts, vectors, error in bad:
            with pytest.raises(error):
                w.add("/x", document, drafts, vectors)
        w.finish("/x", "failed", (Note("failed", "no"),))
        with pytest.raises(IndexWriteError, match="was not begun"):
            w.add("/other", document, [good], {})
    assert (index.count(), list(index.sources())) == (0, [])


def test_replaced_moved_linked_and_removed_files(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "one\ntwo")
        maker.put(w, "/b", "three")
    first = index.search_words("two", 1)[1][0]
    with index.writer() as w:
        assert w.by_digest(w.file("/a").digest) == ["/a"]
        w.copy_file("/moved", 7, 5, "/a")
        w.remove("/a")
    assert index.search_words("two", 1)[1][0] == first
    assert index.passages([first])[0].source.uris == ("/moved",)
    with index.writer() as w:
        got = w.vectors_for([*maker.keys(maker.drafts("two")), "none"], "text")
        maker.put(w, "/moved", "two\nfour")
        assert [np.allclose(v, maker.vector("two")) for v in got.values()] == [True]
    assert index.passages([first]) == []
    assert len(index.search_words("one", 5)[1]) == 0
    assert sorted(texts(index, index.search_words("two four three", 9)[1])) == [
        "four", "three", "two"]  # fmt: skip
    with index.writer() as w:
        w.skip("/b", 1, 2, (Note("skipped", "now a socket"),), "skipped")
        assert not w.remove("/never")
    assert len(index.search_words("three", 5)[1]) == 0
    assert {r.path: r.state for r in index.files()} == {"/b": "skipped", "/moved": "indexed"}


def test_records_of_one_file_and_a_file_that_is_begun_only(new_index, maker):
    index = new_index()

    def add(w, text, row):
        document, drafts = maker.document(text, row=row), maker.drafts(text)
        if w.has_source(document.source_id):
            w.link("/r.jsonl", document.source_id, row)
        else:
            w.add("/r.jsonl", document, drafts, maker.vectors(drafts), maker.keys(drafts))

    with index.writer() as w:
        w.begin("/r.jsonl", 9, 1, "d" * 64)
        for row, text in enumerate(["same", "other", "same"], 1):
            add(w, text, row)
    record = next(index.files())
    assert (record.state, record.n_sources) == ("partial", 2)
    assert next(index.files("partial")).path == "/r.jsonl"
    with index.writer() as w:
        assert w.file("/r.jsonl").state == "partial"
        assert w.by_digest("d" * 64) == []
        w.begin("/r.jsonl", 9, 2, "e" * 64)
        add(w, "same", 1)
        add(w, "new", 2)
        w.finish("/r.jsonl", "indexed", ())
    assert sorted(p.text for p in index.passages([1, 2, 3])) == ["new", "same"]
    assert index.find(index.passages([1])[0].label).source.uris == ("/r.jsonl#row=1",)


def test_identical_content_is_one_source_with_every_place(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "same")
        maker.put(w, "/b", "same")
        maker.put(w, "/b", "same")
    assert index.count() == 1
    assert index.passages([1])[0].source.uris == ("/a", "/b")
    with index.writer() as w:
        w.remove("/a")
    assert index.passages([1])[0].source.uris == ("/b",)


def test_file_names_of_every_kind(new_index, maker):
    index = new_index()
    names = ["/d/a\nb", "/d/\udcff\udc80x", "/d/😀", "/d/" + "n" * 255, "/d/-x", "/d/%?#&", "/e/x"]
    with index.writer() as w:
        for i, name in enumerate(names):
            maker.put(w, name, f"text {i}")
    with index.writer() as w:
        assert {r.path for r in w.files_under("/d")} == set(names[:-1])
        assert [r.path for r in w.files_under("/d/a")] == []
        assert all(w.file(name).path == name for name in names)
    assert {u for s in index.sources() for u in s.uris} == set(names)
    assert index.count("path contains '\ufffd'") == 1


def test_k_of_every_kind(new_index, maker):
    index = new_index()
    query = maker.vector("q")[None]
    scores, ids = index.search_vectors("text", query, 3)
    assert ids.tolist() == [[-1, -1, -1]]
    with index.writer() as w:
        maker.put(w, "/a", "one\ntwo")
    scores, ids = index.search_vectors("text", query, 5)
    assert sorted(ids[0].tolist()) == [-1, -1, -1, 1, 2]
    assert np.isfinite(scores[0, :2]).all()
    assert np.isneginf(scores[0, 2:]).all()
    assert len(index.search_words("one two", 50)[1]) == 2
    for k in (0, -1, 1.5, True, None):
        with pytest.raises(QueryError, match="at least 1"):
            index.search_vectors("text", query, k)
        with pytest.raises(QueryError, match="at least 1"):
            index.search_words("one", k)
    for wrong in (query[0], query[:, :3], query * np.nan):
        with pytest.raises(ShapeError):
            index.search_vectors("text", wrong, 3)
    with pytest.raises(SpaceMismatch, match="has: text, image"):
        index.search_vectors("sound", query, 3)
    with pytest.raises(QueryError, match="modality is one of"):
        index.search_words("one", 3, modalities=["video"])


def test_relative_and_odd_paths_and_a_changed_folder(tmp_path, maker, monkeypatch):
    for name in ["plain", "ü ö 文", "with space", "q?x=1#f%20", "a'b\"c"]:
        monkeypatch.chdir(tmp_path)
        index = DiskIndex.create(name, towers=maker.towers, settings={"preset": "x"})
        monkeypatch.chdir("/")
        with index.writer() as w:
            maker.put(w, "/a", "hello")
        assert texts(index, index.search_words("hello", 1)[1]) == ["hello"]
        index.close()
        with DiskIndex.open(tmp_path / name) as again:
            assert again.settings == {"preset": "x"}
            assert again.towers == maker.towers
            assert again.count() == 1


def test_create_and_open_say_what_is_wrong(tmp_path, maker):
    with pytest.raises(IndexNotFound):
        DiskIndex.open(tmp_path / "none")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").touch()
    with pytest.raises(IndexWriteError, match="something is there"):
        DiskIndex.create(tmp_path / "full", towers=maker.towers, settings={})
    with pytest.raises(SpaceMismatch):
        DiskIndex.create(tmp_path / "y", towers={"a": Tower("b", "t", "s", 4)}, settings={})
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_removed_text_is_nowhere_after_compact(new_index, maker):
    index = new_index()
    secret = "zyxwvut wordsecret"
    with index.writer() as w:
        for i in range(20):
            maker.put(w, f"/k{i}", f"keep number {i}")
        maker.put(w, "/secretfile", secret, title="titlesecret", metadata={"m": "metasecret"})
    vector = maker.vector(secret).tobytes()
    compressed = zlib.compress(secret.encode(), 6)
    needles = [b"secretfile", b"titlesecret", b"metasecret", vector, compressed]
    before = b"".join(p.read_bytes() for p in index.path.rglob("*") if p.is_file())
    assert [needle for needle in needles if needle not in before] == []
    # the dictionary of terms is packed by tantivy: ask it
    term = analyser(None).terms("wordsecret")[0]
    old = [p.name for p in index.path.glob("words/*")]
    assert tantivy.Index.open(f"{index.path}/words/{old[0]}").searcher().doc_freq("body", term) == 1
    with index.writer() as w:
        w.remove("/secretfile")
    assert index.compact()["erased"]
    after = b"".join(p.read_bytes() for p in index.path.rglob("*") if p.is_file())
    assert [needle for needle in needles if needle in after] == []
    (new,) = (p.name for p in index.path.glob("words/*"))
    assert [new] != old
    assert tantivy.Index.open(f"{index.path}/words/{new}").searcher().doc_freq("body", term) == 0
    assert index.count() == 20
    assert index.check()["ok"]


def test_eight_threads_find_what_one_finds(new_index, maker):
    index = new_index()
    with index.writer() as w:
        for i in range(60):
            maker.put(w, f"/{i}", f"common word{i % 7}\nline {i}")
    queries = [f"common word{i % 7} line {i}" for i in range(40)]

    def ask(text):
        a, b = index.search_words(text, 10)
        c, d = index.search_vectors("text", maker.vector(text)[None], 10)
        return [x.tolist() for x in (a, b, c, d)], texts(index, b)

    alone = [ask(q) for q in queries]
    results: list = [None] * 8
    errors = []

    def work(n):
        try:
            results[n] = [ask(q) for q in queries]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(r == alone for r in results)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_opens_its_own(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello there")
    index.search_words("hello", 1)
    index.search_vectors("text", maker.vector("x")[None], 1)
    pid = os.fork()
    if pid == 0:
        ok = texts(index, index.search_words("hello", 1)[1]) == ["hello there"]
        ok = ok and index.search_vectors("text", maker.vector("x")[None], 1)[1][0, 0] == 1
        with index.writer() as w:
            maker.put(w, "/b", "from the child")
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert texts(index, index.search_words("child", 1)[1]) == ["from the child"]
    assert index.check()["ok"]


def test_labels_that_name_nothing_or_too_much(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "hello")
    for name in ("", "x", "12", "0123:9", "9" * 40, "abcd:" + "9" * 30, "%:1", "' or 1=1"):
        with pytest.raises(QueryError):
            index.find(name)
    with pytest.raises(QueryError, match="no source"):
        index.source_text("nope")


def test_many_small_commits_keep_few_segments(new_index, maker):
    index = new_index()
    for i in range(24):
        with index.writer() as w:
            maker.put(w, f"/{i}", f"text {i}")
            if i % 3 == 0:
                w.remove(f"/{i - 3}")
    status = index.status()
    assert status["towers"]["text"]["segments"] <= 17
    assert index.check()["ok"]
    for i in (1, 23):
        _, ids = index.search_vectors("text", maker.vector(f"text {i}")[None], 1)
        assert texts(index, ids[0]) == [f"text {i}"]


def test_nothing_is_pickled_anywhere():
    root = Path(__file__).parents[2] / "index"
    for path in root.glob("*.py"):
        source = path.read_text("utf-8")
        for word in (
            "import pickle",
            "allow_pickle=True",
            "np.load(",
            "marshal",
            "shelve",
            "eval(",
        ):
            assert word not in source, (path.name, word)


def test_a_files_first_label_opens_its_first_passage(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/d/a.txt", "one\ntwo")
        maker.put(w, "/d/twin.txt", "one\ntwo")
        maker.put(w, "/d/\udcff.txt", "three")
        maker.put(w, "/d/empty.txt", "")
        rows = [(row, maker.document(f"row {row}", row=row)) for row in (2, 1)]
        w.begin("/d/rows.csv", 9, 10**18, "0" * 64)
        for _, document in rows:
            drafts = maker.drafts(document.text)
            w.add("/d/rows.csv", document, drafts, maker.vectors(drafts), maker.keys(drafts))
        w.finish("/d/rows.csv", "indexed", ())
    for path, text in (("/d/a.txt", "one"), ("/d/\udcff.txt", "three"), ("/d/rows.csv", "row 1")):
        assert index.find(index.first_label(path)).text == text
    assert index.first_label("/d/twin.txt") == index.first_label("/d/a.txt")
    assert index.first_label("/d/empty.txt") is None
    assert index.first_label("/d/nothing.txt") is None
