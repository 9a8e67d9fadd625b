"""Word search in any script, with any query; BM25 on the evaluation sets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.index.lexical import MAX_QUERY_TERMS, WordDocument, Words, WordsWriter, query_groups
from foveate.index.terms import MAX_TERM_CHARS, analyser

DATA = Path(os.environ.get("FOVEATE_EVAL_DATA", Path(__file__).parents[3] / "shared" / "data"))


def build(folder: Path, documents: list[WordDocument]) -> Words:
    folder.mkdir(exist_ok=True)
    writer = WordsWriter(folder)
    writer.update(iter(documents), (), 1, len(documents))
    writer.close()
    return Words(folder)


TEXTS = [
    ("en", "The wings were running hot; C++ and C# code in node.js, see user_name."),
    ("en", "A 3.5-inch drive, part AB-1234/7, write to max.muster@example.org or call."),
    ("fr", "Les élèves étaient très fatigués à l'école, le résumé."),
    ("de", "Die Straßenbahnen fahren über große Brücken."),
    ("ru", "Быстрые машины ехали по зелёным улицам."),
    ("zh", "北京大学位于中国首都，是著名的高等学府。"),
    ("ja", "東京タワーでラーメンを食べました。"),
    ("th", "ประเทศไทยมีอาหารอร่อยมาก"),
    ("ar", "المدرسةُ الكبيرة في وسط المدينة"),
    ("hi", "मुझे हिन्दी फ़िल्में पसंद हैं"),
    ("el", "Η Αθήνα είναι μεγάλη πόλη"),
    ("ko", "서울에서 맛있는 김치를 먹었다"),
    ("he", "בית הספר הגדול בעיר"),
    ("en", "Party 🚀 tonight with 1,000 guests"),
    ("tr", "İstanbul'da ılık bir akşam"),
]
QUERIES = [
    ("wing run", 0), ("C++", 0), ("c#", 0), ("node.js", 0), ("node", 0), ("user_name", 0),
    ("user", 0), ("3.5-inch", 1), ("inch", 1), ("AB-1234/7", 1), ("1234", 1), ("ab-1234/7?", 1),
    ("max.muster@example.org", 1), ("muster", 1), ("eleve", 2), ("élève", 2), ("ELEVES", 2),
    ("ecole", 2), ("resume", 2), ("résumé", 2), ("Straßenbahn", 3), ("strassenbahnen", 3),
    ("grosse brucken", 3), ("машина", 4), ("зеленый", 4), ("зелёных", 4), ("北京", 5),
    ("首都", 5), ("著名学府", 5), ("東京タワー", 6), ("ラーメン", 6), ("ไทย", 7), ("อาหาร", 7),
    ("مدرسة", 8), ("المدينه", 8), ("हिन्दी", 9), ("फ़िल्में", 9), ("αθηνα", 10), ("ΜΕΓΑΛΗ", 10),
    ("김치", 11), ("서울", 11), ("הספר", 12), ("🚀", 13), ("1000 guests", 13), ("1,000", 13),
    ("istanbul", 14), ("ＡＢ-1234/7", 1), ("“wings” (running", 0), ("+wings AND -C++ OR \"", 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    documents = [WordDocument(i + 1, i + 1, 0, "", t, code) for i, (code, t) in enumerate(TEXTS)]
    return build(tmp_path_factory.mktemp("words") / "w", documents)


LANGUAGES = sorted({code for code, _ in TEXTS})


@pytest.mark.parametrize(("query", "row"), QUERIES, ids=[q for q, _ in QUERIES])
def test_found_in_every_script(words, query, row):
    scores, ids = words.search(query, 3, LANGUAGES)
    assert len(ids), query
    assert ids[0] == row + 1
    assert (scores > 0).all()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.sampled_from([
    "", " ", "\x00", '"', "(((", "AND OR NOT", "a" * 10_000, "field:x", "*", "~2", "[a TO b]",
    "\ud800", "的" * 10_000, " ".join(f"w{i}" for i in range(4000)), "\\", "'", "^", "\u0640", "ﷺ",
]))  # fmt: skip
def test_any_query_is_safe(words, text):
    scores, ids = words.search(text, 5, LANGUAGES)
    assert np.isfinite(scores).all()
    assert (np.diff(scores) <= 0).all()
    again = words.search(text, 5, LANGUAGES)
    assert again[1].tolist() == ids.tolist()


def test_a_long_query_is_capped_in_distinct_terms():
    text = " ".join(f"word{i}" for i in range(5000))
    assert len(query_groups(text, [analyser("en")])) == MAX_QUERY_TERMS


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_terms_have_no_space_and_are_short(text):
    for term in analyser("en").terms(text):
        assert term
        assert not any(c.isspace() for c in term)
        assert len(term) <= 2 * MAX_TERM_CHARS + 20


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(categories=["L", "N", "M", "P", "S", "Z"]), min_size=1))
def test_what_a_query_asks_for_is_in_a_text_that_says_it(text):
    cut = analyser("en")
    held = set(cut.terms(f"before {text} after"))
    for _, terms in cut.query_terms(text):
        assert held.issuperset(terms)


def test_stop_words_count_when_nothing_else_is_asked(tmp_path):
    texts = ["to be or not to be", "that is the question"]
    documents = [WordDocument(i, i, 0, "", text, "en") for i, text in enumerate(texts, 1)]
    found = build(tmp_path / "w", documents)
    assert found.search("to be or not to be", 2, ["en"])[1].tolist() == [1]
    assert found.search("what is the question", 2, ["en"])[1].tolist() == [2]


def test_a_word_in_half_of_the_documents_or_in_all_scores_above_zero(tmp_path):
    documents = [WordDocument(i, i, 0, "", "common" + " rare" * (i % 2), "en") for i in range(1, 9)]
    found = build(tmp_path / "w", documents)
    for query, n in (("common", 8), ("rare", 4)):
        scores, ids = found.search(query, 10, ["en"])
        assert len(ids) == n
        assert (scores > 0).all()
    # equals come in the order of their ids
    assert found.search("rare", 10, ["en"])[1].tolist() == [1, 3, 5, 7]


def test_titles_find_their_passages(new_index, maker):
    index = new_index()
    with index.writer() as w:
        maker.put(w, "/a", "nothing of note", title="Cooling loop")
        maker.put(w, "/b", "a cooling tower among other things")
    assert (
        index.passages(index.search_words("cooling loop", 1)[1])[0].source.title == "Cooling loop"
    )


def test_words_that_contradict_the_catalogue_are_built_anew(new_index, maker):
    index = new_index()
    with index.writer() as w:
        for i in range(5):
            maker.put(w, f"/{i}", f"text {i}")
    for path in index.path.glob("words/*/*"):
        path.write_bytes(b"garbage")
    index.close()
    from foveate.index.disk import DiskIndex

    with DiskIndex.open(index.path) as again:
        assert len(again.search_words("text", 9)[1]) == 5
        assert again.check()["ok"]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("cranfield", 0.3608), ("cacm", 0.5171),
        pytest.param("scifact", 0.6831, marks=pytest.mark.slow),
        pytest.param("climate_fever", 0.3566, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_bm25_alone_is_at_par_with_the_baseline(tmp_path, name, least):
    if not (DATA / name).is_dir():
        pytest.skip(f"no evaluation data at {DATA}")
    import ir_measures

    def lines(file: str) -> list[dict]:
        return [json.loads(s) for s in (DATA / name / file).read_text("utf-8").splitlines()]

    corpus = lines("corpus.jsonl")
    relevant: dict[str, dict[str, int]] = {}
    for line in (DATA / name / "qrels/test.tsv").read_text().splitlines()[1:]:
        query, document, gain = line.split("\t")
        relevant.setdefault(query, {})[document] = int(gain)
    found = build(tmp_path / "w", [
        WordDocument(i, i, 0, d.get("title", ""), d["text"], None) for i, d in enumerate(corpus)
    ])  # fmt: skip
    run = {}
    for query in lines("queries.jsonl"):
        scores, ids = found.search(query["text"], 100, [None])
        run[query["_id"]] = {corpus[i]["_id"]: float(s) for s, i in zip(scores, ids, strict=True)}
    run = {q: r for q, r in run.items() if q in relevant}
    value = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], relevant, run)
    assert value[ir_measures.nDCG @ 10] >= least
