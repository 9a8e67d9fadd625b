"""Put a canonical text together from the pieces that a loader takes out of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.types import Block, BlockKind

_SPACES = re.compile(r"[^\S\n]+")
_AROUND_BREAK = re.compile(r" ?\n ?")


class TextBuilder:
    """Joins pieces by an empty line and keeps the block of each.

    A piece is cleaned before it is added, so that offsets count canonical characters. `full` is
    set once `max_chars` are reached; later pieces are dropped.
    """

    def __init__(self, max_chars: int) -> None:
        self.blocks: list[Block] = []
        self.page_starts: list[int] = []
        self.full = False
        self.length = 0
        self._parts: list[str] = []
        self._max_chars = max_chars

    def text(self) -> str:
        return "".join(self._parts)

    def start_page(self) -> None:
        """Begin a page: pages are parted by a form feed."""
        if self.page_starts:
            self._write("\f")
        self.page_starts.append(self.length)

    def heading(self, text: str, level: int) -> None:
        text = one_line(text)
        if text:
            self._block("heading", text, level=level)

    def paragraph(self, text: str, kind: BlockKind = "paragraph") -> tuple[int, int] | None:
        """Add a paragraph; spaces are folded, line breaks kept. Return its span."""
        return self._block(kind, fold(clean(text)[0]))

    def items(self, items: Iterable[str]) -> None:
        """Add a list, one item a line."""
        lines = [line for item in items if (line := fold(clean(item)[0]))]
        self._block("list", "\n".join(lines))

    def verbatim(self, text: str) -> None:
        """Add code or other text whose spaces matter."""
        self._block("code", clean(text)[0].strip("\n"))

    def table(self, rows: Iterable[Sequence[str]], *, header: bool) -> None:
        """Add a table, one row a line, cells parted by ` | `; empty rows are left out."""
        start = end = head_end = 0
        for row in rows:
            cells = [one_line(cell) for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            if not cells or self.full:
                continue
            if not end:
                self._part()
                start = self.length
            self._write(("\n" if end else "") + " | ".join(cells))
            end = self.length
            head_end = head_end or end
        if end > start:
            span = (start, head_end) if header and head_end < end else None
            self.blocks.append(Block("table", start, end, header=span))

    def _block(self, kind: BlockKind, text: str, level: int = 0) -> tuple[int, int] | None:
        if not text.strip() or self.full:
            return None
        self._part()
        start = self.length
        self._write(text)
        self.blocks.append(Block(kind, start, self.length, level))
        return start, self.length

    def _part(self) -> None:
        if self._parts and not self._parts[-1].endswith("\f"):
            self._write("\n\n")

    def _write(self, text: str) -> None:
        if self.length + len(text) > self._max_chars:
            text = text[: self._max_chars - self.length]
            self.full = True
        if text:
            self._parts.append(text)
            self.length += len(text)


def fold(text: str) -> str:
    """Fold spaces to one and strip each line."""
    return _AROUND_BREAK.sub("\n", _SPACES.sub(" ", text)).strip()


def one_line(text: str) -> str:
    """Clean a text and fold all its white space to single spaces."""
    return " ".join(clean(text)[0].split())
