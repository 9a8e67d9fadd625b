"""CAFE: coarse to fine, passages first and then what stands in them (arXiv 2505.10063).

    b_h(d) = a_h(q, d) / sum_d' a_h(q, d')
    coarse: the union, over some heads, of each head's best passages
    fine: the same again on the shortened prompt, whose best passages are kept first

The budget is filled with sentences: those of the fine passages by the attention that they get, then
those of the coarse ones, then the rest. What the paper adds to the reader's attention while it
writes is no part of a compressor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Hit
from foveate.rerank.compress.attended import means
from foveate.rerank.compress.valued import ByValue, Valued

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.compress.units import Unit


class Cafe(ByValue):
    """Passages by the best heads, twice, then their sentences.

    Args:
        resources: what the engine lends.
        coarse_heads, coarse_passages: heads that vote in the first stage, and how many passages
            each brings in.
        fine_heads, fine_passages: the same of the second stage.
        scan: options of the first stage's attention scan; the second reads in order.
    """

    name = "cafe"

    def __init__(
        self,
        resources: Resources,
        *,
        coarse_heads: int = 4,
        coarse_passages: int = 4,
        fine_heads: int = 4,
        fine_passages: int = 2,
        **scan: Any,
    ) -> None:
        if min(coarse_heads, coarse_passages, fine_heads, fine_passages) < 1:
            raise ConfigError("compressor 'cafe' needs heads and passages >= 1 in both stages")
        super().__init__(resources)
        self.coarse = (coarse_heads, coarse_passages)
        self.fine = (fine_heads, fine_passages)
        self._options = scan

    def value(self, query: str, hits: Sequence[Hit], found: Sequence[Unit]) -> Valued:
        """Return each unit's level, 0 to 2, and below it the attention that it gets."""
        from foveate.rerank.attention import shared_scan

        passages = [hit.passage for hit in hits]
        first = shared_scan(self._resources, **self._options).look(query, passages)
        coarse = union(shares(first.head_scores), *self.coarse)
        again = {**self._options, "mode": "causal"}
        second = shared_scan(self._resources, **again).look(query, [passages[i] for i in coarse])
        fine = [coarse[i] for i in union(shares(second.head_scores), *self.fine)]
        values = means(first, hits, found)
        level = np.asarray([(u.hit in coarse) + (u.hit in fine) for u in found], dtype=np.float32)
        top = float(np.abs(values).max(initial=0.0)) or 1.0
        told = {"coarse": [passages[i].id for i in coarse], "fine": [passages[i].id for i in fine]}
        return Valued(values / (2 * top) + level, told)


def shares(scores: Floats) -> Floats:
    """Return (n, h): each head's scores as shares of what it gives to all passages."""
    positive = np.maximum(scores, 0)
    found: Floats = positive / np.maximum(positive.sum(axis=0, keepdims=True), 1e-9)
    return found


def union(scores: Floats, n_heads: int, n_passages: int) -> list[int]:
    """Return the passages that one of the first heads ranks among its best, the worst first."""
    voting = scores[:, :n_heads]
    chosen: set[int] = set()
    for column in voting.T:
        chosen |= set(np.argsort(-column, kind="stable")[:n_passages].tolist())
    return sorted(chosen, key=lambda i: (float(voting[i].sum()), -i))
