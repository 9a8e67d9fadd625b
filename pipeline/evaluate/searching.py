"""Ask an engine every query of a set, and note what it found and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.evaluate import metrics
from foveate.pipeline.evaluate.clocks import Clock, Clocked, Tell
from foveate.pipeline.evaluate.corpora import Built
from foveate.pipeline.evaluate.journal import Journal
from foveate.pipeline.evaluate.remembered import Foreseen
from foveate.pipeline.evaluate.timing import peak_bytes, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foveate.pipeline.engine import Engine
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Hit

TEXTS = ("text", "table")
PICTURES = ("image", "page")
N_TIMED = 100


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
    *,
    use: str = "search",
    journal: Journal | None = None,
    **options: Any,
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Search for every query, through the rerankers that are configured.

    use: 'search' or 'ask', whose rerankers are taken. journal: where queries that are done stand,
    for those that cost much. The first `N_TIMED` queries are timed one at a time; where nothing
    reranks, the vectors of the rest are then made together.

    Returns:
        ({query: document ids}, what it cost).
    """
    engine, clock = built.engine, Clock()
    done = journal if journal is not None else Journal(None)
    # one list is measured as it is, unless the run itself asks for a reranker
    preset = str(engine.config.origin("rerank")).startswith("preset ")
    alone = options.get("mode", "hybrid") != "hybrid" and preset
    chain = engine.refinery.chain(False if alone else None, use)
    run: dict[str, list[str]] = {}
    first_s = 0.0
    with restored(engine):
        for number, (key, asked) in enumerate(queries.items()):
            if key in done.values:
                run[key] = done.values[key]["found"]
                clock.rounds += done.values[key]["rounds"]
                continue
            started = time.perf_counter()
            hits = find(engine, asked, chain, plan.k, clock, options)
            seconds = time.perf_counter() - started
            run[key] = list(dict.fromkeys(document(hit) for hit in hits))
            n_rounds = len(clock.rounds)
            if not clock.watching:
                # the first query reads the weights; it is told apart
                first_s = seconds
                clock.watch(engine)
            elif number <= N_TIMED or chain:
                clock.close_round(seconds)
            if chain:
                done.put(key, {"found": run[key], "rounds": clock.rounds[n_rounds:]})
            if number == N_TIMED and not chain:
                rest = [str(q["text"]) for q in list(queries.values())[number:] if q.get("text")]
                foresee(engine, rest)
            if plan.tell is not None:
                plan.tell("search", number + 1, len(queries))
    done.end()
    times = {
        "index": built.cost,
        "resumed": built.resumed,
        "first_query_s": first_s,
        "search": clock.summary(),
        "n_timed": len(clock.rounds),
        "memory_after_search": resident_bytes(),
        "memory_peak": peak_bytes(),
    }
    return run, times


def find(
    engine: Engine,
    asked: Mapping[str, Any],
    chain: Sequence[Any],
    k: int,
    clock: Clock,
    options: Mapping[str, Any],
) -> list[Hit]:
    """Return at most k hits: the reranked ones, then what no reranker saw, as it was found."""
    from foveate.pipeline import refine

    text = asked.get("text")
    wanted = max(k, chain[0][0].depth) if chain and text else k
    chosen = {"group": "source", "collapse": False, **options}
    hits = engine.search(**asked, k=wanted, rerank=False, **chosen)
    if not chain or not text:
        return hits
    timed = [(s, Clocked(made, {"rerank": f"rerank {s.name}"}, clock)) for s, made in chain]
    return refine.rerank(str(text), hits, timed, k)


@contextmanager
def restored(engine: Engine) -> Iterator[None]:
    """Put back an engine's encoders and index, whatever stood in for them meanwhile."""
    encoders, index = dict(engine.encoders), engine.index
    try:
        yield
    finally:
        engine.encoders.update(encoders)
        engine.index = index


def foresee(engine: Any, queries: Sequence[str]) -> None:
    for role, encoder in list(engine.encoders.items()):
        engine.encoders[role] = Foreseen(encoder, queries)
