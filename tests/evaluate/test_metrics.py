from __future__ import annotations

import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.pipeline.evaluate import metrics


def reference(judged, ranked, k=10):
    """NDCG@k, recall@k, AP and RR@k of one query, from their definitions."""
    gains = [judged.get(d, 0) for d in ranked]
    ideal = sorted(judged.values(), reverse=True)
    dcg = [sum(g / math.log2(i + 2) for i, g in enumerate(x[:k])) for x in (gains, ideal)]
    right = [g > 0 for g in gains]
    n = sum(g > 0 for g in judged.values())
    ap = sum(sum(right[: i + 1]) / (i + 1) for i, r in enumerate(right) if r) / n
    rr = next((1 / (i + 1) for i, r in enumerate(right[:k]) if r), 0.0)
    return {"nDCG@10": dcg[0] / dcg[1], "R@10": sum(right[:k]) / n, "AP": ap, "RR@10": rr}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_equal_to_a_reference_and_to_ir_measures(seed):
    rng = np.random.default_rng(seed)
    docs = [f"d{i}" for i in range(30)]
    qrels, run = {}, {}
    for q in ("a", "b", "c"):
        judged = rng.choice(docs, size=rng.integers(1, 12), replace=False)
        qrels[q] = {str(d): int(rng.integers(0, 4)) for d in judged}
        qrels[q][str(judged[0])] = 2
        run[q] = [str(d) for d in rng.permutation(docs)[: rng.integers(1, 30)]]
    found = metrics.ranking(qrels, run)
    for q in qrels:
        for name, value in reference(qrels[q], run[q]).items():
            assert found[name][q] == pytest.approx(value, abs=1e-9), (name, q)
    scored = {q: {d: 1.0 / (i + 1) for i, d in enumerate(docs)} for q, docs in run.items()}
    measures = [ir_measures.parse_measure(m) for m in metrics.RANKING]
    direct = ir_measures.calc_aggregate(measures, qrels, scored)
    for name, value in metrics.means(found).items():
        assert value == pytest.approx(direct[ir_measures.parse_measure(name)], abs=1e-9)


def test_a_query_without_a_result_counts_as_nothing():
    found = metrics.ranking({"a": {"d": 1}, "b": {"d": 1}}, {"a": ["d"], "b": []})
    assert found["nDCG@10"] == {"a": 1.0, "b": 0.0}
    assert metrics.means(found)["R@1"] == 0.5


def test_many_ties_do_not_change_the_order():
    docs = [f"d{i:03}" for i in range(100)][::-1]
    found = metrics.ranking({"q": {docs[0]: 1}}, {"q": docs})
    assert found["R@1"]["q"] == 1.0


def test_gold_recall_is_out_of_at_most_k():
    assert metrics.gold_recall([3, 1, 2], {1, 3, 5}, 1) == 1.0
    assert metrics.gold_recall([3, 1, 2], {1, 3, 5}, 2) == 1.0
    assert metrics.gold_recall([3, 2, 1], {1, 3, 5}, 2) == 0.5
    assert metrics.gold_recall([3, 2, 1], {1, 3, 5}, 10) == pytest.approx(2 / 3)
    assert metrics.gold_recall([], {1}, 5) == 0.0


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("It was Paris, France.", "paris", True),
        ("A comparison", "paris", False),
        ("The category", "cat", False),
        ("in the 1998 season", "1998", True),
        ("in 19980", "1998", False),
        ("Wilhelm Conrad Rontgen won", "Wilhelm Conrad Röntgen", True),
        ("The Beatles", "Beatles", True),
        ("United States of America", "States America", False),
        ("死亡人数为12人。", "12人", True),
        ("死亡人数为112人。", "12人", False),
        ("anything", "", False),
        ("", "x", False),
    ],
)
def test_containment_is_of_whole_words(text, answer, found):
    assert metrics.contains(text, answer) is found


def test_groups_of_alternatives_are_each_required():
    groups = (("1月3日", "3 January"), ("1月12日",))
    assert metrics.containment("on 3 January and 1月12日", (), groups) == 1.0
    assert metrics.containment("only 1月12日", (), groups) == 0.5
    assert metrics.containment("nothing", ("x", "nothing")) == 1.0


def test_token_f1():
    assert metrics.token_f1("the red car", ["red car"]) == 1.0
    assert metrics.token_f1("a red car", ["blue car", "red"]) == pytest.approx(2 / 3)
    assert metrics.token_f1("x", ["y"]) == 0.0
    assert metrics.token_f1("", ["y"]) == 0.0
    assert metrics.token_f1("x", []) == 0.0


def test_citations_and_words_of_answers():
    assert metrics.citations([1, 1, 2], {1, 3}) == (0.5, 0.5)
    assert metrics.citations([], {1}) == (0.0, 0.0)
    assert metrics.strip_markers("It is so [1][2]. And [10].") == "It is so. And."
    assert metrics.says("Yes, both are.") == "yes"
    assert metrics.says("Both are.") is None
