"""BM25 through our harness gives the figures in the data sets' own READMEs."""

from __future__ import annotations

import pytest

from foveate.pipeline.evaluate import baselines, datasets, metrics, sets

pytest.importorskip("bm25s", reason="needs foveate[peers]")

RETRIEVAL = {
    "cranfield": {"nDCG@10": 0.3608, "R@100": 0.7351, "AP": 0.2878, "RR@10": 0.5209},
    "cacm": {"nDCG@10": 0.5171, "R@100": 0.7083, "AP": 0.3461, "RR@10": 0.7577},
    "scifact": {"nDCG@10": 0.6831, "R@100": 0.9127, "AP": 0.6437, "RR@10": 0.6497},
    "climate_fever": {"nDCG@10": 0.3566, "R@100": 0.7653, "AP": 0.2947, "RR@10": 0.3922},
    "xquad": {"nDCG@10": 0.9669, "R@100": 0.9972},
    "posbias_nq": {"nDCG@10": 0.7215, "R@100": 0.9513, "RR@10": 0.6816},
}
QUESTIONS = {
    "qa_hotpotqa": (0.871, 0.6734, 0.8669),
    "qa_2wiki": (0.8846, 0.7163, 0.8293),
    "qa_musique": (0.608, 0.428, 0.542),
    "qa_nq20": (0.7155, 0.8233, 0.9009),
    "qa_rgb/en_counterfactual": (0.1111, 0.2222, 0.408),
    "qa_rgb/zh": (0.6452, 0.6559, 0.643),
    "qa_rgb/zh_integration": (0.4308, 0.4154, 0.4462),
}


def check_retrieval(folder, name):
    (dataset,) = datasets.load(folder / name)
    found = metrics.means(metrics.ranking(dataset.qrels, baselines.bm25_run(dataset, 100)))
    for measure, value in RETRIEVAL[name].items():
        assert found[measure] == pytest.approx(value, abs=0.005), measure


def test_one_set(shared_data):
    check_retrieval(shared_data, "cranfield")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(RETRIEVAL) - {"cranfield"}))
def test_every_retrieval_set(shared_data, name):
    check_retrieval(shared_data, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_every_question_set(shared_data, name):
    found = {d.name: d for d in datasets.load(shared_data / name.split("/")[0])}
    dataset = found[name]
    orders = baselines.bm25_orders(dataset)
    gold = sets.own_golds(dataset)
    for k, value in zip((1, 2, 5), QUESTIONS[name], strict=True):
        found = [metrics.gold_recall(orders[q], gold[q], k) for q in orders]
        assert sum(found) / len(found) == pytest.approx(value, abs=0.005), k


def test_it_ranks_words_and_leaves_out_what_shares_none():
    model = baselines.BM25(["red apples", "green pears and apples", "blue plums"])
    assert model.search(["apple", "plum", "zebra"], 3) == [[0, 1], [2], []]


def test_empty_texts_and_chinese():
    assert baselines.BM25(["", "the"]).search(["the", "x"], 2) == [[], []]
    assert baselines.BM25(["山有多高", "海有多深"], "zh").search(["多深"], 2)[0][0] == 1
    (found,) = baselines.BM25(["A股 大 涨", "a股 大 跌"], "zh").search(["A股 大"], 2)
    assert sorted(found) == [0, 1]
