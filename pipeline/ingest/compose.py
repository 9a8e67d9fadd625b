"""Write pages of arranged words as canonical text, with a box for each word and the blocks."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from foveate.pipeline.ingest.glyphs import SOFT_HYPHEN
from foveate.pipeline.ingest.layout import Line, Piece, Word, is_spaceless
from foveate.pipeline.types import Block, BlockKind, WordBoxes

if TYPE_CHECKING:
    from foveate.pipeline.ingest.layout import Piece

HEADING_SCALE = 1.15
MAX_HEADING_CHARS = 200
MAX_LEVELS = 4
LETTERS = re.compile(r"[^\W\d_]+")


class Composer:
    """Collects the canonical text of a document, page by page.

    body_size: of its running text, in the words' units; larger lines become headings. vocabulary:
    words seen so far, which decide whether a hyphen at a line's end belongs to the word.
    """

    def __init__(self, max_chars: int) -> None:
        self.blocks: list[Block] = []
        self.page_starts: list[int] = []
        self.length = 0
        self.full = False
        self.body_size: float | None = None
        self.heading_sizes: list[float] = []
        self.vocabulary: set[str] = set()
        self._parts: list[str] = []
        self._max_chars = max_chars
        self._spans, self._pages, self._boxes = array("i"), array("i"), array("f")
        self._frame = (1, 1.0, 1.0)
        self._empty = True

    def learn(self, pages: Iterable[Sequence[Piece]]) -> None:
        """Take the body's letter size and the headings' from the first pages."""
        sizes: Counter[float] = Counter()
        for pieces in pages:
            for piece in pieces:
                for line in piece.lines:
                    sizes[round(line.size, 1)] += sum(len(word.text) for word in line.words)
        if not sizes:
            return
        self.body_size = body = sizes.most_common(1)[0][0]
        larger = {round(size * 2) / 2 for size in sizes if size >= HEADING_SCALE * body}
        self.heading_sizes = sorted(larger, reverse=True)

    def start_page(self, page: int, width: float, height: float) -> None:
        """Begin a page of this size, in the units of its words; a form feed parts pages."""
        if self.page_starts:
            self._write("\f")
        if self.full:
            return
        self.page_starts.append(self.length)
        self._frame = (page, width, height)
        self._empty = True

    def add(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Write pieces in their order; return the span of each that found room."""
        spans = []
        for piece in pieces:
            for line in piece.lines:
                for word in line.words:
                    self.vocabulary.add(word.text.casefold().strip(".,;:!?()\"'"))
        for piece in pieces:
            if self.full:
                break
            if not self._empty:
                self._write("\n\n")
            self._empty = False
            begin = self.length
            header = self._lines(piece)
            kind, level = self._kind(piece)
            if self.length > begin:
                self.blocks.append(Block(kind, begin, self.length, level, header))
                spans.append((begin, self.length))
        return spans

    def text(self) -> str:
        return "".join(self._parts)

    def words(self) -> WordBoxes | None:
        """Return the boxes of all words, or None when there are none."""
        import numpy as np

        if not self._pages:
            return None
        return WordBoxes(
            np.array(self._spans, np.int32).reshape(-1, 2),
            np.array(self._pages, np.int32),
            np.array(self._boxes, np.float32).reshape(-1, 4),
        )

    def _kind(self, piece: Piece) -> tuple[BlockKind, int]:
        if piece.kind != "paragraph":
            return piece.kind, 0
        size = min(line.size for line in piece.lines)
        n_chars = sum(len(word.text) + 1 for line in piece.lines for word in line.words)
        has_letters = any(c.isalpha() for line in piece.lines for w in line.words for c in w.text)
        if (
            self.body_size is None
            or size < HEADING_SCALE * self.body_size
            or n_chars > MAX_HEADING_CHARS
            or not has_letters
        ):
            return "paragraph", 0
        level = sum(larger > size + 0.25 for larger in self.heading_sizes) + 1
        return "heading", min(level, MAX_LEVELS)

    def _lines(self, piece: Piece) -> tuple[int, int] | None:
        """Write a piece's lines; return the span of a table's header."""
        begin, header_end = self.length, None
        joined = False
        for number, line in enumerate(piece.lines):
            if number and not joined:
                self._write("\n")
            below = piece.lines[number + 1] if number + 1 < len(piece.lines) else None
            joined = self._line(line, below, is_table=piece.kind == "table")
            if number + 1 == piece.n_header:
                header_end = self.length
        return (begin, header_end) if header_end is not None else None

    def _line(self, line: Line, below: Line | None, *, is_table: bool) -> bool:
        """Write a line; return whether its last word goes on in the line below."""
        for number, word in enumerate(line.words):
            if number:
                apart = "\t" if is_table and number in line.cells else " "
                self._write("" if _is_glued(line.words[number - 1], word) else apart)
            text, joined = word.text, False
            if number + 1 == len(line.words):
                text, joined = self._end(word.text, below)
            self._word(text.replace(SOFT_HYPHEN, ""), word)
        return joined

    def _end(self, text: str, below: Line | None) -> tuple[str, bool]:
        """Join a word that is parted at the end of a line.

        The hyphen goes, unless the document writes the word with it elsewhere, or never without
        it while the two halves are words of their own.
        """
        is_soft = text.endswith(SOFT_HYPHEN)
        head = text.rstrip(SOFT_HYPHEN)
        is_hard = head.endswith(("-", "\u2010"))
        if not (is_soft or is_hard) or below is None or len(head) < 2:
            return (head + "-" if is_soft and not is_hard else head), False
        stem = head.rstrip("-\u2010")
        tail = below.words[0].text
        if not (stem[-1:].isalpha() and tail[:1].islower()):
            return (head + "-" if is_soft and not is_hard else head), False
        tail_word = LETTERS.match(tail)
        rest = tail_word.group() if tail_word else tail
        first = stem.casefold()
        with_hyphen = f"{first}-{rest}".casefold() in self.vocabulary
        without = (first + rest).casefold() in self.vocabulary
        if (with_hyphen and not without) or "-" in stem:
            return stem + "-", True
        return stem, True

    def _word(self, text: str, word: Word) -> None:
        page, width, height = self._frame
        pieces: Iterable[tuple[str, float, float]] = [(text, word.x0, word.x1)]
        if word.glyphs and "".join(glyph[0] for glyph in word.glyphs) == text:
            pieces = word.glyphs
        for part, x0, x1 in pieces:
            begin = self.length
            self._write(part)
            if self.length > begin:
                self._spans.extend((begin, self.length))
                self._pages.append(page)
                self._boxes.extend(
                    _unit_box(x0 / width, word.y0 / height, x1 / width, word.y1 / height)
                )

    def _write(self, text: str) -> None:
        if self.length + len(text) > self._max_chars:
            text = text[: max(self._max_chars - self.length, 0)]
            self.full = True
        if text:
            self._parts.append(text)
            self.length += len(text)


def _is_glued(one: Word, two: Word) -> bool:
    """Tell whether two words stand together: scripts that put no space between words."""
    if not (is_spaceless(one.text[-1]) and is_spaceless(two.text[0])):
        return False
    return two.x0 - one.x1 < 0.4 * two.size


def _unit_box(x0: float, y0: float, x1: float, y1: float) -> tuple[float, float, float, float]:
    """Clip a box to the page, keeping it at least a thousandth wide and high."""
    x0, y0 = min(max(x0, 0.0), 0.999), min(max(y0, 0.0), 0.999)
    return x0, y0, max(min(x1, 1.0), x0 + 0.001), max(min(y1, 1.0), y0 + 0.001)
