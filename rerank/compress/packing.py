"""Fit units into a budget, counted exactly: what is kept never exceeds it."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.types import Context, Hit, Kept
from foveate.rerank.compress import units

if TYPE_CHECKING:
    from foveate.rerank.compress.units import Span, Unit

    Count = Callable[[str], int]


def whole(hits: Sequence[Hit], budget_tokens: int, count_tokens: Count) -> Context | None:
    """Return everything where everything fits, else None."""
    packing = Packing(hits, budget_tokens, count_tokens)
    for i, hit in enumerate(hits):
        span = hit.passage.locator.span
        if span is not None and hit.passage.text.strip() and not packing.put(i, [span]):
            return None
    return packing.context({}, {"kept": "all"})


class Packing:
    """Spans of hits, grown one unit at a time under a budget.

    The tokens of the context are those of its spans, each counted by itself. Spans of one passage
    with nothing but blanks between them become one.
    """

    def __init__(self, hits: Sequence[Hit], budget_tokens: int, count_tokens: Count) -> None:
        self.hits = hits
        self.budget = budget_tokens
        self.n_tokens = 0
        self._count = count_tokens
        self._counts: dict[tuple[int, Span], int] = {}
        self._spans: list[list[Span]] = [[] for _ in hits]

    @property
    def room(self) -> int:
        return self.budget - self.n_tokens

    def add(self, unit: Unit) -> bool:
        """Keep a unit and what it needs; False where it does not fit or is kept already."""
        return self.put(unit.hit, [*unit.needs, unit.span])

    def put(self, hit: int, spans: Iterable[Span]) -> bool:
        """Keep spans of a hit, all or none."""
        joined = self._joined(hit, spans)
        if joined == self._spans[hit]:
            return False
        before = sum(self.count(hit, span) for span in self._spans[hit])
        after = sum(self.count(hit, span) for span in joined)
        if self.n_tokens - before + after > self.budget or self._held_elsewhere(hit, joined):
            return False
        self.n_tokens += after - before
        self._spans[hit] = joined
        return True

    def holds(self, unit: Unit) -> bool:
        place = bisect.bisect_right(self._spans[unit.hit], (unit.span[0], 1 << 60)) - 1
        return place >= 0 and self._spans[unit.hit][place][1] >= unit.span[1]

    def count(self, hit: int, span: Span) -> int:
        key = (hit, span)
        if key not in self._counts:
            self._counts[key] = self._count(self.text(hit, span))
        return self._counts[key]

    def text(self, hit: int, span: Span) -> str:
        base = (self.hits[hit].passage.locator.span or (0, 0))[0]
        return self.hits[hit].passage.text[span[0] - base : span[1] - base]

    def squeeze(self, unit: Unit) -> bool:
        """Keep as much of a unit as fits: its whole lines, else its words, else its characters."""
        text = self.text(unit.hit, unit.span)
        first = unit.span[0]
        ends = [b for _, b in units.lines(text)] if unit.kind != "prose" else []
        for stops in (ends, words(text), range(1, len(text) + 1)):
            if stops and self._longest(unit, first, stops):
                return True
        return False

    def _longest(self, unit: Unit, first: int, stops: Sequence[int]) -> bool:
        low, high = 0, len(stops)
        while low < high:
            middle = (low + high + 1) // 2
            if self.count(unit.hit, (first, first + stops[middle - 1])) <= self.room:
                low = middle
            else:
                high = middle - 1
        return low > 0 and self.put(unit.hit, [(first, first + stops[low - 1])])

    def context(self, scores: Mapping[int, float], trace: Mapping[str, Any]) -> Context:
        """Return what is kept, in the hits' order; pictures without text stay, without spans.

        scores: by the hit's number.
        """
        kept = tuple(
            Kept(hit, tuple(self._spans[i]), float(scores.get(i, hit.score)))
            for i, hit in enumerate(self.hits)
            if self._spans[i] or not hit.passage.text.strip()
        )
        names = {"of": len(self.hits), "n_tokens": self.n_tokens, "budget_tokens": self.budget}
        return Context(kept, self.n_tokens, {"compress": {**trace, **names}})

    def _joined(self, hit: int, spans: Iterable[Span]) -> list[Span]:
        found: list[Span] = []
        for start, end in sorted({*self._spans[hit], *spans}):
            near = found and (
                start <= found[-1][1] or not self.text(hit, (found[-1][1], start)).strip()
            )
            if near:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((start, end))
        return found

    def _held_elsewhere(self, hit: int, spans: Sequence[Span]) -> bool:
        """Whether another passage of the source keeps a part of these already."""
        source = self.hits[hit].passage.source.id
        return any(
            a < d and c < b
            for i, other in enumerate(self.hits)
            if i != hit and self._spans[i] and other.passage.source.id == source
            for a, b in self._spans[i]
            for c, d in spans
        )


def words(text: str) -> list[int]:
    """Return where each word ends."""
    ends = [i for i in range(1, len(text)) if text[i].isspace() and not text[i - 1].isspace()]
    return [*ends, len(text)] if text.strip() else []


def pack(
    hits: Sequence[Hit],
    chosen: Sequence[Unit],
    budget_tokens: int,
    count_tokens: Count,
) -> Packing:
    """Keep units in the order given while they fit; where none does, a part of the first."""
    packing = Packing(hits, budget_tokens, count_tokens)
    for unit in chosen:
        if packing.room <= 0:
            break
        packing.add(unit)
    if packing.n_tokens == 0:
        any(packing.squeeze(unit) for unit in chosen)
    return packing
