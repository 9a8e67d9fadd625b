"""Hard negatives: what the encoder ranks high for a query and nobody called relevant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.train.data import Example, Relevance, key_of

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Mining:
    """Which candidates become negatives.

    n: negatives a pair. depth: candidates are the first `depth` of the ranking. skip: the best
    ones left out. ceiling: a candidate scoring above this part of the positive's own score is
    taken for a false negative (NV-Retriever's relative margin, Moreira et al. 2024,
    arXiv:2407.15831). twin: so is one whose cosine with the positive is above this.
    """

    n: int = 4
    depth: int = 60
    skip: int = 0
    ceiling: float = 0.95
    twin: float = 0.95


@dataclass(frozen=True, slots=True)
class Mined:
    """Examples with negatives, and how many candidates were taken for false negatives."""

    examples: list[Example]
    n_filtered: int


def mine(
    examples: Sequence[Example],
    corpus: Sequence[Any],
    vectors: Floats,
    encode_queries: Callable[[Sequence[Any]], Floats],
    mining: Mining,
    *,
    relevance: Relevance | None = None,
    seed: int = 0,
) -> Mined:
    """Give each example negatives from a corpus, beside those it has.

    Args:
        examples: pairs; those of a query share what is known to be relevant.
        corpus: n documents.
        vectors: (n, d) float32, L2-normalised, of the corpus.
        encode_queries: (q queries) -> (q, d) float32, L2-normalised.
        mining: what is taken.
        relevance: what is known to be relevant, over more than these examples.
        seed: of the draw among the candidates.
    """
    known = relevance or Relevance.of(examples)
    rows = {key_of(document): row for row, document in enumerate(corpus)}
    queries = list({key_of(e.query): e.query for e in examples}.values())
    numbers = {key_of(query): number for number, query in enumerate(queries)}
    asked = encode_queries(queries)
    ranked, scores = _rank(asked, vectors, mining.depth + mining.skip)
    found, n_filtered = [], 0
    for place, example in enumerate(examples):
        number = numbers[key_of(example.query)]
        own = rows.get(key_of(example.positive))
        chosen: list[int] = []
        for row, score in zip(ranked[number].tolist(), scores[number].tolist(), strict=True):
            if known.has(example.query, corpus[row]) or is_part(corpus[row], example.positive):
                continue
            if own is not None and _is_false(vectors, row, own, score, asked[number], mining):
                n_filtered += 1
                continue
            chosen.append(row)
        chosen = chosen[mining.skip :]
        draw = np.random.default_rng([seed, place])
        picked = draw.permutation(len(chosen))[: mining.n]
        negatives = tuple(corpus[chosen[i]] for i in picked.tolist())
        found.append(dataclasses.replace(example, negatives=(*example.negatives, *negatives)))
    return Mined(found, n_filtered)


def is_part(candidate: Any, positive: Any) -> bool:
    """Tell whether a passage is a piece of the positive: its text below its line of context."""
    if not (isinstance(candidate, str) and isinstance(positive, str)):
        return False
    head, _, body = candidate.partition("\n")
    return (body or head).strip() in positive


def _is_false(
    vectors: Floats, row: int, own: int, score: float, asked: Floats, mining: Mining
) -> bool:
    """Tell whether a candidate is probably relevant: near the positive, or nearer than it."""
    limit = mining.ceiling * float(asked @ vectors[own])
    return score > limit or float(vectors[row] @ vectors[own]) > mining.twin


def _rank(queries: Floats, vectors: Floats, depth: int) -> tuple[np.ndarray, Floats]:
    """Return the first `depth` rows of each query's exact ranking and their scores."""
    depth = min(depth, len(vectors))
    rows = np.empty((len(queries), depth), dtype=np.int64)
    for first in range(0, len(queries), _BLOCK):
        products = queries[first : first + _BLOCK] @ vectors.T
        best = np.argpartition(-products, depth - 1, axis=1)[:, :depth]
        order = np.argsort(-np.take_along_axis(products, best, axis=1), axis=1, kind="stable")
        rows[first : first + _BLOCK] = np.take_along_axis(best, order, axis=1)
    scores = np.einsum("qd,qkd->qk", queries, vectors[rows])
    return rows, np.asarray(scores, dtype=np.float32)
