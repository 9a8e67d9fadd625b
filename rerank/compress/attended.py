"""Keep what the reader's question tokens look at: ICR's token scores, summed over sentences.

A training-free relative of Sentinel: the scan's calibrated scores (ICR, arXiv 2410.02642; chosen
heads as in QRHead, arXiv 2506.09944), one look for all candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.types import Hit
from foveate.rerank.compress.valued import ByValue, Valued

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.attention import Look
    from foveate.rerank.compress.units import Unit


class Attended(ByValue):
    """Sentences by the attention that a token of theirs gets, on the mean.

    Args:
        resources: what the engine lends.
        passage: how much the whole passage's score adds to each of its sentences.
        scan: options of the attention scan.
    """

    name = "attention"

    def __init__(self, resources: Resources, *, passage: float = 0.3, **scan: Any) -> None:
        super().__init__(resources)
        self.passage = passage
        self._options = scan

    def value(self, query: str, hits: Sequence[Hit], found: Sequence[Unit]) -> Valued:
        """Return each unit's mean score of a token, and a part of its passage's."""
        from foveate.rerank.attention import shared_scan

        scan = shared_scan(self._resources, **self._options)
        look = scan.look(query, [hit.passage for hit in hits])
        values = means(look, hits, found) + self.passage * passage_means(look)[owners(found)]
        return Valued(values, {"windows": int(look.n_windows.sum())})


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
