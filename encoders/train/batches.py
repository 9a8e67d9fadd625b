"""Batches in which no query meets a document that is known to answer it as a negative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foveate.encoders.train.data import Example, Relevance, key_of


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's inputs.

    columns: inputs by name. 'query' (b) and 'document' (n >= b, each text once) for pairs;
    'query' and 'again', the same texts, for unlabelled data; 'paraphrase' and 'edited' (b each)
    where the examples have them. targets: (b,) the document of each query. grades: (b,).
    """

    columns: Mapping[str, Sequence[Any]]
    targets: Sequence[int] = ()
    grades: Sequence[float] = ()


@dataclass(slots=True)
class _Open:
    examples: list[Example] = field(default_factory=list)
    queries: set[str] = field(default_factory=set)
    positives: set[str] = field(default_factory=set)


def batches(
    examples: Sequence[Example], relevance: Relevance, size: int, *, seed: int
) -> Iterator[Batch]:
    """Yield one epoch in an order that the seed decides, every example once.

    An example that does not fit into the open batch (its query or positive is there, or the
    positive answers another query of it) goes into a later one. The last batch may be smaller.
    """
    order = np.random.default_rng(seed).permutation(len(examples)).tolist()
    waiting = [examples[i] for i in order]
    while waiting:
        batch, later = _Open(), []
        for place, example in enumerate(waiting):
            if len(batch.examples) == size:
                later += waiting[place:]
                break
            if _fits(batch, example, relevance):
                batch.examples.append(example)
                batch.queries.add(key_of(example.query))
                batch.positives.add(key_of(example.positive))
            else:
                later.append(example)
        waiting = later
        yield make(batch.examples, relevance)


def _fits(batch: _Open, example: Example, relevance: Relevance) -> bool:
    query, positive = key_of(example.query), key_of(example.positive)
    if example.positive is None:
        return query not in batch.queries
    if query in batch.queries or positive in batch.positives:
        return False
    own = relevance.grades.get(query, {})
    if not batch.positives.isdisjoint(own):
        return False
    return all(positive not in relevance.grades.get(q, {}) for q in batch.queries)


def make(examples: Sequence[Example], relevance: Relevance) -> Batch:
    """Build a batch; a hard negative that answers another of its queries is left out."""
    queries = [example.query for example in examples]
    if all(example.positive is None for example in examples):
        return Batch({"query": queries, "again": queries})
    documents = {key_of(e.positive): e.positive for e in examples}
    targets = list(range(len(examples)))
    answers = set().union(*(relevance.grades.get(key_of(q), {}) for q in queries))
    for example in examples:
        for negative in example.negatives:
            key = key_of(negative)
            if key not in answers:
                documents.setdefault(key, negative)
    columns: dict[str, Sequence[Any]] = {"query": queries, "document": list(documents.values())}
    for name in ("paraphrase", "edited"):
        values = [getattr(example, name) for example in examples]
        if all(value is not None for value in values):
            columns[name] = values
    if "edited" in columns and "paraphrase" not in columns:
        columns["paraphrase"] = queries
    return Batch(columns, targets, [example.grade for example in examples])
