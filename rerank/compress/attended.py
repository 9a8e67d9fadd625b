"""Keep what the reader's question tokens look at: ICR's token scores, summed over sentences.

A training-free relative of Sentinel: the scan's calibrated scores (ICR, arXiv 2410.02642; chosen
heads as in QRHead, arXiv 2506.09944), one look for all candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.types import Context, Hit
from foveate.rerank.compress import packing, units

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.attention import Look
    from foveate.rerank.compress.units import Unit


class Attended:
    """Sentences by the attention that a token of theirs gets, on the mean.

    Args:
        resources: what the engine lends.
        passage: how much the whole passage's score adds to each of its sentences.
        scan: options of the attention scan.
    """

    name = "attention"

    def __init__(self, resources: Resources, *, passage: float = 0.3, **scan: Any) -> None:
        self._resources = resources
        self.passage = passage
        self._options = scan

    def compress(
        self,
        query: str,
        hits: Sequence[Hit],
        budget_tokens: int,
        *,
        count_tokens: Callable[[str], int],
    ) -> Context:
        """Return the sentences that are looked at, of at most budget_tokens."""
        from foveate.rerank.attention import shared_scan

        everything = packing.whole(hits, budget_tokens, count_tokens)
        if everything is not None:
            return everything
        found = units.cut(hits, self._resources.sentences)
        scan = shared_scan(self._resources, **self._options)
        look = scan.look(query, [hit.passage for hit in hits])
        values = means(look, hits, found) + self.passage * passage_means(look)[owners(found)]
        told = {"windows": int(look.n_windows.sum())}
        return by_score(self.name, hits, found, values, budget_tokens, count_tokens, told)


def by_score(
    name: str,
    hits: Sequence[Hit],
    found: Sequence[Unit],
    values: Floats,
    budget_tokens: int,
    count_tokens: Callable[[str], int],
    told: dict[str, Any],
) -> Context:
    """Keep units by their values, best first, while they fit."""
    order = np.argsort(-values, kind="stable").tolist()
    kept = packing.pack(hits, [found[i] for i in order], budget_tokens, count_tokens)
    scores: dict[int, float] = {}
    for unit, value in zip(found, values.tolist(), strict=True):
        if kept.holds(unit):
            scores[unit.hit] = max(scores.get(unit.hit, value), value)
    return kept.context(scores, {"by": name, "units": len(found), **told})


def owners(found: Sequence[Unit]) -> NDArray[np.int64]:
    """Return (n,) int64, the hit of each unit."""
    return np.asarray([unit.hit for unit in found], dtype=np.int64)


def passage_means(look: Look) -> Floats:
    """Return (hits,) float32, the mean score of a token of each passage."""
    return np.asarray([s.mean() if len(s) else 0.0 for s in look.token_scores], dtype=np.float32)


def means(look: Look, hits: Sequence[Hit], found: Sequence[Unit]) -> Floats:
    """Return (n,) float32, the mean score of a token of each unit."""
    sums = [over(look.token_scores[u.hit][:, None], look, hits, u)[0] for u in found]
    return np.asarray(sums, dtype=np.float32)


def over(scores: Floats, look: Look, hits: Sequence[Hit], unit: Unit) -> Floats:
    """Return (h,) float32, the mean of scores (t, h) over a unit's tokens; 0 where it has none."""
    spans = look.token_spans[unit.hit]
    base = (hits[unit.hit].passage.locator.span or (0, 0))[0]
    inside = (spans[:, 0] < unit.span[1] - base) & (spans[:, 1] > unit.span[0] - base)
    if not inside.any():
        return np.zeros(scores.shape[1], dtype=np.float32)
    found: Floats = scores[inside].mean(axis=0).astype(np.float32)
    return found
