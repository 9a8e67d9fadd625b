"""Put the words of a page into reading order: rows, columns, tables, paragraphs.

Words come with boxes, from a PDF's text layer or from OCR; the order is decided from the boxes
alone, by a recursive cut of the page at the gutters between running text (the XY cut of Nagy and
Seth, 1984, restricted to gutters with text on both sides, so that the rows of tables stay whole).
"""

from __future__ import annotations

import itertools
import re
import statistics
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUMERIC = re.compile(r"[-+(\[$€£¥]*\d[\d.,:%/)\]*-]*[KMBkmb%]?|[-\u2013\u2014.]+|N/?A", re.ASCII)
BULLET = re.compile(r"[•◦▪‣●○■□*\u2013-]|\(?[0-9a-zA-Z]{1,3}[.)]")
# a gutter is this wide at least, in units of the page's letter size
GUTTER_EM = 0.8
CELL_EM = 1.0
MAX_DEPTH = 12


@dataclass(slots=True)
class Word:
    """A word and its box in points (or pixels) of the upright page, origin top left.

    size: of its letters. glyphs: (text, x0, x1) of each character where there are no spaces
    between words (Chinese, Japanese, Thai), so that a span inside it has its own box.
    """

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    baseline: float
    size: float
    glyphs: tuple[tuple[str, float, float], ...] = ()


@dataclass(slots=True)
class Line:
    """Words that stand beside each other. cells: index of each word that starts a new cell."""

    words: list[Word]
    size: float
    x0: float
    x1: float
    baseline: float
    cells: tuple[int, ...] = ()

    def cell_texts(self) -> list[str]:
        """Return the text of each cell."""
        edges = (0, *self.cells, len(self.words))
        pairs = itertools.pairwise(edges)
        return [" ".join(word.text for word in self.words[a:b]) for a, b in pairs]


@dataclass(slots=True)
class Piece:
    """Lines that belong together. n_header: lines of a table's header."""

    kind: Literal["paragraph", "table", "caption"]
    lines: list[Line] = field(default_factory=list)
    n_header: int = 0


def arrange(words: Sequence[Word]) -> list[Piece]:
    """Return the page's words as pieces in reading order; every word is in exactly one."""
    pieces: list[Piece] = []
    for rows in _columns(_rows(words), 0):
        pieces.extend(_pieces([_line(row) for row in rows]))
    return pieces


def is_spaceless(char: str) -> bool:
    """Tell whether the character's script puts no spaces between words."""
    code = ord(char)
    return (
        0x2E80 <= code <= 0x9FFF
        or 0x0E00 <= code <= 0x0EFF
        or 0x1000 <= code <= 0x109F
        or 0x1780 <= code <= 0x17FF
        or 0xF900 <= code <= 0xFAFF
        or 0xFE30 <= code <= 0xFE4F
        or 0xFF00 <= code <= 0xFF64
        or 0x20000 <= code <= 0x3FFFF
    )


def _rows(words: Sequence[Word]) -> list[list[Word]]:
    """Group words by baseline, top to bottom; super- and subscripts stay in their row."""
    rows: list[list[Word]] = []
    reference, size = 0.0, 0.0
    for word in sorted(words, key=lambda word: (word.baseline, word.x0)):
        if rows and word.baseline - reference <= 0.4 * max(size, word.size):
            rows[-1].append(word)
            # the row stands where its largest letters stand
            if word.size > 1.1 * size:
                reference, size = word.baseline, word.size
        else:
            rows.append([word])
            reference, size = word.baseline, word.size
    return rows


def _columns(rows: list[list[Word]], depth: int) -> Iterator[list[list[Word]]]:
    """Cut rows into columns of running text, recursively; yield groups in reading order."""
    cut = _find_cut(rows) if depth < MAX_DEPTH and len(rows) >= 3 else None
    if cut is None:
        if rows:
            yield rows
        return
    top, bottom, x = cut
    left = [[w for w in row if w.x0 + w.x1 < 2 * x] for row in rows[top:bottom]]
    right = [[w for w in row if w.x0 + w.x1 >= 2 * x] for row in rows[top:bottom]]
    yield from _columns(rows[:top], depth + 1)
    # rows that both sides shared may fall apart again: each side has its own baselines
    yield from _columns(_rows([w for row in left for w in row]), depth + 1)
    yield from _columns(_rows([w for row in right for w in row]), depth + 1)
    yield from _columns(rows[bottom:], depth + 1)


def _find_cut(rows: list[list[Word]]) -> tuple[int, int, float] | None:
    """Find the gutter beside the most rows. Returns (first row, row after the last, x)."""
    import numpy as np

    em = statistics.median(word.size for row in rows for word in row)
    low = min(word.x0 for row in rows for word in row)
    high = max(word.x1 for row in rows for word in row)
    step = max(em / 4, (high - low) / 400)
    n_bins = int((high - low) / step) + 1 if step > 0 else 0
    n_gutter = max(1, round(GUTTER_EM * em / step)) if step > 0 else 1
    if n_bins < 3 * n_gutter:
        return None
    # occupied: (rows, bins) bool, where letters stand
    occupied = np.zeros((len(rows), n_bins), bool)
    for number, row in enumerate(rows):
        for word in row:
            occupied[number, int((word.x0 - low) / step) : int((word.x1 - low) / step) + 1] = True
    filled = np.cumsum(np.pad(occupied, ((0, 0), (1, 0))), axis=1)
    free = filled[:, n_gutter:] == filled[:, :-n_gutter]  # (rows, bins - n_gutter + 1)
    n_free = free.shape[1]
    before = filled[:, :n_free] > 0  # words left of a gutter that starts at this bin
    after = filled[:, -1:] > filled[:, n_gutter : n_gutter + n_free]
    edges = np.diff(np.pad(free, ((1, 1), (0, 0))).astype(np.int8), axis=0)
    columns, starts = np.nonzero(edges.T == 1)
    _, ends = np.nonzero(edges.T == -1)
    zero = ((1, 0), (0, 0))
    n_before = np.cumsum(np.pad(before, zero), axis=0)
    n_after = np.cumsum(np.pad(after, zero), axis=0)
    n_left: NDArray[np.int64] = n_before[ends, columns] - n_before[starts, columns]
    n_right: NDArray[np.int64] = n_after[ends, columns] - n_after[starts, columns]
    sides = np.minimum(n_left, n_right)
    tried: set[tuple[int, int, int]] = set()
    for index in np.argsort(-sides, kind="stable"):
        if sides[index] < 3 or len(tried) >= 12:
            break
        top, bottom, column = int(starts[index]), int(ends[index]), int(columns[index])
        same = (starts == top) & (ends == bottom) & (np.abs(columns - column) < 8 * n_gutter)
        near = np.sort(columns[same])
        # the whole run of neighbouring bins is one gutter
        place = int(np.searchsorted(near, column))
        last = place
        while last + 1 < len(near) and near[last + 1] == near[last] + 1:
            last += 1
        key = (top, bottom, int(near[last]))
        if key in tried:
            continue
        tried.add(key)
        x = low + (column + int(near[last]) + n_gutter) / 2 * step
        is_wide = (int(near[last]) - column + n_gutter) * step > 2 * em
        if sides[index] < (3 if is_wide else 4):
            continue
        top, bottom = _trim(rows, top, bottom, x)
        if _is_running(rows[top:bottom], x, left=True) and _is_running(
            rows[top:bottom], x, left=False
        ):
            return top, bottom, x
    return None


def _trim(rows: list[list[Word]], top: int, bottom: int, x: float) -> tuple[int, int]:
    """Leave out a header or footer that stands apart on one side of the gutter."""
    steps = [b[0].baseline - a[0].baseline for a, b in itertools.pairwise(rows)]
    pitch = 1.8 * statistics.median(steps) if steps else 0.0

    def is_one_sided(row: list[Word]) -> bool:
        return len({word.x0 + word.x1 < 2 * x for word in row}) == 1

    if bottom - top > 3 and steps[top] > pitch and is_one_sided(rows[top]):
        top += 1
    if bottom - top > 3 and steps[bottom - 2] > pitch and is_one_sided(rows[bottom - 1]):
        bottom -= 1
    return top, bottom


def _is_running(rows: list[list[Word]], x: float, *, left: bool) -> bool:
    """Tell running text from the cells of a table: long, well-filled, wordy lines."""
    side = [[w for w in row if (w.x0 + w.x1 < 2 * x) == left] for row in rows]
    side = [row for row in side if row]
    words = [word for row in side for word in row]
    if len(side) < 3:
        return False
    width = max(word.x1 for word in words) - min(word.x0 for word in words)
    n_chars = sum(2 if is_spaceless(c) else 1 for word in words for c in word.text)
    n_numeric = sum(bool(NUMERIC.fullmatch(word.text)) for word in words)
    fill = sum(word.x1 - word.x0 for word in words) / max(width * len(side), 1e-6)
    return n_chars >= 13 * len(side) and n_numeric < 0.4 * len(words) and fill >= 0.45


def _line(row: list[Word]) -> Line:
    words = _in_writing_direction(sorted(row, key=lambda word: word.x0))
    # the size of most letters, not of an initial or a number beside the text
    size = statistics.median_low([word.size for word in words for _ in word.text])
    cells = tuple(
        i for i in range(1, len(words)) if _gap(words[i - 1], words[i]) > CELL_EM * words[i].size
    )
    x0, x1 = min(word.x0 for word in words), max(word.x1 for word in words)
    return Line(words, size, x0, x1, statistics.median(w.baseline for w in words), cells)


def _gap(one: Word, two: Word) -> float:
    return max(two.x0 - one.x1, one.x0 - two.x1)


def _in_writing_direction(words: list[Word]) -> list[Word]:
    """Order a row's words, left to right by x, as they are read; right-to-left runs reversed."""
    kinds = [_direction(word.text) for word in words]
    if "R" not in kinds:
        return words
    base = "R" if kinds.count("R") >= kinds.count("L") else "L"
    other = "L" if base == "R" else "R"
    if base == "R":
        words, kinds = words[::-1], kinds[::-1]
    start = 0
    while start < len(words):
        if kinds[start] != other:
            start += 1
            continue
        end = start
        for i in range(start, len(words)):
            if kinds[i] == base:
                break
            if kinds[i] == other:
                end = i
        words[start : end + 1] = words[start : end + 1][::-1]
        start = end + 1
    return words


def _direction(text: str) -> str:
    if text.isascii():
        return "L" if any(c.isalpha() for c in text) else "N"
    kinds = {unicodedata.bidirectional(c) for c in text}
    return "R" if kinds & {"R", "AL"} else "L" if "L" in kinds else "N"


def _pieces(lines: list[Line]) -> Iterator[Piece]:
    """Cut the lines of one column into tables and paragraphs."""
    start = 0
    plain: list[Line] = []
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end].cells:
            end += 1
        if end - start >= 3 and _is_table(lines[start:end]):
            yield from _paragraphs(plain)
            plain = []
            yield Piece("table", lines[start:end], _n_header(lines[start:end]))
        else:
            end = max(end, start + 1)
            plain.extend(lines[start:end])
        start = end
    yield from _paragraphs(plain)


def _is_table(lines: list[Line]) -> bool:
    rows = [line.cell_texts() for line in lines]
    # dashes stand for missing numbers, and for rules; they count for nothing
    cells = [cell for row in rows for cell in row[1:] if _is_numeric(cell) or _has_letters(cell)]
    numeric = sum(map(_is_numeric, cells)) / max(len(cells), 1)
    # a number at the end of the row; one at its start may only number the lines
    last = sum(_is_numeric(row[-1]) for row in rows) / len(rows)
    n_cells = sum(map(len, rows)) / len(rows)
    return (n_cells >= 2.6 and numeric >= 0.25) or (n_cells >= 1.9 and last >= 0.6)


def _has_letters(cell: str) -> bool:
    return any(map(str.isalpha, cell))


def _is_numeric(cell: str) -> bool:
    words = cell.split()
    return any(map(str.isdigit, cell)) and all(NUMERIC.fullmatch(word) for word in words)


def _n_header(lines: list[Line]) -> int:
    """Count the lines at the top, three at most, in which no cell is a number."""
    n = 0
    for line in lines[:3]:
        if any(_is_numeric(cell) for cell in line.cell_texts()):
            break
        n += 1
    return n if n < len(lines) else 0


def _paragraphs(lines: list[Line]) -> Iterator[Piece]:
    """Cut lines where the spacing, the letter size or the indent says so."""
    if not lines:
        return
    pairs = list(itertools.pairwise(lines))
    steps = [b.baseline - a.baseline for a, b in pairs if b.baseline > a.baseline]
    pitch = statistics.median(steps) if steps else 0.0
    left, right = min(line.x0 for line in lines), max(line.x1 for line in lines)
    piece = Piece("paragraph", [lines[0]])
    for above, line in pairs:
        step = line.baseline - above.baseline
        em = max(above.size, line.size)
        is_apart = step > 1.35 * pitch and step > 1.4 * em
        is_resized = abs(line.size - above.size) > 0.15 * em
        is_indented = line.x0 - above.x0 > 0.9 * em and above.x0 - left < 0.5 * em
        has_ended = above.x1 < right - 0.15 * (right - left) and above.words[-1].text.endswith(
            (".", "!", "?", ":", "。")
        )
        is_item = bool(BULLET.fullmatch(line.words[0].text)) and line.x0 <= above.x0 + 0.5 * em
        begins = (is_indented or is_item) and _ends_sentence(above)
        if is_apart or is_resized or has_ended or begins:
            yield piece
            piece = Piece("paragraph")
        piece.lines.append(line)
    yield piece


def _ends_sentence(line: Line) -> bool:
    return line.words[-1].text.rstrip("\"'\u201d\u2019)").endswith((".", "!", "?", ":", ";", "。"))
