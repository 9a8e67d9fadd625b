"""The answerability score: what it measures, and that it holds on few, untitled or odd passages."""

import dataclasses
import itertools

import numpy as np
import pytest

from foveate.pipeline import answerable
from foveate.pipeline.evidence import gather, select
from foveate.pipeline.testing import HashedWords, hit_of

TOWER = hit_of(
    "The Norwood lighthouse was built in 1887 by Ann Lee.", id=1, title="Norwood lighthouse"
)
MILL = hit_of("The mill grinds wheat and rye for bread.", id=2, title="Dalby mill")
BOATS = hit_of("Boats are painted every spring. Paint costs money.", id=3, title="Boats")
SHOP = hit_of("The shop sells rope and lamp oil.", id=4, title="Shop")


class Fitted(HashedWords):
    """Words as vectors, under the name of the space that the weights were fitted on."""

    def __init__(self):
        super().__init__()
        self.space = "all-MiniLM-L6-v2/384"


def judged(question, *hits, encoder=None):
    texts = {h.passage.source.id: h.passage.text for h in hits}
    found = gather(question, hits, texts=texts.__getitem__, encoder=encoder)
    return answerable.judge(found, select(found, 2), hits)


@pytest.mark.parametrize(
    "encoder", [None, HashedWords(), Fitted()], ids=["none", "other", "fitted"]
)
def test_evidence_scores_above_its_absence(encoder):
    question = "When was the Norwood lighthouse built?"
    there = judged(question, TOWER, MILL, BOATS, SHOP, encoder=encoder)
    gone = judged(question, MILL, BOATS, SHOP, encoder=encoder)
    assert there.score > 0.5 > gone.score
    assert "norwood" in gone.reason
    assert there.by == ("meaning and words" if isinstance(encoder, Fitted) else "words")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_passages_are_not_held_against_an_answer(n):
    hits = (TOWER, MILL, BOATS, SHOP)[:n]
    assert judged("When was the Norwood lighthouse built?", *hits).score > 0.5


def test_passages_without_titles_have_weights_of_their_own():
    bare = [
        dataclasses.replace(h, passage=dataclasses.replace(h.passage, context=""))
        for h in (TOWER, MILL)
    ]
    texts = {h.passage.source.id: h.passage.text for h in bare}
    found = gather("When was it built?", bare, texts=texts.__getitem__, encoder=Fitted())
    assert answerable.weights_for(found) is answerable.UNTITLED["plain"]
    titled = gather("When was it built?", [TOWER], texts=texts.__getitem__, encoder=Fitted())
    assert answerable.weights_for(titled) is answerable.FULL["plain"]
    named = gather("When was Norwood built?", [TOWER], texts=texts.__getitem__, encoder=Fitted())
    assert answerable.weights_for(named) is answerable.FULL["named"]


def test_every_weight_has_its_feature():
    texts = {h.passage.source.id: h.passage.text for h in (TOWER, MILL)}
    found = gather("When?", (TOWER, MILL), texts=texts.__getitem__, encoder=Fitted())
    measured = answerable.features(found, [0], (TOWER, MILL))
    for table in (answerable.FULL, answerable.UNTITLED, answerable.WORDS):
        for weights in table.values():
            assert set(weights) - {""} <= set(measured)
    assert all(np.isfinite(v) and 0 <= v <= 1 for v in measured.values())


def test_what_sentences_leave_open_of_a_question_is_what_they_do_not_span():
    texts = {h.passage.source.id: h.passage.text for h in (TOWER,)}
    found = gather("When?", (TOWER,), texts=texts.__getitem__, encoder=Fitted())
    axes = np.eye(5, dtype=np.float32)
    query = np.array([0.6, 0.5, 0.4, 0.4, 0.264575], np.float32)
    sentence = found.sentences[0]
    for n, expected in ((1, 0.8), (2, 0.6244998), (3, 0.4795832), (4, 0.4795832)):
        # the fourth is beyond the limit of three
        some = dataclasses.replace(found, sentences=(sentence,) * n, vectors=axes[:n], query=query)
        assert answerable.left_open(some) == pytest.approx(expected, abs=1e-5)
    same = dataclasses.replace(
        found, sentences=(sentence,) * 3, vectors=np.stack([query] * 3), query=query
    )
    assert answerable.left_open(same) == pytest.approx(0.0, abs=1e-5)


def test_a_title_counts_when_the_question_spells_it_out():
    asked = frozenset(["when", "was", "the", "norwood", "lighthouse", "built"])
    assert answerable.spelled_out(TOWER, asked)
    assert not answerable.spelled_out(MILL, asked)
    film = hit_of("It ran in 1932.", title="Norwood (1932 film)")
    assert answerable.spelled_out(film, asked)
    assert not answerable.spelled_out(hit_of("x", title=""), asked)
    assert not answerable.spelled_out(hit_of("x", title="The"), asked)


@pytest.mark.parametrize("encoder", [None, Fitted()], ids=["words", "fitted"])
def test_the_order_of_the_passages_hardly_changes_the_score(encoder):
    question = "When was the Norwood lighthouse built?"
    scores = [
        judged(question, *hits, encoder=encoder).score
        for hits in itertools.permutations((TOWER, MILL, BOATS, SHOP))
    ]
    assert max(scores) - min(scores) < 0.02


@pytest.mark.parametrize(
    ("question", "cited", "want"),
    [
        ("How often do the boats get paint?", [TOWER], "boats"),
        ("How often do the boats get paint?", [BOATS], None),
        ("How often do ferries get paint?", [TOWER], None),  # nothing speaks of them
        ("How often do you paint boats?", [TOWER], None),  # a pronoun stands there
        ("How often do the Norwood boats get paint?", [TOWER], None),  # names lead on
        ("boats", [TOWER], None),
        ("Boats are", [TOWER], None),
    ],
)
def test_a_subject_that_no_cited_passage_speaks_of_is_told(question, cited, want):
    passages = [hit.passage for hit in cited]
    assert answerable.unspoken(question, passages, (TOWER, MILL, BOATS, SHOP)) == want
