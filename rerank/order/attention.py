"""Orders by what the reader itself looks at: attention sorting, found in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Context, Kept
from foveate.rerank.order.places import arranged, ranked

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.attention import AttentionScan

DUMMY = "This passage has no content that matters here. "


class AttentionSorting:
    """Best last, by attention, until the order is stable (arXiv 2310.01427).

    Each pass reads the context in its present order and puts what the last token of the prompt
    looked at most, per token, to the end.

    Args:
        resources: what the engine lends.
        passes: at most so many.
        scan: options of the attention scan; every head unless `heads` are named.
    """

    name = "attention"

    def __init__(self, resources: Resources, *, passes: int = 3, **scan: Any) -> None:
        if passes < 1:
            raise ConfigError(f"order {self.name!r} needs passes >= 1, got {passes}")
        self._resources = resources
        self.passes = passes
        self._options = scan

    def order(self, query: str, context: Context) -> Context:
        """Return the context, what is looked at most last."""
        kept = ranked(context.kept)
        if len(kept) < 2:
            return arranged(context, kept, self.name)
        n_passes = 0
        while n_passes < self.passes:
            n_passes += 1
            seen = attention(reader_scan(self._resources, self._options), query, texts(kept))
            places = np.argsort(seen, kind="stable").tolist()
            kept = [kept[i] for i in places]
            if places == sorted(places):
                break
        return arranged(context, kept, self.name, passes=n_passes)


class FoundInTheMiddle:
    """Best last, by attention less what any text would get at the same place (arXiv 2406.16008).

        rel(d, k) = attention(d at place k) - attention(a dummy at place k)

    Args:
        resources: what the engine lends.
        dummies: 'together' reads one prompt of dummies only; 'each' puts a dummy in the place of
            one passage after another, as the paper does, at one reading a passage.
        scan: options of the attention scan.
    """

    name = "middle"

    def __init__(self, resources: Resources, *, dummies: str = "together", **scan: Any) -> None:
        if dummies not in ("together", "each"):
            raise ConfigError(
                f"order {self.name!r}: dummies must be 'together' or 'each', got {dummies!r}"
            )
        self._resources = resources
        self.dummies = dummies
        self._options = scan

    def order(self, query: str, context: Context) -> Context:
        """Return the context, the most relevant last."""
        kept = ranked(context.kept)
        if len(kept) < 2:
            return arranged(context, kept, self.name)
        scan = reader_scan(self._resources, self._options)
        shown = texts(kept)
        seen = attention(scan, query, shown) - self._expected(scan, query, shown)
        return arranged(context, [kept[i] for i in np.argsort(seen, kind="stable")], self.name)

    def _expected(self, scan: AttentionScan, query: str, shown: Sequence[str]) -> Floats:
        blanks = [dummy(text) for text in shown]
        if self.dummies == "together":
            return attention(scan, query, blanks)
        found = np.zeros(len(shown), dtype=np.float32)
        for place in range(len(shown)):
            mixed = [*shown[:place], blanks[place], *shown[place + 1 :]]
            found[place] = attention(scan, query, mixed)[place]
        return found


def reader_scan(resources: Resources, options: dict[str, Any]) -> AttentionScan:
    """Return a scan that reads as an answer is written: in order, from the last token."""
    from foveate.rerank.attention import shared_scan

    chosen: dict[str, Any] = {
        "heads": "all",
        "mode": "causal",
        "rows": "last",
        "calibrate": False,
        "mask_deviations": None,
        "share": "prompt",
    }
    return shared_scan(resources, **{**chosen, **options})


def attention(scan: AttentionScan, query: str, shown: Sequence[str]) -> Floats:
    """Return (n,) float32, the mean attention on a token of each text."""
    look = scan.look(query, shown)
    lengths = [max(1, len(scores)) for scores in look.token_scores]
    found: Floats = (look.passage_scores / np.asarray(lengths)).astype(np.float32)
    return found


def texts(kept: Sequence[Kept]) -> list[str]:
    """Return what is kept of each passage, below its context."""
    found = []
    for one in kept:
        passage = one.hit.passage
        base = passage.locator.span[0] if passage.locator.span else 0
        parts = [passage.text[a - base : b - base] for a, b in one.spans]
        found.append("\n".join([passage.context, *parts]).strip())
    return found


def dummy(text: str) -> str:
    """Return a text of the same length that says nothing."""
    return (DUMMY * (len(text) // len(DUMMY) + 1))[: max(1, len(text))]
