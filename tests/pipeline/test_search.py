"""Search over a small real index, and the fusion alone."""

from __future__ import annotations

import json
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.pipeline import search
from foveate.pipeline.errors import QueryError, SpaceMismatch
from foveate.pipeline.testing import HashedWords

ROWS = [
    ("a", "The cooling loop carries water past the reactor.", "pdf", 2019),
    ("b", "A wing of high aspect ratio bends under load.", "html", 2021),
    ("c", "Copper conducts heat better than steel does.", "pdf", 2023),
    ("d", "Привет, мир: река течёт к морю.", "note", 2020),
    ("e", "東京で猫が眠っている。", "note", 2020),
    ("f", "Use C++ or C# for the 3.5-inch drive, part AB-1234/7.", "note", 2018),
    ("g", "Café crème brûlée with naïve garnish.", "note", 2022),
    ("h", "The cooling loop carries water past the reactor!", "copy", 2024),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> foveate.Engine:
    base = tmp_path_factory.mktemp("search")
    rows = [{"_id": i, "text": t, "kind": k, "year": y} for i, t, k, y in ROWS]
    rows += [
        {"_id": f"n{n}", "text": f"Filler {n} cooling loop water.", "kind": "filler", "year": 1990}
        for n in range(150)
    ]
    (base / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    engine = foveate.open(base / "ix", create=True, encoders={"text": HashedWords()})
    engine.add(base / "rows.jsonl")
    return engine


def ids(hits: list[foveate.Hit]) -> list[str]:
    return [h.passage.metadata["_id"] for h in hits]


def test_hits_are_sorted_finite_and_unique(engine: foveate.Engine) -> None:
    for mode in ("hybrid", "dense", "words"):
        hits = engine.search("cooling loop", k=40, mode=mode)
        scores = [h.score for h in hits]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= s <= 1 and math.isfinite(s) for s in scores)
        assert len({h.passage.id for h in hits}) == len(hits)
        for hit in hits:
            assert set(hit.scores) == set(hit.ranks)
            assert set(hit.scores) <= {"dense", "words", "fusion"}
            assert ("fusion" in hit.scores) == (mode == "hybrid")
            assert hit.scores


def test_more_than_there_is_gives_what_there_is(engine: foveate.Engine) -> None:
    hits = engine.search("cooling loop", k=10_000, collapse=False)
    assert len(hits) == len(ROWS) + 150
    assert len({h.passage.id for h in hits}) == len(hits)


@pytest.mark.parametrize("k", [0, -1, True, 2.5, "3"])
def test_a_k_that_makes_no_sense_is_refused(engine: foveate.Engine, k: object) -> None:
    with pytest.raises(QueryError, match="k must be a whole number of at least 1"):
        engine.search("cooling", k=k)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "   ", "\x00\n", None])
def test_an_empty_query_is_refused(engine: foveate.Engine, text: str | None) -> None:
    with pytest.raises(QueryError, match="the query is empty"):
        engine.search(text)


def test_what_is_unknown_is_named(engine: foveate.Engine) -> None:
    with pytest.raises(QueryError, match="one of hybrid, dense, words, late, got 'fast'"):
        engine.search("x", mode="fast")
    with pytest.raises(QueryError, match="modality must be one of text, table, image, page"):
        engine.search("x", modality="video")
    with pytest.raises(QueryError, match="group must be 'source'"):
        engine.search("x", group="file")
    with pytest.raises(QueryError, match=r"cannot read the picture 'nowhere\.png'"):
        engine.search(image="nowhere.png")


def test_the_filter_comes_before_the_search(engine: foveate.Engine) -> None:
    # 150 nearer ones do not match; the one that does is still found
    for mode in ("hybrid", "dense", "words"):
        hits = engine.search("Filler cooling loop water", k=1, where="kind = 'pdf'", mode=mode)
        assert ids(hits) == ["a"]
    assert ids(engine.search("heat", k=5, where="kind = 'pdf' and year >= 2020")) == ["c"]
    assert engine.search("heat", where="kind = 'nothing'") == []
    with pytest.raises(QueryError):
        engine.search("heat", where="kind ==")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("река", "d"),
        ("РЕКА", "d"),
        ("猫", "e"),
        ("東京", "e"),
        ("C++", "f"),
        ("c#", "f"),
        ("3.5-inch", "f"),
        ("AB-1234/7", "f"),
        ("creme brulee", "g"),
        ("crème brûlée", "g"),
    ],
)
def test_words_of_any_script_are_found(engine: foveate.Engine, text: str, want: str) -> None:
    assert ids(engine.search(text, k=1, mode="words")) == [want]


@pytest.mark.parametrize(
    "text",
    [
        '"unbalanced',
        "(((",
        "a AND OR NOT",
        "title:* +x -y ~2 ^3",
        "NEAR/3",
        "*",
        "?",
        "\\",
        "' OR 1=1 --",
        "🦊",
        "a \ud800 b",
        "a" * 10_000,
        "word " * 2_000,
        "[1 TO 2]",
        "{",
        "/re.*/",
        "\u202e\u0000abc",
    ],
)
def test_any_query_is_taken_as_words(engine: foveate.Engine, text: str) -> None:
    for hit in engine.search(text, k=3):
        assert math.isfinite(hit.score)


def test_a_term_in_most_documents_still_counts(engine: foveate.Engine) -> None:
    hits = engine.search("cooling", k=5, mode="words")
    assert len(hits) == 5
    assert all(h.scores["words"] > 0 for h in hits)


def test_near_duplicates_are_folded(engine: foveate.Engine) -> None:
    text = "The cooling loop carries water past the reactor"
    whole = engine.search(text, k=2, collapse=False)
    assert set(ids(whole)) == {"a", "h"}
    folded = engine.search(text, k=2)
    assert len(folded[0].duplicates) >= 1
    assert set(ids(folded)) & {"a", "h"} == {ids(folded)[0]}


def test_group_gives_each_source_once(engine: foveate.Engine) -> None:
    hits = engine.search("cooling loop", k=20, group="source", collapse=False)
    assert len({h.passage.source.id for h in hits}) == 20


def test_eight_threads_find_what_one_finds(engine: foveate.Engine) -> None:
    queries = ["cooling loop", "copper heat", "река", "wing load"]
    want = [[h.passage.id for h in engine.search(q, k=5)] for q in queries]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(10):
            got = [[h.passage.id for h in engine.search(q, k=5)] for q in queries]
            if got != want:
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_another_encoder_is_refused_by_name(engine: foveate.Engine) -> None:
    other = foveate.open(engine.path, encoders={"text": HashedWords(name="other")})
    with other, pytest.raises(SpaceMismatch, match=r"hashed-words/64.*other/64"):
        other.search("cooling")


LISTS = st.dictionaries(
    st.sampled_from(["dense", "words"]),
    st.dictionaries(st.integers(1, 40), st.floats(-5, 5), max_size=30).map(search.ranked),
    max_size=2,
)


@given(lists=LISTS, fusion=st.sampled_from(["rrf", "score"]))
def test_fusion_keeps_every_candidate_and_its_range(
    lists: dict[str, dict[int, float]], fusion: str
) -> None:
    fused = search.fuse(lists, search.SearchOptions(fusion=fusion))  # type: ignore[arg-type]
    assert set(fused) == {i for some in lists.values() for i in some}
    values = list(fused.values())
    assert values == sorted(values, reverse=True)
    assert all(0 <= v <= 1 for v in values)


@given(LISTS)
def test_what_is_better_in_every_list_is_better_fused(lists: dict[str, dict[int, float]]) -> None:
    for fusion in ("rrf", "score"):
        fused = search.fuse(lists, search.SearchOptions(fusion=fusion))  # type: ignore[arg-type]
        order = {i: r for r, i in enumerate(fused)}
        shared = [i for i in fused if all(i in some for some in lists.values())]
        for a in shared:
            for b in shared:
                if all(some[a] > some[b] for some in lists.values()):
                    assert order[a] < order[b] or fused[a] == fused[b]


def test_first_in_every_list_scores_one() -> None:
    lists = {"dense": {1: 0.9, 2: 0.1}, "words": {1: 7.0, 3: 2.0}}
    fused = search.fuse(lists, search.SearchOptions(fusion="rrf"))
    assert fused[1] == pytest.approx(1.0)
    # by hand: 0.5/62 over (1/61)
    assert fused[2] == fused[3] == pytest.approx(0.5 * 61 / 62)


def test_scores_are_standardised_before_they_are_added() -> None:
    lists = {"dense": {1: 0.8, 2: 0.4}, "words": {2: 10.0, 3: 4.0}}
    fused = search.fuse(lists, search.SearchOptions(fusion="score", dense_weight=0.5))
    # dense z: 1 -> +1, 2 -> -1, 3 lacks -> -1; words z: 2 -> +1, 3 -> -1, 1 lacks -> -1
    assert fused[1] == pytest.approx(0.5)
    assert fused[2] == pytest.approx(0.5)
    assert fused[3] == pytest.approx(1 / (1 + math.e))


def test_pictures_alone_are_not_held_down_by_an_empty_list() -> None:
    fused = search.fuse({"words": {}, "picture": {5: 0.3, 4: 0.2}}, search.SearchOptions())
    assert list(fused) == [5, 4]
    assert fused[5] == pytest.approx(1.0)


def test_texts_and_pictures_alternate_and_a_picture_query_puts_pictures_first() -> None:
    lists = {"dense": {1: 0.9, 2: 0.8}, "picture": {8: 0.3, 9: 0.2}}
    options = search.SearchOptions()
    assert list(search.fuse(lists, options)) == [1, 8, 2, 9]
    assert list(search.fuse(lists, options, by_picture=True)) == [8, 9, 1, 2]


def test_a_page_with_words_counts_where_it_does_better() -> None:
    from foveate.pipeline.search import SearchOptions, fuse

    # 9 is a scanned page: the eighth by words, and one of two pictures
    lists = {
        "words": {i: 10.0 - i for i in (1, 2, 3, 4, 5, 6, 7, 9)},
        "dense": {i: 1.0 - i / 10 for i in (1, 2, 3, 4, 5, 6, 7, 9)},
        "picture": {8: 0.3, 9: 0.2},
    }
    fused = fuse(lists, SearchOptions())
    assert next(iter(fused)) == 1 or next(iter(fused)) == 8
    assert max(fused[1], fused[8]) > fused[9] > 0
