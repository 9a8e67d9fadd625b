"""Orders that need only the ranks: best first, best last, best at both ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.types import Context, Kept

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources


class Ranked:
    """Best first, as ranked: by `hit.score`, equal ones as they came."""

    name = "ranked"

    def __init__(self, resources: Resources) -> None:
        pass

    def order(self, query: str, context: Context) -> Context:
        return arranged(context, ranked(context.kept), self.name)


class Reversed:
    """Best last, next to the question, where small readers look most."""

    name = "reversed"

    def __init__(self, resources: Resources) -> None:
        pass

    def order(self, query: str, context: Context) -> Context:
        return arranged(context, ranked(context.kept)[::-1], self.name)


class Sides:
    """Best at both ends, worst in the middle: 1, 3, 5, ..., 6, 4, 2.

    Readers use the ends of a long context better than its middle (arXiv 2307.03172).
    """

    name = "sides"

    def __init__(self, resources: Resources) -> None:
        pass

    def order(self, query: str, context: Context) -> Context:
        best = ranked(context.kept)
        return arranged(context, best[::2] + best[1::2][::-1], self.name)


def ranked(kept: Sequence[Kept]) -> list[Kept]:
    """Return what was kept, best hit first; equal ones as they came."""
    return sorted(kept, key=lambda one: -one.hit.score)


def arranged(context: Context, kept: Sequence[Kept], name: str, **told: Any) -> Context:
    """Return the context in this order, and say who chose it."""
    told = {"by": name, "passages": [k.hit.passage.id for k in kept], **told}
    trace = {**context.trace, "order": told}
    return dataclasses.replace(context, kept=tuple(kept), trace=trace)
