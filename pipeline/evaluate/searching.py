"""Ask an engine every query of a set, and note what it found and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.evaluate import metrics
from foveate.pipeline.evaluate.clocks import Clock, Tell
from foveate.pipeline.evaluate.corpora import Built
from foveate.pipeline.evaluate.timing import peak_bytes, resident_bytes

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Hit

TEXTS = ("text", "table")
PICTURES = ("image", "page")


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run. k: documents a query retrieves. n_answers: questions a set that are answered.

    encoders: {role: encoder} that stand in for the configured ones.
    """

    cache: Path
    k: int = 100
    n_answers: int = 40
    fresh: bool = False
    encoders: Mapping[str, Encoder] | None = None
    announce: Callable[[str], None] = field(default=lambda text: None)
    tell: Tell | None = None


@dataclass(slots=True)
class Ran:
    """One direction of one data set under one configuration, before it is summed up."""

    task: str
    per_query: metrics.PerQuery
    run: Mapping[str, Sequence[str]]
    queries: Mapping[str, str]
    times: dict[str, Any]
    notes: list[str]
    buckets: Mapping[str, str] = field(default_factory=dict)


def ask_all(
    built: Built,
    plan: Plan,
    queries: Mapping[str, Mapping[str, Any]],
    document: Callable[[Hit], str],
    **options: Any,
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Search for every query. Returns {query: document ids} and what it cost."""
    engine, clock = built.engine, Clock()
    run: dict[str, list[str]] = {}
    first_s = 0.0
    plain = engine.encoders.copy(), engine.index
    try:
        for number, (key, asked) in enumerate(queries.items()):
            started = time.perf_counter()
            hits = engine.search(**asked, k=plan.k, group="source", collapse=False, **options)
            seconds = time.perf_counter() - started
            if number == 0:
                # the first query reads the weights; it is told apart
                first_s = seconds
                clock.watch(engine)
            else:
                clock.close_round(seconds)
            run[key] = list(dict.fromkeys(document(hit) for hit in hits))
            if plan.tell is not None:
                plan.tell("search", number + 1, len(queries))
    finally:
        engine.encoders, engine.index = plain
    times = {
        "index": built.cost,
        "resumed": built.resumed,
        "first_query_s": first_s,
        "search": clock.summary(),
        "memory_after_search": resident_bytes(),
        "memory_peak": peak_bytes(),
    }
    return run, times
