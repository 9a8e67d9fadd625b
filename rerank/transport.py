"""Rerank by optimal transport between sentences: aspect matching (Aspire, arXiv 2111.08366)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foveate.rerank.cross import encoded
from foveate.rerank.in_context import by_score

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Hit

MOST = 40  # sentences of one passage that are compared; the kernel is made for some tens


class Transport:
    """Order hits by the cost of carrying the question's sentences onto the passage's.

    Each sentence is encoded by the index's text encoder when it is asked for, so this is for
    short lists. `scores["transport"]` is minus the cost, 0 at best; `score` is exp of it.

    Args:
        blur: the weight of the entropy.
    """

    name = "transport"
    reads = frozenset({"text", "table"})

    def __init__(self, resources: Resources, *, blur: float = 0.05) -> None:
        self._resources, self._blur = resources, blur

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first, ties by passage id."""
        if not hits:
            return []
        import torch

        from foveate.kernels.sinkhorn import sinkhorn

        encoder = self._resources.encoders["text"]
        asked = self._sentences(query) or [query]
        each = [self._sentences(encoded(hit))[:MOST] for hit in hits]
        offsets = np.concatenate([[0], np.cumsum([len(some) for some in each])])
        vectors = encoder.encode([sentence for some in each for sentence in some])
        with torch.inference_mode():
            values = sinkhorn(
                torch.from_numpy(encoder.encode_queries(asked)),
                torch.from_numpy(vectors),
                torch.from_numpy(offsets.astype(np.int64)),
                blur=self._blur,
            )
        return by_score(hits, values.tolist(), self.name, _unit)[:k]

    def _sentences(self, text: str) -> list[str]:
        spans = self._resources.sentences(text)
        return [text[a:b] for a, b in spans if text[a:b].strip()]


def _unit(value: float) -> float:
    return math.exp(min(0.0, value))
