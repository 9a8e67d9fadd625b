"""What a compressor keeps: how many tokens, the answer, the gold, and within the budget or not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol

from foveate.pipeline.evaluate import metrics
from foveate.pipeline.evaluate.clocks import Clock
from foveate.pipeline.evaluate.searching import TEXTS, Plan, find

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.evaluate.configurations import Configuration
    from foveate.pipeline.evaluate.journal import Journal
    from foveate.pipeline.evaluate.sets import Question
    from foveate.pipeline.types import Context, Hit

N_POOLED = 20  # passages that a compressor is given where all sets' documents are searched


class Scoped(Protocol):
    """What a question is asked of."""

    @property
    def where(self) -> str | None: ...
    @property
    def gold(self) -> frozenset[str]: ...


def compress_sample(
    engine: Engine,
    sample: Sequence[Question],
    scopes: Mapping[str, Scoped],
    configuration: Configuration,
    plan: Plan,
    journal: Journal,
) -> tuple[metrics.PerQuery, float]:
    """Compress what each question finds to 1 / ratio of its tokens, and look at what is left.

    Tokens are the reader's. In its own documents a question is given every passage.

    Returns:
        (measures, median seconds of a compression).
    """
    chain = engine.refinery.chain(None, "ask")
    found: metrics.PerQuery = {}
    seconds = []
    for done, question in enumerate(sample, start=1):
        if question.id not in journal.values:
            scope = scopes[question.id]
            k = plan.k if scope.where else N_POOLED
            options = {"mode": configuration.mode, "modality": TEXTS, "group": None}
            asked = {"text": question.text, "where": scope.where}
            hits = find(engine, asked, chain, k, Clock(), options)
            if not hits:
                continue
            values, took = compress(engine, question, hits, scope.gold, configuration.ratio)
            journal.put(question.id, {"values": values, "seconds": took})
        kept = journal.values[question.id]
        seconds.append(float(kept["seconds"]))
        for measure, value in kept["values"].items():
            found.setdefault(measure, {})[question.id] = value
        if plan.tell is not None:
            plan.tell("compress", done, len(sample))
    journal.end()
    return found, statistics.median(seconds) if seconds else 0.0


def compress(
    engine: Engine, question: Question, hits: Sequence[Hit], gold: Set[str], ratio: float
) -> tuple[dict[str, float], float]:
    """Compress once, in the configured order. Returns (measures, seconds)."""
    refinery = engine.refinery
    compressor, orderer = refinery.compressor(), refinery.orderer()
    count = refinery.resources.reader().count_tokens
    n_full = sum(count(hit.passage.text) for hit in hits)
    budget = max(1, int(n_full / ratio))
    started = time.perf_counter()
    assert compressor is not None
    context = compressor.compress(question.text, hits, budget, count_tokens=count)
    if orderer is not None:
        context = orderer.order(question.text, context)
    took = time.perf_counter() - started
    return judge(question, hits, context, gold, engine.text, count, n_full, budget), took


def judge(
    question: Question,
    hits: Sequence[Hit],
    context: Context,
    gold: Set[str],
    text_of: Any,
    count: Any,
    n_full: int,
    budget: int,
) -> dict[str, float]:
    """Measure a compressed context.

    answer kept: of questions whose answer stands in the full text, whether it still does. gold
    kept: share of the gold documents found of which something is left. gold place: where they
    stand among what is kept, 0 first and 1 last.
    """
    spans = [text_of(k.hit.passage.source.id)[a:b] for k in context.kept for a, b in k.spans]
    n_kept = sum(map(count, spans))
    values = {"tokens kept": n_kept / max(1, n_full), "over budget": float(n_kept > budget)}
    full = "\n".join(hit.passage.text for hit in hits)
    standing = [a for a in question.answers if metrics.contains(full, a)]
    if standing and not question.yes_no:
        kept = "\n".join(spans)
        values["answer kept"] = float(any(metrics.contains(kept, a) for a in standing))
    there = gold & {_name(hit) for hit in hits}
    if there:
        order = list(dict.fromkeys(_name(k.hit) for k in context.kept if k.spans))
        left = [i for i, name in enumerate(order) if name in there]
        values["gold kept"] = len(left) / len(there)
        if left and len(order) > 1:
            values["gold place"] = statistics.fmean(left) / (len(order) - 1)
    return values


def _name(hit: Hit) -> str:
    return str(hit.passage.metadata["_id"])
