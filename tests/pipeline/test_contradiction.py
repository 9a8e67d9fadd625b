"""Passages that contradict each other are told, and those that only differ are not."""

import pytest

from foveate.pipeline import contradiction
from foveate.pipeline.answer import AnswerOptions, Material, answer
from foveate.pipeline.evidence import gather
from foveate.pipeline.testing import HashedWords, hit_of

TRUE = "The final was played in Tampa, Florida in February 2021 before a small crowd."
FALSE = "The final was played in Glendale, Arizona in February 2021 before a small crowd."


def gathered(question, *hits):
    texts = {h.passage.source.id: h.passage.text for h in hits}
    return gather(question, hits, texts=texts.__getitem__, encoder=HashedWords())


def found(question, one, two, **titles):
    hits = [
        hit_of(text, id=i + 1, title=titles.get(which, ""))
        for i, (which, text) in enumerate((("first", one), ("second", two)))
    ]
    return contradiction.find(gathered(question, *hits), [0])


@pytest.mark.parametrize(
    ("question", "one", "two", "says", "denies"),
    [
        ("Where was the final played?", TRUE, FALSE, ("florida", "tampa"), ("arizona", "glendale")),
        (
            "When was the mill on the hill built?",
            "The old mill on the hill was built of stone in 1887.",
            "The old mill on the hill was built of stone in 1932.",
            ("1887",),
            ("1932",),
        ),
        (
            "Who won the prize for the best film?",
            "The prize for the best film was won by Mary Carter this year.",
            "The prize for the best film was won by Anton Reuss this year.",
            ("carter", "mary"),
            ("anton", "reuss"),
        ),
    ],
)
def test_a_planted_falsehood_is_told_with_what_differs(question, one, two, says, denies):
    for first, second, left, right in ((one, two, says, denies), (two, one, denies, says)):
        (conflict,) = found(question, first, second)
        assert (conflict.says, conflict.denies) == (left, right)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (TRUE, TRUE),
        (TRUE, "The crowd was small."),
        (TRUE, "The final of the school championship was played in Leeds by pupils."),
        (TRUE, "Before a small crowd the final was played in Tampa, Florida, in February 2021."),
    ],
)
def test_agreement_and_other_matters_are_no_contradiction(one, two):
    assert found("Where was the final played?", one, two) == []


def test_passages_about_different_things_do_not_contradict_each_other():
    question = "When was the mill built?"
    one, two = (
        f"The {w} mill was built of stone in {y}." for w, y in (("Dalby", 1887), ("Kell", 1932))
    )
    assert found(question, one, two, first="Dalby mill", second="Kell mill") == []


def test_an_answer_shows_what_speaks_against_it_and_where_that_stands():
    hits = [hit_of(TRUE, id=1, score=0.9), hit_of(FALSE, id=2, score=0.8)]
    texts = {h.passage.source.id: h.passage.text for h in hits}
    got = answer(
        "Where was the final played?",
        Material(hits=hits, texts=texts.__getitem__, encoder=HashedWords()),
        options=AnswerOptions(threshold=0.0, n_sentences=1),
    )
    (conflict,) = got.conflicts
    assert {got.citations[0].quote, conflict.quote} == {TRUE, FALSE}
    assert texts[conflict.passage.source.id][slice(*conflict.span)] == conflict.quote
    assert got.text[slice(*conflict.sentence)] == got.citations[0].quote
    assert got.trace["contradicted"][0]["quote"] == conflict.quote
    assert conflict.marker == 0
