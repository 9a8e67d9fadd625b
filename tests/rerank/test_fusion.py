"""Fusion over real features of made-up lists: order, ties, gates, fitting."""

import dataclasses
import json

import numpy as np
import pytest

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.testing import HashedWords, hit_of, lend
from foveate.rerank import fusion, fusion_fit
from foveate.rerank.features import NAMES, Evidence, features
from foveate.rerank.fusion import Fusion, Weights, attend, kind_of
from foveate.rerank.terms import stem

TEXTS = [
    ("Payment on Demand", "Payment on Demand is a 1951 film directed by Curtis Bernhardt."),
    ("Curtis Bernhardt", "Curtis Bernhardt was a German film director who died in 1981."),
    ("Boiling eggs", "An egg boils in eight minutes and is then peeled under cold water."),
    ("The Third Man", "The Third Man is a film of 1949 directed by Carol Reed in Vienna."),
]
QUESTION = "When did the director of Payment on Demand die?"


class Vectors:
    """An index that knows its passages' vectors only."""

    def __init__(self, hits, encoder):
        texts = [f"{h.passage.context}\n{h.passage.text}" for h in hits]
        self._rows = dict(zip((h.passage.id for h in hits), encoder.encode(texts), strict=True))

    def vectors(self, ids, role):
        assert role == "text"
        return np.stack([self._rows[i] for i in ids])


def made(texts=TEXTS, **options):
    hits = [
        dataclasses.replace(
            hit_of(text, id=i, title=title, score=0.9 - i / 50), scores={"words": 9.0 - i}
        )
        for i, (title, text) in enumerate(texts, start=1)
    ]
    encoder = HashedWords()
    lent = lend(hits, index=Vectors(hits, encoder), encoders={"text": encoder})
    return hits, Fusion(lent, **options)


def test_the_passage_that_the_first_names_rises():
    hits, reranker = made([TEXTS[0], TEXTS[2], TEXTS[3], TEXTS[1]])
    found = reranker.rerank(QUESTION, hits, 4)
    assert {h.passage.context for h in found[:2]} == {"Payment on Demand", "Curtis Bernhardt"}


def test_scores_fall_and_stay_within_bounds():
    hits, reranker = made()
    found = reranker.rerank(QUESTION, hits, 3)
    assert len(found) == 3
    scores = [h.score for h in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < s < 1 for s in scores)
    for hit in found:
        assert hit.score == pytest.approx(1 / (1 + np.exp(-hit.scores["fusion"])))
        assert "words" in hit.scores


def test_the_order_of_the_hits_does_not_matter():
    hits, reranker = made()
    straight = reranker.rerank(QUESTION, hits, 4)
    turned = reranker.rerank(QUESTION, hits[::-1], 4)
    assert [h.passage.id for h in straight] == [h.passage.id for h in turned]


def test_none_one_and_identical_hits_pass_through():
    hits, reranker = made()
    assert reranker.rerank(QUESTION, [], 4) == []
    assert [h.passage.id for h in reranker.rerank(QUESTION, hits[:1], 4)] == [1]
    same = [dataclasses.replace(hit_of("the same", id=i), scores={}) for i in (3, 1, 2)]
    encoder = HashedWords()
    lent = lend(same, index=Vectors(same, encoder), encoders={"text": encoder})
    assert [h.passage.id for h in Fusion(lent).rerank("anything", same, 3)] == [1, 2, 3]


def test_a_hit_without_a_vector_still_stands():
    hits, reranker = made()

    class Missing(Vectors):
        def vectors(self, ids, role):
            found = super().vectors(ids, role)
            found[0] = np.nan
            return found

    lent = dataclasses.replace(reranker._resources, index=Missing(hits, HashedWords()))
    found = Fusion(lent).rerank(QUESTION, hits, 4)
    assert len(found) == 4
    assert all(np.isfinite(h.score) for h in found)


@pytest.mark.parametrize("query", ["", "???", "日本語の文章", "a the of", "x" * 5000])
def test_any_query_gives_an_order(query):
    hits, reranker = made()
    assert len(reranker.rerank(query, hits, 4)) == 4


def test_attention_across_the_list_keeps_what_there_is():
    vectors = HashedWords().encode([text for _, text in TEXTS])
    mixing = attend(vectors, 100.0)
    np.testing.assert_allclose(mixing.sum(1), 1, atol=1e-5)
    assert (mixing >= 0).all()
    np.testing.assert_allclose(attend(np.zeros((3, 8), np.float32), 100.0), np.eye(3), atol=1e-6)


def test_only_questions_over_named_passages_are_of_the_second_kind():
    hits, _ = made()
    assert kind_of(QUESTION, hits) == 1
    assert kind_of("films of the year 1951", hits) == 0
    headline = "some structural and aeroelastic considerations of high speed flight at altitude"
    assert kind_of(QUESTION, [hit_of(text, title=headline) for _, text in TEXTS]) == 0
    assert kind_of(QUESTION, []) == 0
    # paragraphs of one article: its name leads nowhere
    assert kind_of(QUESTION, [hit_of(text, title="Ed Wood") for _, text in TEXTS]) == 0


def test_features_are_scaled_and_finite():
    hits, reranker = made()
    rows = features(fusion.gather(reranker._resources, QUESTION, hits))
    assert rows.shape == (4, len(NAMES))
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    used = rows.std(0) > 0
    np.testing.assert_allclose(rows.std(0)[used], 1, atol=1e-4)
    named = rows[:, NAMES.index("linked")]
    assert named.argmax() == 1  # the film's passage names its director


def test_a_constant_feature_has_no_effect():
    """FiT5's test: a score that is the same for all candidates changes nothing."""
    hits, reranker = made()
    level = [dataclasses.replace(h, scores={**h.scores, "late": 0.5}) for h in hits]
    straight = reranker.rerank(QUESTION, hits, 4)
    assert [h.score for h in reranker.rerank(QUESTION, level, 4)] == [h.score for h in straight]


def test_fitting_finds_the_feature_that_tells():
    rng = np.random.default_rng(1)
    lists = []
    for _ in range(60):
        rows = rng.normal(size=(8, 2 * len(NAMES))).astype(np.float32)
        right = np.zeros(8, dtype=bool)
        right[rows[:, 5].argmax()] = True
        lists.append(fusion_fit.Judged(fusion.Listed(rows, 1.0), right))
    weights, counts = fusion_fit.fit_both(lists)
    assert counts == {"subject": 0, "names": 60}
    assert weights.names.argmax() == 5
    np.testing.assert_array_equal(weights.subject, fusion_fit.prior())
    held = fusion_fit.fit(lists, fusion_fit.prior(), 1e6)
    np.testing.assert_allclose(held, fusion_fit.prior(), atol=0.02)


def test_nothing_to_learn_from_is_said():
    right = fusion_fit.Judged(
        fusion.Listed(np.zeros((2, 2 * len(NAMES)), np.float32), 0.0), np.array([True, True])
    )
    with pytest.raises(ConfigError, match="nothing to learn"):
        fusion_fit.fit([right], fusion_fit.prior(), 0.1)


def test_weights_are_read_as_written_and_bad_files_are_told(tmp_path):
    weights = Weights.read(fusion.SHIPPED)
    path = tmp_path / "mine.json"
    weights.write(path, {"about": "a copy"})
    again = Weights.read(path)
    np.testing.assert_allclose(again.subject, weights.subject, atol=1e-4)
    np.testing.assert_allclose(again.names, weights.names, atol=1e-4)
    hits, reranker = made(weights=str(path))
    assert reranker.rerank(QUESTION, hits, 1)
    for text in ("not json", "{}", json.dumps({"weights": {"subject": {"own": {"no such": 1}}}})):
        path.write_text(text)
        with pytest.raises(ConfigError, match="cannot read fusion weights"):
            Weights.read(path)


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("wings", "wing"),
        ("directed", "direct"),
        ("running", "run"),
        ("cities", "city"),
        ("city", "city"),
        ("glass", "glass"),
        ("日本語", "日本語"),
    ],
)
def test_stems(word, wanted):
    assert stem(word) == wanted


def test_evidence_of_late_interaction_is_a_feature():
    hits, reranker = made()
    seen = fusion.gather(reranker._resources, QUESTION, hits)
    late = np.array([0.1, 0.9, 0.2, 0.3], dtype=np.float32)
    rows = features(Evidence(seen.text, hits, seen.vectors, seen.query, late))
    assert rows[:, NAMES.index("late")].argmax() == 1


def test_a_judgment_that_cannot_be_read_is_named_by_its_line(tmp_path):
    from foveate.pipeline import fusing
    from foveate.pipeline.errors import FoveateError

    file = tmp_path / "judged.jsonl"
    file.write_text('{"query": "a", "relevant": ["b"]}\n\nnonsense\n')
    with pytest.raises(FoveateError, match="line 3 of"):
        fusing.read_rows(file)
    file.write_text('{"query": "a", "relevant": ["b"]}\n')
    assert fusing.read_rows(file) == [{"query": "a", "relevant": ["b"]}]
