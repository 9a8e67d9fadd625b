"""Compressors that give every unit a value and keep the best, each a few lines on this ground."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.types import Context, Hit
from foveate.rerank.compress import packing, units

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.compress.units import Unit


@dataclass(frozen=True, slots=True, eq=False)
class Valued:
    """What units are worth. values: (n,) float32. told: for the trace.

    order: in which units are tried; None is the best value first.
    """

    values: Floats
    told: Mapping[str, Any] = field(default_factory=dict)
    order: Sequence[int] | None = None


class ByValue(abc.ABC):
    """Keeps everything where it fits, else unit after unit while they fit."""

    name: str

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def compress(
        self,
        query: str,
        hits: Sequence[Hit],
        budget_tokens: int,
        *,
        count_tokens: Callable[[str], int],
    ) -> Context:
        """Return the spans that are worth most, of at most budget_tokens."""
        everything = packing.whole(hits, budget_tokens, count_tokens)
        if everything is not None:
            return everything
        found = units.cut(hits, self._resources.sentences)
        valued = self.value(query, hits, found)
        return keep(self.name, hits, found, valued, budget_tokens, count_tokens)

    @abc.abstractmethod
    def value(self, query: str, hits: Sequence[Hit], found: Sequence[Unit]) -> Valued:
        """Say what each unit is worth to the question."""


def keep(
    name: str,
    hits: Sequence[Hit],
    found: Sequence[Unit],
    valued: Valued,
    budget_tokens: int,
    count_tokens: Callable[[str], int],
) -> Context:
    """Keep units in their order while they fit; a hit's score is its best kept unit's value."""
    order = valued.order
    if order is None:
        order = np.argsort(-valued.values, kind="stable").tolist()
    kept = packing.pack(hits, [found[i] for i in order], budget_tokens, count_tokens)
    scores: dict[int, float] = {}
    for unit, value in zip(found, valued.values.tolist(), strict=True):
        if kept.holds(unit):
            scores[unit.hit] = max(scores.get(unit.hit, value), value)
    return kept.context(scores, {"by": name, "units": len(found), **valued.told})
