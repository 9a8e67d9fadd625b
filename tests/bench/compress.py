"""Compressors side by side: answers kept, tokens kept and time, on a question set's own documents.

    FOVEATE_EVAL_DATA=... python tests/bench/compress.py qa_musique --n 40
    FOVEATE_EVAL_DATA=... python tests/bench/compress.py qa_hotpotqa --use attention

Gate: every context is within its budget and verbatim. Times are medians over the questions, each
compressed by all in turn; the ratio is to `extractive`. What `clauses` and `sentinel` ship was
fitted on the shared part of these sets: their own figures by folds are what `foveate fit` prints.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict

from foveate.pipeline import config, fitting, registry
from foveate.pipeline.evaluate.timing import hardware
from foveate.pipeline.testing import check_context

LIGHT = ("extractive", "clauses")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--use", action="append", help="compressors; the light ones by default")
    parser.add_argument("--n", type=int, default=40, help="questions of each set")
    parser.add_argument("--ratio", type=float, default=5.0)
    options = parser.parse_args()
    names = list(dict.fromkeys(["extractive", *(options.use or LIGHT)]))
    resources = fitting.lend(config.load("offline"))
    compressors = {name: registry.find("compressor", name)(resources) for name in names}
    count = resources.reader().count_tokens
    print(hardware())
    for dataset in options.datasets:
        kept, tokens, seconds = (defaultdict[str, list[float]](list) for _ in range(3))
        for case in fitting.cases([dataset], resources, options.n):
            full = sum(count(hit.passage.text) for hit in case.hits)
            for name, compressor in compressors.items():
                started = time.perf_counter()
                context = compressor.compress(
                    case.question.text, case.hits, int(full / options.ratio), count_tokens=count
                )
                seconds[name].append(time.perf_counter() - started)
                check_context(context, list(case.hits), int(full / options.ratio), count)
                kept[name].append(float(case.holds(fitting.text_of(context))))
                tokens[name].append(context.n_tokens / full)
        base = statistics.median(seconds["extractive"])
        print(f"{dataset}: {len(kept['extractive'])} questions whose answer stands in full")
        for name in names:
            share = statistics.fmean(kept[name])
            half = 1.96 * math.sqrt(share * (1 - share) / len(kept[name]))
            took = statistics.median(seconds[name])
            print(
                f"  {name:<12} answer kept {share:.3f} +- {half:.3f}  tokens "
                f"{statistics.fmean(tokens[name]):.3f}  {took * 1000:.0f} ms  {took / base:.2f}x"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
