"""Clauses, what they hold, and what is known of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.pipeline.testing import HashedWords
from foveate.rerank.compress import features
from foveate.rerank.compress.clauses import asked, clauses, find
from foveate.rerank.compress.features import NAMES, Sentence, measure


def parts(text):
    return [text[a:b] for a, b in clauses(text, (0, len(text)))]


def test_clauses_part_at_commas_brackets_and_conjunctions():
    text = "Ada Lovelace (born 10 December 1815) was a mathematician, who wrote the first program."
    assert (
        parts(text)
        == [
            "Ada Lovelace (born 10 December 1815)",
            "was a mathematician,",
            "who wrote the first program.",
        ]
        or parts(text)[-1] == "who wrote the first program."
    )


def test_names_and_dates_with_a_comma_stay_whole():
    assert "in Austin, Texas, on July 4, 1976" in " ".join(
        parts("It was founded by two brothers in Austin, Texas, on July 4, 1976")
    )
    assert any("July 4, 1976" in part for part in parts("The town was founded on July 4, 1976"))
    assert any("Austin, Texas" in part for part in parts("She was born in Austin, Texas, in May"))
    assert any(
        "Simon and Garfunkel" in p for p in parts("The song was sung by Simon and Garfunkel")
    )


@given(st.text(st.sampled_from("ab A,;()-1. \né"), max_size=80))
def test_clauses_hold_every_character_that_is_not_blank_once_and_in_order(text):
    stripped = text.strip()
    start = text.find(stripped) if stripped else 0
    spans = clauses(text, (start, start + len(stripped)))
    assert all(a <= b for a, b in spans)
    assert [a for a, _ in spans] == sorted(a for a, _ in spans)
    held = "".join(text[a:b] for a, b in spans)
    assert "".join(held.split()) == "".join(stripped.split())


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("When was the author of Emma born?", "time"),
        ("In what year did the war end?", "time"),
        ("How many people live in Oslo?", "number"),
        ("Where is the Louvre?", "place"),
        ("Which county is Springfield in?", "place"),
        ("Who wrote Emma?", "person"),
        ("What is a wing made of?", "other"),
    ],
)
def test_what_a_question_asks_for(question, kind):
    assert asked(question) == kind


def test_what_a_clause_holds():
    found = find('In 1936 Ada Lovelace sold 12 copies of "The Engine" on July 4, 1940')
    assert {"1936", "july 4, 1940"} <= found.times
    assert "12" in found.numbers
    assert "ada lovelace" in found.names
    assert "the engine" in found.quoted
    assert "in" not in found.names


TITLES = ["Emma", "Jane Austen", "Pasta"]
SENTENCES = [
    (0, "Emma is a novel by Jane Austen."),
    (1, "She was born in Steventon in 1775."),
    (1, "Her father was a rector."),
    (2, "Pasta is boiled in salted water."),
]


def measured(question="Where was the author of Emma born?"):
    encoder = HashedWords()
    texts = [f"{TITLES[p]}: {text}" for p, text in SENTENCES]
    sentences = [Sentence(p, t, tuple(clauses(t, (0, len(t))))) for p, t in SENTENCES]
    return measure(
        question, TITLES, sentences, encoder.encode(texts), encoder.encode_queries([question])[0]
    )


def column(found, name):
    return found.features[:, NAMES.index(name)]


def test_a_passage_named_by_a_near_one_is_linked_and_spreads():
    found = measured()
    first = [int(np.flatnonzero(found.sentence == s)[0]) for s in range(len(SENTENCES))]
    link, spread = column(found, "link_in"), column(found, "spread")
    assert link[first[1]] > 0
    assert link[first[3]] == link[first[0]] == 0
    assert spread[first[1]] > spread[first[3]]


def test_features_are_finite_one_row_a_clause():
    found = measured()
    assert found.features.shape == (len(found.found), len(NAMES))
    assert np.isfinite(found.features).all()
    assert len(found.sentence) == len(found.found)


def test_what_the_question_says_is_no_answer_to_it():
    found = measured("Where was Jane Austen of Emma born?")
    assert not any("jane austen" in keys for keys in found.found)
    assert any("1775" in keys for keys in found.found)


def test_nothing_to_measure_gives_no_rows():
    empty = measure("Why?", [], [], np.zeros((0, 4), np.float32), np.ones(4, np.float32))
    assert empty.features.shape == (0, len(NAMES))
    assert len(set(features.NAMES)) == len(features.NAMES)
