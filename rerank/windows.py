"""Rerank long passages by their best windows, with saturation (TKL, arXiv 2005.04908).

    tf(i, m, w) = sum over tokens j of window w of exp(-(cos(q_i, d_j) - mu_m)^2 / (2 sigma^2))
    s(w) = sum_i |q_i| sum_m mu_m log(1 + tf(i, m, w)) / sum_i |q_i|

The paper learns the weights of kernels, saturation and windows; here they are fixed: a kernel
weighs its centre, tf saturates by the logarithm, and the three best windows that do not overlap
count 1, 1/2 and 1/4. Token vectors are those of late interaction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.rerank.cross import encoded
from foveate.rerank.in_context import by_score
from foveate.rerank.late import ROLE, Late

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats, Hit, MultiVectors

WIDTH, STRIDE, APART = 30, 2, 15
CENTRES = np.linspace(0.1, 0.9, 5, dtype=np.float32)
SPREAD = 0.1
SHARES = (1.0, 0.5, 0.25)
Region = tuple[int, int, float]


class Windows:
    """Order hits by their best windows of tokens.

    `scores["windows"]` is the sum above, 0 at least; `score` is s / (1 + s).
    """

    name = "windows"
    reads = frozenset({"text", "table"})

    def __init__(self, resources: Resources, **options: Any) -> None:
        self._resources = resources
        self._late = Late(resources, **options)

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first, ties by passage id."""
        if not hits:
            return []
        asked = self._late.encoder.encode_queries([query]).vectors
        found = self._vectors(hits)
        values = [
            sum(
                share * region[2]
                for share, region in zip(SHARES, best(asked, found[i]), strict=False)
            )
            for i in range(len(hits))
        ]
        return by_score(hits, values, self.name, lambda s: s / (1 + s))[:k]

    def regions(self, query: str, hit: Hit) -> list[tuple[int, int, float]]:
        """Return (start, end, score) of the best windows, in code points of the passage's text."""
        asked = self._late.encoder.encode_queries([query]).vectors
        spans = self._late.encoder.spans(encoded(hit))
        head = len(hit.passage.context) + 1 if hit.passage.context else 0
        found = []
        for first, last, value in best(asked, self._vectors([hit])[0]):
            start, end = int(spans[first, 0]) - head, int(spans[last - 1, 1]) - head
            if end > 0:
                found.append((max(0, start), end, value))
        return found

    def _vectors(self, hits: Sequence[Hit]) -> MultiVectors:
        stored: MultiVectors | None = None
        if ROLE in self._resources.encoders:
            stored = self._resources.index.token_vectors([hit.passage.id for hit in hits])
        return stored or self._late.encoder.encode([encoded(hit) for hit in hits])


def best(asked: Floats, tokens: Floats) -> list[Region]:
    """Return (first token, last token + 1, score) of the best windows, at most three.

    asked: (q, d), each as long as its weight. tokens: (t, d), of length 1.
    """
    weights = np.linalg.norm(asked, axis=1)
    if not len(tokens) or not weights.sum():
        return []
    cosines = (asked / np.maximum(weights, 1e-9)[:, None]) @ tokens.T
    near = np.exp(-((cosines[..., None] - CENTRES) ** 2) / (2 * SPREAD**2))
    sums = np.concatenate([np.zeros((len(asked), 1, len(CENTRES))), near.cumsum(1)], axis=1)
    starts = np.arange(0, max(1, len(tokens) - WIDTH + STRIDE), STRIDE)
    ends = np.minimum(starts + WIDTH, len(tokens))
    counts = np.maximum(sums[:, ends] - sums[:, starts], 0.0)
    values = np.einsum("q,qwm,m->w", weights / weights.sum(), np.log1p(counts), CENTRES)
    found: list[Region] = []
    for w in np.argsort(-values, kind="stable").tolist():
        if all(abs(int(starts[w]) - start) >= APART for start, _, _ in found):
            found.append((int(starts[w]), int(ends[w]), float(values[w])))
        if len(found) == len(SHARES):
            break
    return [region for region in found if math.isfinite(region[2])]
