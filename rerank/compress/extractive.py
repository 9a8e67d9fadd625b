"""Keep the sentences nearest to the question, each different from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foveate.pipeline.types import Hit
from foveate.rerank.compress import units
from foveate.rerank.compress.valued import ByValue, Valued
from foveate.rerank.compress.words import bm25, stems

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats

TITLE_CHARS = 80
MOST_UNITS = 400  # encoded for one question; the rest are left out by their words
TEMPERATE = 1e-6


class Extractive(ByValue):
    """Sentence embeddings and BM25, by maximal marginal relevance.

    A unit's relevance is the mean of its cosine with the question and of its BM25, each scaled to
    0..1 over the candidates. What is like a unit already kept loses `redundancy` times the
    likeness; what stands next to one gains `neighbours` times its relevance (MMR, Carbonell and
    Goldstein 1998).
    """

    name = "extractive"

    def __init__(
        self,
        resources: Resources,
        *,
        lexical: float = 0.3,
        redundancy: float = 0.2,
        neighbours: float = 0.1,
    ) -> None:
        super().__init__(resources)
        self.lexical = lexical
        self.redundancy = redundancy
        self.neighbours = neighbours

    def value(self, query: str, hits: Sequence[Hit], found: Sequence[units.Unit]) -> Valued:
        """Return each unit's relevance, and the order of marginal relevance."""
        relevance, likeness = self._measure(query, hits, found)
        order = marginal(found, relevance, likeness, self.redundancy, self.neighbours)
        return Valued(relevance, order=order)

    def _measure(
        self, query: str, hits: Sequence[Hit], found: Sequence[units.Unit]
    ) -> tuple[Floats, Floats]:
        """Return relevance (n,) within 0..1 and the cosines (n, n) of the units."""
        import numpy as np

        words = [stems(readable(hits[unit.hit], unit.text)) for unit in found]
        lexical = scaled(bm25(stems(query), words))
        n = len(found)
        chosen = np.sort(np.argsort(-lexical, kind="stable")[:MOST_UNITS])
        encoder = self._resources.encoders["text"]
        vectors = np.zeros((n, encoder.dim), dtype=np.float32)
        texts = [readable(hits[found[i].hit], found[i].text) for i in chosen]
        vectors[chosen] = encoder.encode(texts)
        cosines = vectors @ encoder.encode_queries([query])[0]
        dense = np.zeros(n, dtype=np.float32)
        dense[chosen] = scaled(cosines[chosen])
        relevance = (1 - self.lexical) * dense + self.lexical * lexical
        return relevance.astype(np.float32), vectors @ vectors.T


def readable(hit: Hit, text: str) -> str:
    """Return a unit behind its title, which says whom a `he` or `it` in it means."""
    title = " ".join(hit.passage.context.split())[:TITLE_CHARS]
    return f"{title}: {text}" if title else text


def scaled(values: Floats) -> Floats:
    """Return the values mapped to 0..1; 0 where they are all the same."""
    import numpy as np

    if not len(values) or float(np.ptp(values)) < TEMPERATE:
        return np.zeros(len(values), dtype=np.float32)
    found: Floats = ((values - values.min()) / np.ptp(values)).astype(np.float32)
    return found


def marginal(
    found: Sequence[units.Unit],
    relevance: Floats,
    likeness: Floats,
    redundancy: float,
    neighbours: float,
) -> list[int]:
    """Order units by what each adds to those before it."""
    import numpy as np

    n = len(found)
    worst = np.zeros(n, dtype=np.float32)
    bonus = np.zeros(n, dtype=np.float32)
    left = np.ones(n, dtype=bool)
    order = []
    for _ in range(n):
        value = np.where(left, relevance - redundancy * worst + bonus, -np.inf)
        best = int(value.argmax())
        order.append(best)
        left[best] = False
        worst = np.maximum(worst, likeness[best])
        for near in (best - 1, best + 1):
            if 0 <= near < n and found[near].hit == found[best].hit:
                bonus[near] = max(bonus[near], neighbours * float(relevance[near]))
    return order
