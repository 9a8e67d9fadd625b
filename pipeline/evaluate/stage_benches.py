"""Rerankers, compressors and kernels: every one that is registered, or those that are named."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import FoveateError
from foveate.pipeline.evaluate.bench import BenchError, Options, Row, rows_of
from foveate.pipeline.evaluate.benches import build_ours, texts_of, write_corpus
from foveate.pipeline.evaluate.kernel_cases import CASES
from foveate.pipeline.evaluate.timing import interleave
from foveate.pipeline.terminal import number

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Hit

N_QUERIES = 3
N_HITS = {"reranker": 50, "compressor": 20}
RATIO = 5

Asked = list[tuple[str, "list[Hit]"]]


def rerank(options: Options) -> list[Row]:
    """Rerank the 50 best passages of a query by each reranker that reads text."""

    def prepare(made: Any, asked: Asked, count: Any, engine: Engine) -> Callable[[], Any] | None:
        if "text" not in made.reads:
            return None
        for query, hits in asked:
            check_order(made.rerank(query, hits, 10), hits, 10)
        return lambda: [made.rerank(query, hits, 10) for query, hits in asked]

    return stages("reranker", "rerank", options, prepare, "10 of them in falling order")


def compress(options: Options) -> list[Row]:
    """Compress the 20 best passages of a query to a fifth of their tokens by each compressor."""

    def prepare(made: Any, asked: Asked, count: Any, engine: Engine) -> Callable[[], Any]:
        jobs = [(q, h, sum(count(hit.passage.text) for hit in h) // RATIO) for q, h in asked]
        for query, hits, budget in jobs:
            context = made.compress(query, hits, budget, count_tokens=count)
            spans = [
                engine.text(kept.hit.passage.source.id)[a:b]
                for kept in context.kept
                for a, b in kept.spans
            ]
            if not spans or sum(map(count, spans)) > budget:
                raise BenchError(
                    f"compress: expected up to {number(budget, 'token')}, got "
                    f"{sum(map(count, spans))}"
                )
        return lambda: [made.compress(q, h, n, count_tokens=count) for q, h, n in jobs]

    return stages("compressor", "compress", options, prepare, "within a fifth of the tokens")


def stages(
    kind: str,
    operation: str,
    options: Options,
    prepare: Callable[[Any, Asked, Any, Any], Callable[[], Any] | None],
    check: str,
) -> list[Row]:
    """Time the registered stages of a kind; one that cannot run here is told and left out."""
    from foveate.pipeline import refine, registry

    names = wanted(registry.names(kind), options.of)
    contenders: dict[str, Callable[[], Any]] = {}
    with searched(options.n, N_HITS[kind]) as (engine, asked):
        lent = engine.refinery.resources
        count = lent.reader().count_tokens if kind == "compressor" else None
        for name in names:
            options.announce(f"  {name}")
            try:
                call = prepare(refine.make(kind, name, lent, {}), asked, count, engine)
            except BenchError as error:
                raise BenchError(f"{name}: {error}") from error
            except FoveateError as error:
                options.announce(f"  {name}: left out: {error}")
                continue
            if call is None:
                options.announce(f"  {name}: left out: it does not read text")
            else:
                contenders[name] = call
        if not contenders:
            return []
        # each was called once by its check: that is the warm-up
        timings = interleave(contenders, rounds=min(3, options.rounds), warmup=0)
    told = f"{N_QUERIES} queries a call, {N_HITS[kind]} passages each; {check}"
    return rows_of(operation, timings, n=options.n, items=N_QUERIES, check=told)


def kernels(options: Options) -> list[Row]:
    """Time each kernel beside its explicit formula and its peers, on this machine's processor."""
    import torch

    rows = []
    for name in wanted(CASES, options.of):
        options.announce(f"  {name}")
        torch.manual_seed(0)
        contenders, check = CASES[name](options.has)
        timings = interleave(contenders, rounds=options.rounds)
        shape = (CASES[name].__doc__ or "").strip().rstrip(".")
        rows += rows_of(f"kernel {name}", timings, n=1, check=f"{shape}; {check}")
    return rows


def wanted(known: Sequence[str] | dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the names that are asked for and known here, all that are known for none."""
    return [name for name in names if name in known] or list(known)


def check_order(found: Sequence[Hit], hits: Sequence[Hit], k: int) -> None:
    """See that a reranker returns k of its hits, best first, each once.

    Raises:
        BenchError: if not.
    """
    ids = [hit.passage.id for hit in found]
    given = {hit.passage.id for hit in hits}
    if len(ids) != min(k, len(given)) or len(set(ids)) != len(ids) or not set(ids) <= given:
        raise BenchError(
            f"rerank: expected {k} of {number(len(given), 'hit')}, once each, got {ids}"
        )
    keys = [(-hit.score, hit.passage.id) for hit in found]
    if keys != sorted(keys):
        raise BenchError("rerank: the hits are not in the order of their scores")


@contextmanager
def searched(n: int, k: int) -> Iterator[tuple[Engine, Asked]]:
    """Give an engine over n texts, and queries with the k best hits of each."""
    import foveate

    texts = texts_of(n)
    queries = [" ".join(t.split()[3:13]) for t in texts[:: max(1, len(texts) // N_QUERIES)]]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "bench.fov"
        build_ours(write_corpus(texts, Path(folder)), place)
        with foveate.open(place) as engine:
            asked = [
                (q, engine.search(q, k=k, modality="text", collapse=False, rerank=False))
                for q in queries[:N_QUERIES]
            ]
            yield engine, asked
