"""Compressors side by side: answers kept, tokens kept and time, on a question set's own documents.

    FOVEATE_EVAL_DATA=... python tests/bench/compress.py qa_musique --n 40
    FOVEATE_EVAL_DATA=... python tests/bench/compress.py qa_hotpotqa --use attention

quoted: share of the questions whose gold answer stands in the two sentences that would be quoted
from what was kept, and their words; `full` quotes from everything. Gate: every context is within
its budget and verbatim. Times are medians over the questions, each compressed by all in turn; the
ratio is to `extractive`. What `clauses` and `sentinel` ship was fitted on the shared part of these
sets: their own figures by folds are what `foveate fit` prints.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict

from foveate.pipeline import config, fitting, registry
from foveate.pipeline.answer import AnswerOptions
from foveate.pipeline.evaluate.timing import hardware
from foveate.pipeline.evidence import gather, select
from foveate.pipeline.testing import check_context

LIGHT = ("extractive", "clauses")


def quote(case, encoder, context):
    """Return the sentences that would be quoted from a context; None is everything."""
    found = gather(
        case.question.text,
        case.hits,
        texts={hit.passage.source.id: hit.passage.text for hit in case.hits}.__getitem__,
        encoder=encoder,
        kept=None if context is None else {k.hit.passage.id: k.spans for k in context.kept},
        whole=True,
    )
    chosen = select(found, AnswerOptions().n_sentences)
    return " ".join(found.sentences[i].text for i in chosen)


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
        kept, tokens, seconds, quoted, words = (defaultdict(list) for _ in range(5))
        for case in fitting.cases([dataset], resources, options.n):
            full = sum(count(hit.passage.text) for hit in case.hits)
            contexts = {"full": None}
            for name, compressor in compressors.items():
                started = time.perf_counter()
                context = compressor.compress(
                    case.question.text, case.hits, int(full / options.ratio), count_tokens=count
                )
                seconds[name].append(time.perf_counter() - started)
                check_context(context, list(case.hits), int(full / options.ratio), count)
                kept[name].append(float(case.holds(fitting.text_of(context))))
                tokens[name].append(context.n_tokens / full)
                contexts[name] = context
            for name, context in contexts.items():
                text = quote(case, resources.encoders["text"], context)
                quoted[name].append(float(case.holds(text)))
                words[name].append(len(text.split()))
        base = statistics.median(seconds["extractive"])
        print(f"{dataset}: {len(kept['extractive'])} questions whose answer stands in full")
        print(f"  full         quoted {statistics.fmean(quoted['full']):.3f} in ", end="")
        print(f"{statistics.fmean(words['full']):.0f} words")
        for name in names:
            share = statistics.fmean(kept[name])
            half = 1.96 * math.sqrt(share * (1 - share) / len(kept[name]))
            took = statistics.median(seconds[name])
            mean = {n: statistics.fmean(rows[name]) for n, rows in (("t", tokens), ("q", quoted))}
            print(
                f"  {name:<12} answer kept {share:.3f} +- {half:.3f}  tokens {mean['t']:.3f}  "
                f"quoted {mean['q']:.3f} in {statistics.fmean(words[name]):.0f} words  "
                f"{took * 1000:.0f} ms  {took / base:.2f}x"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
