"""How good the answers are: generated against extractive, with the gold documents and without.

python tests/bench/answer_quality.py --sets qa_hotpotqa qa_nq20 --n 60 --mode both --no-gold

Contained: a gold answer stands in the answer as whole words, over the questions that are not
yes/no (those are counted apart). Precision: share of cited passages that are gold; recall: share
of the gold passages among the hits that are cited. Lengths are in words. Sentences
were chosen on the first 50 questions of hotpot and nq20 in hash order: those are skipped here.
--tune fits the answerability anew, and prints what is refused of questions that each fit has not
seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import question_sets as sets

from foveate.pipeline import answerable, terms
from foveate.pipeline.answer import AnswerOptions, Material, answer
from foveate.pipeline.evidence import gather, select
from foveate.pipeline.registry import find

TUNED_ON = 50  # questions of a set
FOLDS = 5


class Remembered:
    """An encoder that encodes each text once, because the modes ask for the same ones."""

    def __init__(self, encoder):
        self._encoder, self._vectors = encoder, {}
        self.reads, self.space, self.tower = encoder.reads, encoder.space, encoder.tower
        self.dim, self.window_tokens = encoder.dim, encoder.window_tokens
        self.token_spans = encoder.token_spans
        self.encode_queries = encoder.encode_queries

    def encode(self, inputs, *, progress=None):
        new = [t for t in dict.fromkeys(inputs) if t not in self._vectors]
        if new:
            self._vectors.update(zip(new, self._encoder.encode(new), strict=True))
        return np.stack([self._vectors[t] for t in inputs])


def measure(case, got, golds):
    """Measure one answer."""
    cited = [c.passage.source.id for c in got.citations]
    return {
        "yes_no": case.yes_no,
        "answered": got.answered,
        "contained": got.answered and sets.contains(got.text, case.answers),
        "words": len(sets.normal(got.text).split()) if got.answered else 0,
        "precision": float(np.mean([c in golds for c in cited])) if cited else None,
        "recall": len(golds & set(cited)) / len(golds) if golds else None,
        "score": got.trace["answerable"]["score"],
        "mode": got.trace["mode"],
        "dropped": len(got.trace.get("cite", {}).get("dropped", ())),
    }


def summarise(rows):
    """Return the table's columns for some rows."""
    answered = [r for r in rows if r["answered"]]
    open_ones = [r for r in rows if not r["yes_no"]]
    precise = [r["precision"] for r in answered if r["precision"] is not None]
    recalled = [r["recall"] for r in rows if r["recall"] is not None]
    p = float(np.mean([r["contained"] for r in open_ones])) if open_ones else float("nan")
    return {
        "n": len(rows),
        "contained": p,
        "ci95": 1.96 * (p * (1 - p) / max(1, len(open_ones))) ** 0.5,
        "words": float(np.mean([r["words"] for r in answered])) if answered else 0.0,
        "precision": float(np.mean(precise)) if precise else float("nan"),
        "recall": float(np.mean(recalled)) if recalled else float("nan"),
        "refused": 1 - len(answered) / max(1, len(rows)),
        "yes_no": sum(r["yes_no"] for r in rows),
        "generated": sum(r["mode"] == "generated" for r in rows),
        "seconds": float(np.mean([r["seconds"] for r in rows])) if rows else 0.0,
    }


def run(cases, encoder, generator, options, *, gold):
    rows = []
    for case in cases:
        hits, texts, golds = sets.hits_of(case, encoder, gold=gold)
        began = time.perf_counter()
        material = Material(
            hits=hits, texts=texts.__getitem__, encoder=encoder, generator=generator
        )
        got = answer(case.question, material, options=options)
        row = measure(case, got, golds)
        rows.append({**row, "id": case.id, "seconds": time.perf_counter() - began})
    return rows


def tune(data, names, encoder, n):
    """Fit the answerability of both kinds of question; print it, and what folds refuse.

    Each question is asked of its ten best passages, and of five and of three of them, with the
    gold ones and without.
    """
    rows = []
    for name in names:
        for case in sets.load(data, name, n):
            for gold in (True, False):
                hits, texts, golds = sets.hits_of(case, encoder, gold=gold)
                for k in (10, 5, 3):
                    some = among(hits, golds, k)
                    found = gather(case.question, some, texts=texts.__getitem__, encoder=encoder)
                    chosen = select(found, AnswerOptions().n_sentences)
                    if chosen:
                        named = bool(terms.names(case.question))
                        measured = answerable.features(found, chosen, some)
                        fold = int(case.id.encode().hex(), 16) % FOLDS
                        rows.append((name, named, k, gold, fold, measured))
    for kind in (True, False):
        fit_kind([row for row in rows if row[1] == kind], rows, "named" if kind else "plain")


def among(hits, golds, k):
    """Return k of the hits in their order, the gold ones among them."""
    first = sorted(range(len(hits)), key=lambda i: hits[i].passage.source.id not in golds)[:k]
    return [hits[i] for i in sorted(first)]


def fit_kind(asked, rows, label):
    """Fit on all rows, those of the asked kind counting most; look at folds of the asked ones."""
    if not asked:
        return
    names = list(asked[0][5])
    x, y, fold, weight = arrays(rows, names, {row[0] for row in asked})
    xa, ya, fa, _ = arrays(asked, names, ())
    ten = np.array([row[2] == 10 for row in asked])
    refused = np.zeros(len(asked), bool)
    for f in range(FOLDS):
        weights = fit_logistic(x[fold != f], y[fold != f], weight[fold != f])
        seen = chance(weights, xa[(fa != f) & ten])
        limit = best_threshold(seen, ya[(fa != f) & ten])
        refused[fa == f] = chance(weights, xa[fa == f]) < limit
    for name in sorted({row[0] for row in asked}):
        mine = np.array([row[0] == name for row in asked]) & ten
        absent, present = (refused[mine & (ya == v)].mean() for v in (0, 1))
        print(f"{label} {name}: refused {absent:.3f} without gold, {present:.3f} with gold")
    weights = fit_logistic(x, y, weight)
    limit = best_threshold(chance(weights, xa[ten]), ya[ten])
    weights[0] -= np.log(limit / (1 - limit))
    print(label, dict(zip(["", *names], np.round(weights, 2).tolist(), strict=True)))


def arrays(rows, names, main):
    """Return x (n, f), y (n,), fold (n,), weight (n,): sets of the asked kind count five times."""
    x = np.array([[row[5][name] for name in names] for row in rows])
    counts = {name: sum(row[0] == name for row in rows) for name in {row[0] for row in rows}}
    weight = np.array(
        [
            (5 if row[0] in main else 1) * (1 if row[2] == 10 else 0.3) / counts[row[0]]
            for row in rows
        ]
    )
    return (
        x,
        np.array([row[3] for row in rows], float),
        np.array([row[4] for row in rows]),
        weight / weight.mean(),
    )


def chance(weights, x):
    """Return (n,) the modelled chance that each is answerable."""
    return 1 / (1 + np.exp(-(weights[0] + x @ weights[1:])))


def fit_logistic(x, y, weight, ridge=10.0, steps=100):
    """Fit a ridge logistic regression of standardised features by Newton steps.

    Returns (1 + f,): of the features as they are, the intercept first.
    """
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    a = np.hstack([np.ones((len(x), 1)), (x - mean) / spread])
    w = np.zeros(a.shape[1])
    penalty = np.diag([0.0] + [ridge] * x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-a @ w))
        step = np.linalg.solve(
            (a * (weight * p * (1 - p))[:, None]).T @ a + penalty,
            a.T @ (weight * (p - y)) + penalty @ w,
        )
        w -= step
        if np.abs(step).max() < 1e-8:
            break
    slopes = w[1:] / spread
    return np.concatenate([[w[0] - slopes @ mean], slopes])


def best_threshold(chances, y, most=0.11):
    """Return the highest threshold that refuses at most a share of the answerable questions."""
    return float(np.quantile(chances[y == 1], most))


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the evaluation sets (FOVEATE_EVAL_DATA)")
    parser.add_argument("--sets", nargs="+", default=["qa_hotpotqa", "qa_nq20"])
    parser.add_argument("--n", type=int, default=60, help="questions of each set")
    parser.add_argument("--mode", choices=["extractive", "generated", "both"], default="extractive")
    parser.add_argument("--skip", type=int, default=TUNED_ON, help="questions that were tuned on")
    parser.add_argument("--no-gold", action="store_true", help="also without the gold documents")
    parser.add_argument("--threshold", type=float, help="of answerability; 0 never refuses")
    parser.add_argument("--sentences", type=int, default=AnswerOptions().n_sentences)
    parser.add_argument("--budget-tokens", type=int, default=AnswerOptions().budget_tokens)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decoding", default="greedy", help="way of decoding, of the reader")
    parser.add_argument("--contrast", action="store_true", help="relevant passages explained first")
    parser.add_argument("--tune", action="store_true", help="fit the answerability and stop")
    parser.add_argument("--json", help="write every row to this file")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse(argv)
    data = sets.data_folder(args.data)
    if data is None:
        raise SystemExit("no evaluation data: set FOVEATE_EVAL_DATA or --data")
    encoder = Remembered(find("encoder", "minilm")(threads=args.threads))
    if args.tune:
        tune(data, args.sets, encoder, args.n)
        return
    modes = ["extractive", "generated"] if args.mode == "both" else [args.mode]
    generator = None
    if "generated" in modes:
        generator = find("generator", "transformers")(decoding=args.decoding)
    table, kept = [], []
    for name in args.sets:
        cases = sets.load(data, name, args.n, args.skip)
        for mode in modes:
            threshold = answerable.THRESHOLD if args.threshold is None else args.threshold
            options = AnswerOptions(
                extractive=mode == "extractive",
                n_sentences=args.sentences,
                budget_tokens=args.budget_tokens,
                threshold=threshold,
                contrast=args.contrast,
                max_tokens=160 if args.contrast else AnswerOptions().max_tokens,
            )
            for gold in (True, False) if args.no_gold else (True,):
                rows = run(cases, encoder, generator, options, gold=gold)
                kept += [{"set": name, "asked": mode, "gold": gold, **r} for r in rows]
                table.append({"set": name, "mode": mode, "gold": gold, **summarise(rows)})
                show(table[-1], head=len(table) == 1)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"table": table, "rows": kept}, out, indent=1)


def show(row, *, head):
    columns = list(row)
    if head:
        print("  ".join(f"{c:>11}" for c in columns))
    cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
    print("  ".join(f"{c:>11}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
