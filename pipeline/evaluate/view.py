"""An index as a diagnosis looks at it: passages, their vectors, the queries' vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.evaluate.sets import Retrieval

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Floats, Passage

BLOCK = 1000
TEXTS = frozenset({"text", "table"})


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A sample of the text passages of an index, and the queries that are asked of it.

    vectors: (n, d) float32 as stored, rows of NaN where the index has none. documents: the data
    set's id of each passage's document. asked: (q, d) float32, of `query_ids`.
    """

    engine: Engine
    dataset: Retrieval
    passages: list[Passage]
    vectors: Floats
    documents: list[str]
    query_ids: list[str]
    asked: Floats

    @property
    def present(self) -> Any:
        """(n,) bool: which passages have a vector."""
        return np.isfinite(self.vectors).all(axis=1)


def look(
    engine: Engine, dataset: Retrieval, *, n_passages: int = 5000, n_queries: int = 200
) -> View:
    """Take a sample of an index, spread evenly, and encode a sample of the queries."""
    every = [p for p in all_passages(engine) if p.modality in TEXTS]
    step = max(1.0, len(every) / n_passages)
    chosen = [every[int(i * step)] for i in range(min(len(every), n_passages))]
    ids = [p.id for p in chosen]
    query_ids = list(dataset.queries)[:n_queries]
    return View(
        engine,
        dataset,
        chosen,
        engine.index.vectors(ids, "text"),
        [str(p.metadata.get("_id", p.source.id)) for p in chosen],
        query_ids,
        engine.encoders["text"].encode_queries([dataset.queries[q] for q in query_ids]),
    )


def all_passages(engine: Engine) -> Iterator[Passage]:
    """Yield every passage of an index by id; ids are given in order and never reused."""
    n_left, start, n_empty = engine.index.count(), 1, 0
    while n_left > 0 and n_empty < 1000:
        found = engine.index.passages(list(range(start, start + BLOCK)))
        yield from found
        n_left -= len(found)
        n_empty = 0 if found else n_empty + 1
        start += BLOCK


def best_by_document(view: View, queries: Floats) -> tuple[Any, list[str]]:
    """Return the cosine of each query with each document's best passage.

    Returns:
        (q, m) float32 and the m documents' ids; a document without any vector has -1.
    """
    names = list(dict.fromkeys(view.documents))
    places = {name: i for i, name in enumerate(names)}
    cosines = queries @ np.nan_to_num(view.vectors).T
    cosines[:, ~view.present] = -1.0
    best = np.full((len(queries), len(names)), -1.0, dtype=np.float32)
    columns = np.array([places[d] for d in view.documents], dtype=np.int64)
    for row in range(len(queries)):
        np.maximum.at(best[row], columns, cosines[row])
    return best, names
