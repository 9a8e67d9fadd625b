"""Rerank by a language model's attention: one look, no generated text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Hit
from foveate.rerank.attention import AttentionScan, Look, shared_scan

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats, Ints

SCORINGS = ("icr", "reattn", "blockrank")
# BlockRank (arXiv 2510.05396) reads the last row's share of each passage as it is
_OF_SCORING: dict[str, dict[str, Any]] = {
    "blockrank": {"calibrate": False, "mask_deviations": None, "rows": "last", "share": "passages"}
}


class InContext:
    """Order hits by what the question's tokens attend to.

    `scores["attention"]` is the sum over chosen heads, any number; `score` is
    (1 + s / (1 + |s|)) / 2.

    Args:
        scoring: 'icr' (arXiv 2410.02642; with chosen heads QRHead or CoRe), 'reattn' (arXiv
            2602.19969, our form: see `reattn`), 'blockrank'.
        store: keep the passages' keys in the index's folder.
        options: of `AttentionScan`: heads, mode, rows, share, ...
    """

    name = "attention"
    reads = frozenset({"text", "table"})

    def __init__(
        self, resources: Resources, *, scoring: str = "icr", store: bool = False, **options: Any
    ) -> None:
        if scoring not in SCORINGS:
            raise ConfigError(f"unknown scoring {scoring!r} (known: {', '.join(SCORINGS)})")
        self._resources, self._scoring, self._store = resources, scoring, store
        self._options = {**_OF_SCORING.get(scoring, {}), **options}

    @property
    def scan(self) -> AttentionScan:
        return shared_scan(self._resources, store=self._store, **self._options)

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first, ties by passage id."""
        if not hits:
            return []
        look = self.scan.look(query, [hit.passage for hit in hits])
        values = reattn(look) if self._scoring == "reattn" else look.passage_scores
        return by_score(hits, values, self.name, squash)[:k]


def squash(value: float) -> float:
    return (1 + value / (1 + abs(value))) / 2


def by_score(hits: Sequence[Hit], values: Any, name: str, to_unit: Any) -> list[Hit]:
    """Return the hits in the order of a stage's own scores, mapped to 0..1 by `to_unit`."""
    scored = []
    for hit, value in zip(hits, values, strict=True):
        own = float(value) if math.isfinite(value) else -1e30
        scored.append(
            dataclasses.replace(hit, score=to_unit(own), scores={**hit.scores, name: own})
        )
    return sorted(scored, key=lambda hit: (-hit.scores[name], hit.passage.id))


def reattn(look: Look, *, power: float = 1.0, spread: float = 0.5) -> Floats:
    """Return (n,) float32: scores of which common words of the question count less.

    A token of the question that stands in df of n passages weighs log((n + 1) / (df + 1)) /
    log(n + 1), to `power`; a passage's sum is then tempered by how evenly it spreads, 1 + spread
    (H - 1) with the entropy H of its tokens, 0..1. The paper's abstract names both; the form is
    ours. With power = spread = 0 the scores are the tokens' sums.
    """
    n = len(look.token_scores)
    asked = set(look.question_ids.tolist())
    counts: dict[int, int] = {}
    for ids in look.token_ids:
        for token in set(ids.tolist()) & asked:
            counts[token] = counts.get(token, 0) + 1
    found = np.zeros(n, dtype=np.float32)
    for i, (scores, ids) in enumerate(zip(look.token_scores, look.token_ids, strict=True)):
        weights = _rarity(ids, counts, n) ** power
        kept = np.maximum(scores, 0.0) * weights
        whole = float(kept.sum())
        rest = float((np.minimum(scores, 0.0) * weights).sum())
        evenness = 1.0
        if whole > 0 and len(kept) > 1:
            shares = kept[kept > 0] / whole
            evenness = float(-(shares * np.log(shares)).sum() / math.log(len(kept)))
        found[i] = whole * (1 + spread * (evenness - 1)) + rest
    return found


def _rarity(ids: Ints, counts: dict[int, int], n: int) -> Floats:
    scale = math.log(n + 1)
    weights = [
        math.log((n + 1) / (counts[i] + 1)) / scale if n > 1 and i in counts else 1.0
        for i in ids.tolist()
    ]
    return np.array(weights, dtype=np.float32)
