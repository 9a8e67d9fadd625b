"""Count the tokens of any stretch of a text, and cut where neither words nor characters break."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# tokenizers hold every token of a call in memory, so a long text is read in stretches
_STRETCH_CHARS = 100_000
# a token or a gap longer than this is counted as several: an unknown word may be megabytes
_LONG_CHARS = 48
_PIECE_CHARS = 4
_SPACE = re.compile(r"\s")
# a combining sequence longer than this may be cut
_SEQUENCE_CHARS = 64


class TokenIndex:
    """The token starts of a text. `token_spans` is called once for each stretch of it."""

    def __init__(self, text: str, token_spans: Callable[[str], NDArray[np.int32]]) -> None:
        self.text = text
        self._token_spans = token_spans
        parts: list[NDArray[np.int64]] = []
        for start, end in _stretches(text):
            spans = np.asarray(token_spans(text[start:end]), dtype=np.int64).reshape(-1, 2)
            parts.append(_starts(spans, end - start) + start)
        joined = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        self.starts: list[int] = joined.tolist()

    def count(self, start: int, end: int) -> int:
        """Count the tokens that start in [start, end)."""
        return bisect_left(self.starts, end) - bisect_left(self.starts, start)

    def split(self, start: int, end: int, room: int) -> Iterator[tuple[int, int]]:
        """Cut a stretch that has no better places into pieces of at most `room` tokens.

        Prefers the last space of a piece's second half; else cuts between tokens.
        """
        while start < end:
            first = bisect_left(self.starts, start)
            if first + room >= len(self.starts) or self.starts[first + room] >= end:
                cut = end
            else:
                cut = self._cut(start, self.starts[first + room])
            yield from self._fit(start, cut, room)
            start = cut
            while start < end and self.text[start].isspace():
                start += 1

    def _cut(self, start: int, limit: int) -> int:
        """The best place to cut in (start, limit]."""
        low = max(start + (limit - start) // 2, limit - 1000)
        space = _SPACE.search(self.text[low : limit + 1][::-1])
        return limit - space.start() if space else safe_cut(self.text, start, limit)

    def _fit(self, start: int, end: int, room: int) -> Iterator[tuple[int, int]]:
        """Halve a piece that has more tokens alone than it had in the text."""
        while end > start and self.text[end - 1].isspace():
            end -= 1
        if end - start <= 1 or len(self._token_spans(self.text[start:end])) <= room:
            if end > start:
                yield start, end
            return
        middle = safe_cut(self.text, start, (start + end) // 2)
        if middle >= end:
            yield start, end
            return
        yield from self._fit(start, middle, room)
        yield from self._fit(middle, end, room)


def _starts(spans: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Starts of the tokens, with more of them where a token or a gap is very long."""
    # byte-level tokens of one character share its span; some tokenizers give unordered or empty
    starts = np.maximum.accumulate(spans[:, 0]) if len(spans) else spans[:, 0]
    edges = np.concatenate([[0], starts, [length]])
    long = np.flatnonzero(np.diff(edges) > _LONG_CHARS)
    if not len(long):
        return starts
    extra = [np.arange(edges[i] + _PIECE_CHARS, edges[i + 1], _PIECE_CHARS) for i in long]
    return np.sort(np.concatenate([starts, *extra]))


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while len(text) - start > _STRETCH_CHARS:
        limit = start + _STRETCH_CHARS
        cut = text.rfind("\n", start + _STRETCH_CHARS // 2, limit) + 1
        if not cut:
            cut = text.rfind(" ", start + _STRETCH_CHARS // 2, limit)
        if cut <= 0:
            cut = safe_cut(text, start, limit)
        yield start, cut
        start = cut
    if start < len(text):
        yield start, len(text)


def safe_cut(text: str, start: int, cut: int) -> int:
    """Move a cut back to the start of a whole written character, in (start, cut]."""
    for i in range(cut, max(start, cut - _SEQUENCE_CHARS), -1):
        if is_boundary(text, i):
            return i
    # the stretch begins with one long sequence: its end is the nearest place, if it is near
    for i in range(cut + 1, min(len(text), cut + _SEQUENCE_CHARS) + 1):
        if is_boundary(text, i):
            return i
    return cut


def is_boundary(text: str, i: int) -> bool:
    """Whether a reader sees a new character at offset i (as Unicode's grapheme clusters do)."""
    if i <= 0 or i >= len(text):
        return True
    here, before = text[i], text[i - 1]
    if here < "\u0300":
        return not (here == "\n" and before == "\r")
    if unicodedata.category(here) in {"Mn", "Me", "Mc"} or here in "\u200c\u200d\u0e33\u0eb3":
        return False
    if before == "\u200d" or "\udc00" <= here <= "\udfff":
        return False
    if "\U0001f3fb" <= here <= "\U0001f3ff" or "\U000e0020" <= here <= "\U000e007f":
        return False
    if "\u1160" <= here <= "\u11ff":
        return False
    if "\u1100" <= before <= "\u115f" and (
        "\u1100" <= here <= "\u115f" or "\uac00" <= here <= "\ud7a3"
    ):
        return False
    if "\U0001f1e6" <= here <= "\U0001f1ff":
        n_flags = 0
        while n_flags < i and "\U0001f1e6" <= text[i - 1 - n_flags] <= "\U0001f1ff":
            n_flags += 1
        return n_flags % 2 == 0
    return True
