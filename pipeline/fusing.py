"""From judged searches to fusion's weights: lists of hits, and which of them are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import FoveateError

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.evaluate.configurations import Configuration
    from foveate.pipeline.types import Hit

DEPTH = 50
Asked = tuple[str, Callable[["Hit"], bool], str | None]


def learn(
    sets: Sequence[str],
    cache: Path,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Any, dict[str, int]]:
    """Fit weights to evaluation sets, each of the same weight.

    A question set teaches with its own documents and with those of all its questions. Of a set
    with a train split only that is taken. preset, settings: of the searches whose lists teach.

    Returns:
        (`foveate.rerank.fusion.Weights`, {set: lists}).
    """
    from foveate.pipeline.evaluate.configurations import Configuration
    from foveate.rerank.fusion_fit import fit_both

    base = Configuration("fuse", preset=preset, settings=dict(settings or {}))
    lists: list[Any] = []
    counts: dict[str, int] = {}
    for name in sets:
        for task, engine, asked in _tasks(name, base, cache):
            tell(task)
            some = list(judged(engine, asked))
            weighed = [_weighed(j, 1 / max(1, len(some))) for j in some]
            lists += weighed
            counts[task] = len(weighed)
    weights, _ = fit_both(lists)
    return weights, counts


def learn_from(engine: Engine, rows: Sequence[Mapping[str, Any]]) -> tuple[Any, dict[str, int]]:
    """Fit weights to a user's judgments of an index.

    rows: `query`, and `relevant`: labels of passages, or names or paths of their files.

    Raises:
        FoveateError: for a row without them.
    """
    from foveate.rerank.fusion_fit import fit_both

    asked: list[Asked] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("query"), str) or not isinstance(row.get("relevant"), list):
            raise FoveateError(f"judgment {number} needs a query and a list relevant: {row!r}")
        asked.append((row["query"], _names({str(n) for n in row["relevant"]}), None))
    weights, counts = fit_both(list(judged(engine, asked)))
    return weights, counts


def judged(engine: Engine, asked: Sequence[Asked]) -> Iterator[Any]:
    """Yield the list that each query gives, judged."""
    import numpy as np

    from foveate.rerank.fusion import gather, see
    from foveate.rerank.fusion_fit import Judged

    for query, is_right, where in asked:
        hits = engine.search(
            query, k=DEPTH, where=where, modality=("text", "table"), group="source",
            collapse=False, rerank=False,
        )  # fmt: skip
        if hits:
            right = np.array([is_right(hit) for hit in hits], dtype=bool)
            yield Judged(see(gather(engine.refinery.resources, query, hits)), right)


def _weighed(judged: Any, weight: float) -> Any:
    import dataclasses

    return dataclasses.replace(judged, weight=weight)


def _names(wanted: set[str]) -> Callable[[Hit], bool]:
    def is_right(hit: Hit) -> bool:
        passage = hit.passage
        return bool(wanted & {passage.label, passage.source.name, *passage.source.uris})

    return is_right


def _has_id(wanted: set[str]) -> Callable[[Hit], bool]:
    return lambda hit: str(hit.passage.metadata.get("_id")) in wanted


def _tasks(
    name: str, base: Configuration, cache: Path
) -> Iterator[tuple[str, Engine, list[Asked]]]:
    from foveate.pipeline.evaluate import corpora, datasets
    from foveate.pipeline.evaluate.sets import Questions, Retrieval, own_golds, pool

    folder = datasets.find(name)
    split = "train" if (folder / "qrels" / "train.tsv").is_file() else None
    for dataset in datasets.load(name, split=split):
        if isinstance(dataset, Questions):
            golds = own_golds(dataset)
            asked: list[Asked] = [
                (q.text, _has_id(golds[q.id]), f"eval_question = 'q{i}'")
                for i, q in enumerate(dataset.questions)
            ]
            with corpora.indexed(dataset, base, cache) as built:
                yield dataset.name, built.engine, asked
        found = pool(dataset) if isinstance(dataset, Questions) else dataset
        if isinstance(found, Retrieval):
            pooled: list[Asked] = [
                (text, _has_id({d for d, gain in found.qrels[q].items() if gain > 0}), None)
                for q, text in found.queries.items()
                if q in found.qrels
            ]
            with corpora.indexed(found, base, cache) as built:
                yield found.name, built.engine, pooled


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines.

    Raises:
        FoveateError: if it is not that.
    """
    import json

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise FoveateError(f"cannot read judgments from {str(path)!r}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows += [dict(json.loads(line))] if line.strip() else []
        except (ValueError, TypeError) as error:
            raise FoveateError(
                f"line {number} of {str(path)!r} is no judgment: expected "
                f'{{"query": ..., "relevant": [...]}}, got {line[:60]!r}'
            ) from error
    return rows
