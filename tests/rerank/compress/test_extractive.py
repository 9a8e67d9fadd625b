"""Extractive compression, and the budget and structure that every compressor shares."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.pipeline.testing import (
    CompressorContract,
    check_context,
    count_words,
    hit_of,
    lend,
)
from foveate.rerank.compress.extractive import Extractive
from foveate.rerank.compress.units import cut

WING = "The wing's aspect ratio is limited by its weight."
TABLE = "| part | mass |\n| --- | --- |\n| spar | 12 kg |\n| rib | 3 kg |\n| skin | 40 kg |"
CODE = '''import math


def area(span, chord):
    """Return the wing's area."""
    return span * chord


def aspect_ratio(span, chord):
    return span * span / area(span, chord)


def unrelated(x):
    return math.sin(x)'''


def texts_of(context):
    return [
        k.hit.passage.text[a - k.hit.passage.locator.span[0] : b - k.hit.passage.locator.span[0]]
        for k in context.kept
        for a, b in k.spans
    ]


class TestExtractive(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return Extractive(lend())


COUNTERS = {
    "words": count_words,
    "characters": len,
    "bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
    "one more a text": lambda text: count_words(text) + 1,
    "uneven": lambda text: len(text) // 3 + text.count("e") * 2 + 1,
    "shrinks": lambda text: len(text) % 7 + 1,
}


@settings(max_examples=120, deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from('ab E.\n|{}":,é日😀-'), max_size=120), max_size=6),
    budget=st.integers(0, 80),
    counter=st.sampled_from(sorted(COUNTERS)),
)
def test_the_budget_holds_whatever_the_texts_and_the_way_of_counting(texts, budget, counter):
    hits = [hit_of(text, id=i) for i, text in enumerate(texts, start=1)]
    count = COUNTERS[counter]
    context = Extractive(lend()).compress("abE 日", hits, budget, count_tokens=count)
    check_context(context, hits, budget, count)
    words = [w for text in texts for w in text.split()]
    if words and counter not in ("shrinks",) and min(map(count, words)) <= budget:
        assert context.n_tokens > 0


def test_the_sentence_that_shares_the_question_is_kept():
    others = [f"Sentence {i} speaks of cooking pasta with oil." for i in range(30)]
    text = " ".join([*others[:15], WING, *others[15:]])
    context = Extractive(lend()).compress(
        "What limits the aspect ratio of the wing?", [hit_of(text)], 20, count_tokens=count_words
    )
    assert WING in texts_of(context)


def test_a_table_row_is_kept_with_its_header():
    hit = hit_of(TABLE, modality="table")
    context = Extractive(lend()).compress("mass of the rib", [hit], 22, count_tokens=count_words)
    kept = "\n".join(texts_of(context))
    assert "| rib | 3 kg |" in kept
    assert kept.startswith("| part | mass |")
    assert "skin" not in kept


def test_rows_of_a_table_cut_from_the_middle_have_their_header_in_the_context():
    hit = hit_of("| spar | 12 kg |\n| rib | 3 kg |", modality="table", title="| part | mass |")
    assert all(not unit.needs for unit in cut([hit], lend().sentences))


def test_items_of_a_json_list_stay_valid():
    rows = [{"name": f"part {i}", "mass": {"kg": i}} for i in range(20)]
    hit = hit_of(json.dumps(rows, indent=1))
    context = Extractive(lend()).compress("mass of part 7", [hit], 60, count_tokens=count_words)
    spans = texts_of(context)
    assert spans
    kept = [json.loads(span) for span in spans]
    assert rows[7] in kept


def test_an_object_larger_than_the_budget_keeps_whole_lines():
    hit = hit_of(json.dumps({f"key {i}": i for i in range(50)}, indent=1))
    context = Extractive(lend()).compress("key 3", [hit], 30, count_tokens=count_words)
    (kept,) = texts_of(context)
    assert 0 < context.n_tokens <= 30
    assert kept.endswith(",")


def test_code_is_kept_by_whole_functions():
    context = Extractive(lend()).compress(
        "aspect ratio of span and chord", [hit_of(CODE)], 40, count_tokens=count_words
    )
    kept = "\n\n\n".join(texts_of(context))
    assert "def aspect_ratio(span, chord):\n    return span * span / area(span, chord)" in kept
    assert set(kept.split("\n\n\n")) <= set(CODE.split("\n\n\n"))


def test_list_items_are_units():
    text = "Parts:\n- a spar of wood\n- a rib of steel\n- a skin of cloth"
    found = [unit.text for unit in cut([hit_of(text)], lend().sentences)]
    assert found == ["Parts:", "- a spar of wood", "- a rib of steel", "- a skin of cloth"]


def test_overlapping_passages_of_one_source_keep_a_place_once():
    whole = f"Birds glide. {WING} Pasta is boiled."
    start = whole.index(WING)
    hits = [
        hit_of(whole[: start + len(WING)], id=1, source_text=whole),
        hit_of(whole[start:], id=2, source_text=whole, start=start),
    ]
    for budget in (12, 20, 100):
        context = Extractive(lend()).compress(
            "the wing's aspect ratio", hits, budget, count_tokens=count_words
        )
        check_context(context, hits, budget, count_words)
        assert texts_of(context).count(WING) <= 1


def test_equal_texts_at_two_places_keep_their_own_spans():
    whole = f"{WING}\n\n{WING}"
    hits = [
        hit_of(WING, id=1, source_text=whole),
        hit_of(WING, id=2, source_text=whole, start=len(WING) + 2),
    ]
    context = Extractive(lend()).compress("wing", hits, 100, count_tokens=count_words)
    spans = [k.spans for k in context.kept]
    assert spans == [((0, len(WING)),), ((len(WING) + 2, len(whole)),)]


def test_pictures_without_text_stay():
    hits = [hit_of("", id=1, modality="image"), hit_of(f"{WING} Birds glide.", id=2)]
    context = Extractive(lend()).compress("wing", hits, 10, count_tokens=count_words)
    assert context.kept[0].hit == hits[0]
    assert context.kept[0].spans == ()
    assert context.kept[1].spans
