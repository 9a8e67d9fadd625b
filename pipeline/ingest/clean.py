"""Make extracted text canonical: every span in the index counts characters of what this returns."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

# symbol fonts put their bullets into the private-use area
_BULLETS = "\uf0b7\uf0a7\uf0d8\uf0fc\uf076\uf0a8\uf06c\uf06e"
_UNCLEAN = re.compile(
    "\u00ad[ \t]*\r?\n[ \t]*|\r\n?|[\u0085\u2028\u2029\x0b]"
    "|[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]"
    "|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad]+"
    # latin, armenian and hebrew ligatures; arabic letters in their positional forms
    "|[\ufb00-\ufb4f\ufb50-\ufbb1\ufe80-\ufefc]"
    f"|[{_BULLETS}]"
    "|[\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000f0000-\U0010ffff]+"
)


class Offsets:
    """Where characters of an original text stand in its cleaned text.

    Both directions are monotone; an offset inside a replaced stretch goes to that stretch's start.
    """

    __slots__ = ("_cleaned", "_original")

    def __init__(self, original: list[int], cleaned: list[int]) -> None:
        # knots: between two of them a text either runs in step or is one replaced stretch
        self._original = original
        self._cleaned = cleaned

    def cleaned(self, offset: int) -> int:
        """Return the offset in the cleaned text of an offset in the original."""
        return _shift(self._original, self._cleaned, offset)

    def original(self, offset: int) -> int:
        """Return the offset in the original text of an offset in the cleaned."""
        return _shift(self._cleaned, self._original, offset)


def _shift(source: list[int], target: list[int], offset: int) -> int:
    if not source or offset < source[0]:
        return offset
    i = bisect_right(source, offset) - 1
    moved = target[i] + offset - source[i]
    return min(moved, target[i + 1]) if i + 1 < len(target) else moved


def clean(text: str) -> tuple[str, Offsets]:
    """Return the text without what no reader should meet, and the map of its offsets.

    Surrogate pairs are joined, lone ones become U+FFFD; control characters, soft hyphens (with
    the line end they stand at), non-characters and private-use glyphs go, a symbol font's bullet
    becomes one; ligatures and Arabic positional forms become their letters; every line end
    becomes LF. Tabs and form feeds stay. A text that is clean is returned as it is.
    """
    first = _UNCLEAN.search(text)
    if first is None:
        return text, Offsets([], [])
    parts: list[str] = []
    original: list[int] = []
    cleaned: list[int] = []
    end = 0
    length = 0
    for match in _UNCLEAN.finditer(text, first.start()):
        start = match.start()
        found = _replacement(match.group())
        length += start - end
        original.append(start)
        cleaned.append(length)
        parts += (text[end:start], found)
        length += len(found)
        end = match.end()
        original.append(end)
        cleaned.append(length)
    parts.append(text[end:])
    return "".join(parts), Offsets(original, cleaned)


def _replacement(found: str) -> str:
    first = found[0]
    if first == "\r" or first in "\u0085\u2028\u2029\x0b":
        return "\n"
    if "\ud800" <= first <= "\udfff":
        if len(found) == 1:
            return "\ufffd"
        joined = found.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        return "" if unicodedata.category(joined) in {"Co", "Cn"} else joined
    if first in _BULLETS:
        return "\u2022"
    if "\ufb00" <= first <= "\ufefc" and not "\ufdd0" <= first <= "\ufdef":
        return unicodedata.normalize("NFKC", first)
    return ""


def clean_value(value: Any, depth: int = 6) -> Any:
    """Clean every string of a JSON value; below `depth` a value becomes its text."""
    if isinstance(value, str):
        return clean(value)[0]
    if value is None or isinstance(value, bool | int):
        # SQLite holds 64 bits
        return value if value is None or abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if depth == 0:
        return clean(str(value)[:1000])[0]
    if isinstance(value, Mapping):
        return {clean(str(k))[0]: clean_value(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean_value(item, depth - 1) for item in value]
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat else clean(str(value))[0]
