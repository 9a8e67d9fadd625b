"""The attention scan against a full causal prefill of the same prompt, and with kept keys.

make bench OP=attention_scan [ARGS="--n 100 --tokens 150"]. The gate: kept keys score as fresh ones
do, and rank nearly as keys that were not quantised.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from foveate.pipeline.reader import Reader
from foveate.rerank.attention import AttentionScan
from foveate.rerank.layout import Prompt

WORDS = [
    *("the", "wing", "weight", "ratio", "limits", "span", "load", "air"),
    *("flow", "heat", "loop", "pump", "red", "tomato", "water", "sun"),
]


def passages(prompt, n, tokens, seed):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        words = rng.choice(WORDS, size=2 * tokens)
        text = " ".join(words)
        found.append(prompt.tokenizer.decode(prompt.tokenizer(text)["input_ids"][:tokens]))
    return found


def timed(call):
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    reader = Reader()
    prompt = Prompt(reader)
    model = reader.model
    question = "What limits the span of a wing?"
    times = {"causal prefill": [], "scan": [], "kept keys": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.rounds):
            texts = passages(prompt, args.n, args.tokens, seed)
            ids = torch.tensor(prompt.tokenizer("\n\n".join([*texts, question]))["input_ids"])

            def prefill(ids=ids):
                with torch.inference_mode():
                    model.base_model(input_ids=ids[None], use_cache=False)

            fresh = AttentionScan(reader)
            exact = fresh.look(question, texts[:2])  # weights and heads are there now
            store = Path(folder) / str(seed)
            AttentionScan(reader, folder=store).look(question, texts)
            kept = AttentionScan(reader, folder=store)
            times["causal prefill"].append(timed(prefill))
            times["scan"].append(timed(lambda f=fresh, t=texts: f.look(question, t)))
            times["kept keys"].append(timed(lambda k=kept, t=texts: k.look(question, t)))
            again = AttentionScan(reader, folder=store).look(question, texts).passage_scores
            if not np.array_equal(again, kept.look(question, texts).passage_scores):
                print("gate: kept keys do not score as fresh ones")
                return 1
            plain = fresh.look(question, texts).passage_scores
            if np.corrcoef(plain, again)[0, 1] < 0.95 or not len(exact.passage_scores):
                print("gate: quantised keys rank differently")
                return 1
    base = statistics.median(times["causal prefill"])
    print(
        f"{args.n} passages of {args.tokens} tokens, {model.dtype}, {len(fresh.heads.pairs)} heads"
    )
    for name, some in times.items():
        middle = statistics.median(some)
        print(f"{name:15s} p50 {middle:8.2f} s   {base / middle:6.1f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
