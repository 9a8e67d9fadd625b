"""Where the tokens of open_clip's own byte-pair tokenizer stand in a text."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_END = "</w>"
_WORD_CHARS = 200


def byte_pair_spans(tokenizer: Any, text: str) -> NDArray[np.int32]:
    """Return (t, 2) int32: [start, end) in code points of each byte-pair token, ascending.

    The tokenizer reads a cleaned, lower-case copy and gives no offsets. Its pattern for words is
    applied to the text as it stands, and each word's tokens are laid over the word's characters
    by their bytes; a word whose bytes change in lower case shares its whole span among its
    tokens. Mended text (HTML entities, mojibake) may so differ by some tokens from the model's.
    """
    known: dict[str, list[int]] = {}
    spans: list[tuple[int, int]] = []
    for match in tokenizer.pat.finditer(text):
        # merging is quadratic in a word's length: an unbroken run is read in pieces
        for start in range(match.start(), match.end(), _WORD_CHARS):
            word = text[start : min(start + _WORD_CHARS, match.end())]
            if word not in known:
                known[word] = _count_bytes(tokenizer, word)
            spans += [(start + a, start + b) for a, b in _lay(word, known[word])]
    return np.array(spans, dtype=np.int32).reshape(-1, 2)


def _count_bytes(tokenizer: Any, word: str) -> list[int]:
    """Return how many bytes of the lower-case word each of its tokens holds."""
    coded = word.lower().encode("utf-8", "replace")
    units = "".join(tokenizer.byte_encoder[byte] for byte in coded)
    return [len(piece.removesuffix(_END)) for piece in tokenizer.bpe(units).split(" ")]


def _lay(word: str, n_bytes: list[int]) -> list[tuple[int, int]]:
    edges = list(itertools.accumulate((len(c.encode("utf-8", "replace")) for c in word), initial=0))
    if edges[-1] != sum(n_bytes):
        return [(0, len(word))] * len(n_bytes)
    spans: list[tuple[int, int]] = []
    start = 0
    for count in n_bytes:
        first = bisect.bisect_right(edges, start) - 1
        last = bisect.bisect_left(edges, start + count)
        spans.append((first, last))
        start += count
    return spans
