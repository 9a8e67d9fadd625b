import dataclasses
from pathlib import Path

import numpy as np
import pytest

from foveate.encoders.minilm import MiniLM
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.protocols import Resources
from foveate.pipeline.types import Hit, Locator, Passage, Source
from foveate.rerank.late import Late

TEXTS = [
    "The castle was built by the count of Flanders in 1180.",
    "Bread rises because yeast makes gas.",
    "Gravel and sand are sold by weight.",
    "Yeast is a fungus; it ferments sugar into gas and alcohol, and so dough rises.",
]


def hits(texts, context=""):
    source = Source("0" * 32, ("/a",), "text/plain", "text", 1, 0.0)
    return [
        Hit(
            Passage(i + 1, i, source, "text", t, Locator((0, len(t))), context), 0.5, {"dense": 0.1}
        )
        for i, t in enumerate(texts)
    ]


def resources(text):
    def none(*_):
        raise AssertionError("not needed")

    known = {f.name: none for f in dataclasses.fields(Resources)}
    return Resources(**known | {"encoders": {"text": text}, "index": None, "folder": Path()})


@pytest.fixture(scope="module")
def late():
    return Late(resources(MiniLM(dtype="fp32", device="cpu")))


@pytest.mark.models
def test_scores_are_the_formula(late):
    asked = late.encoder.encode_queries(["why does bread rise"])
    stored = late.encoder.encode(TEXTS)
    weights = np.linalg.norm(asked.vectors, axis=1)
    want = [(asked.vectors @ stored[i].T).max(1).sum() / weights.sum() for i in range(len(TEXTS))]
    np.testing.assert_allclose(late.score("why does bread rise", hits(TEXTS)), want, atol=1e-5)


@pytest.mark.models
def test_the_better_match_comes_first_and_scores_are_kept(late):
    found = late.rerank("why does bread rise", hits(TEXTS), 3)
    assert found[0].passage.id == 2
    assert len(found) == 3
    for hit in found:
        assert hit.scores["dense"] == 0.1
        assert hit.score == pytest.approx((hit.scores["late"] + 1) / 2)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.models
@pytest.mark.parametrize("texts", [[], ["..."], ["", "."], ["same words"] * 3])
def test_nothing_to_match_and_ties(late, texts):
    found = late.rerank("what? ever", hits(texts), 10)
    assert [h.passage.id for h in found] == list(range(1, len(texts) + 1))
    assert all(0 <= h.score <= 1 for h in found)


@pytest.mark.models
def test_a_query_without_words_ranks_all_alike(late):
    assert {h.score for h in late.rerank("", hits(TEXTS), 10)} == {0.0}


@pytest.mark.models
def test_the_order_of_hits_does_not_matter(late):
    some = hits(TEXTS)
    a, b = late.rerank("sugar", some, 9), late.rerank("sugar", some[::-1], 9)
    assert [h.passage.id for h in a] == [h.passage.id for h in b]


@pytest.mark.models
def test_explain_names_words_of_the_passage(late):
    hit = hits([TEXTS[3]], context="On baking")[0]
    query = "fungus in dough"
    found = late.explain(query, hit)
    pairs = {query[slice(*m.asked)]: m.found and hit.passage.text[slice(*m.found)] for m in found}
    assert pairs["fungus"] == "fungus"
    assert pairs["dough"] == "dough"
    assert sum(m.share for m in found) == pytest.approx(
        float(late.score(query, [hit])[0]), abs=1e-5
    )


@pytest.mark.models
def test_a_match_in_the_title_is_not_a_place_in_the_text(late):
    hit = hits(["It was warm."], context="Castles")[0]
    assert late.explain("castles", hit)[0].found is None


def test_an_encoder_without_token_vectors_is_named():
    class Plain:
        tower = "plain@1"

    with pytest.raises(ConfigError, match=r"plain@1.*late-minilm"):
        Late(resources(Plain())).rerank("x", hits(TEXTS), 1)
