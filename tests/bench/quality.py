"""What skipping the poorest passages costs: nDCG@10 and recall@100 of a judged set, by share.

    FOVEATE_EVAL_DATA=... python tests/bench/quality.py cranfield --cache FOLDER

The index is built once under --cache. Shares are of all passages; a random skip of the same size is
the baseline. Gate: nothing skipped gives the same results as before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import foveate
from foveate.index.quality import rate, worst
from foveate.pipeline import config
from foveate.pipeline.evaluate import datasets
from foveate.pipeline.evaluate.corpora import write_corpus
from foveate.pipeline.evaluate.sets import Retrieval

SHARES = (0.1, 0.25, 0.4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--index", type=Path, help="one that is there already")
    parser.add_argument("--queries", type=int, default=100)
    options = parser.parse_args()
    (dataset,) = datasets.load(options.dataset)
    assert isinstance(dataset, Retrieval)
    with tempfile.TemporaryDirectory() as aside:
        home = options.cache or Path(aside)
        home.mkdir(parents=True, exist_ok=True)
        place = options.index or home / f"{dataset.name}.fov"
        with foveate.open(place, create=True, config=config.load("offline")) as engine:
            if not engine.index.count():
                engine.add(write_corpus(dataset, home / "corpus"))
            report(engine, dataset, options.queries)
    return 0


def report(engine: Any, dataset: Retrieval, n: int) -> None:
    queries = dict(list(dataset.queries.items())[:n])
    vectors = engine.encoders["text"].encode_queries(list(queries.values()))
    engine.index.skipped.put(())
    ids, scores = rate(engine.index)
    names = {p.id: str(p.metadata["_id"]) for p in engine.index.passages(ids)}
    whole = measure(engine, vectors, queries, dataset, names)
    engine.index.skipped.put(worst(ids, scores, 0.0).tolist())
    assert measure(engine, vectors, queries, dataset, names) == whole
    print(f"{dataset.name}: {len(ids)} passages, {len(queries)} queries, dense search")
    print(f"  nothing skipped: nDCG@10 {whole[0]:.4f}  recall@100 {whole[1]:.4f}")
    rng = np.random.default_rng(0)
    for share in SHARES:
        chosen = worst(ids, scores, share)
        engine.index.skipped.put(chosen.tolist())
        got = measure(engine, vectors, queries, dataset, names)
        engine.index.skipped.put(rng.choice(ids, len(chosen), replace=False).tolist())
        drawn = measure(engine, vectors, queries, dataset, names)
        print(
            f"  {len(chosen) / len(ids):.2f} skipped: nDCG@10 {got[0]:.4f}  recall@100 {got[1]:.4f}"
            f"  (drawn at random: {drawn[0]:.4f}  {drawn[1]:.4f})"
        )
    engine.index.skipped.put(())


def measure(
    engine: Any, vectors: Any, queries: dict[str, str], dataset: Retrieval, names: dict[int, str]
) -> tuple[float, float]:
    """Return (nDCG@10, recall@100); a document counts once, at its best passage."""
    _, found = engine.index.search_vectors("text", vectors, 200)
    gains, recalls = [], []
    for key, row in zip(queries, found.tolist(), strict=True):
        judged = {d: g for d, g in dataset.qrels.get(key, {}).items() if g > 0}
        if not judged:
            continue
        order = list(dict.fromkeys(names[i] for i in row if i in names))
        ideal = sorted(judged.values(), reverse=True)[:10]
        best = sum(g / np.log2(r + 2) for r, g in enumerate(ideal))
        gain = sum(judged.get(d, 0) / np.log2(r + 2) for r, d in enumerate(order[:10]))
        gains.append(float(gain / best))
        recalls.append(len(judged.keys() & set(order[:100])) / len(judged))
    return statistics.fmean(gains), statistics.fmean(recalls)


if __name__ == "__main__":
    sys.exit(main())
