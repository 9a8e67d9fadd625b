"""Read the words of a PDF page, with their boxes on the upright page, through pdfium."""

from __future__ import annotations

import ctypes
import math
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.layout import Word, is_spaceless

if TYPE_CHECKING:
    from collections.abc import Iterator

# pdfium marks a hyphen at a line's end by either of these
HYPHENS = ("\x02", "\ufffe")
INVISIBLE = 3
SOFT_HYPHEN = "\u00ad"
# units of the device that page coordinates are mapped to; fine enough for 1/1000 point
DEVICE = 1 << 22


@dataclass(slots=True)
class PageText:
    """The words of a page's text layer.

    words: by the direction they run in: 0 right, 1 down, 2 left, 3 up, each as it stands when the
    page is turned so that they run to the right (see `turn_back`). n_chars: characters that are
    not white space; n_bad: of those, the ones that no reader could make sense of. n_hidden: words
    that are not painted, as a scanner's OCR leaves them over its picture.
    """

    words: dict[int, list[Word]] = field(default_factory=dict)
    n_chars: int = 0
    n_bad: int = 0
    n_hidden: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """The affine map from a page's own coordinates to its upright view, in points."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float
    width: float
    height: float

    @classmethod
    def of(cls, page: Any) -> Frame:
        import pypdfium2.raw as pdfium

        width, height = (max(float(side), 1e-3) for side in page.get_size())
        x, y = ctypes.c_int(), ctypes.c_int()

        def place(px: float, py: float) -> tuple[float, float]:
            pdfium.FPDF_PageToDevice(page, 0, 0, DEVICE, DEVICE, 0, px, py, x, y)
            return x.value / DEVICE * width, y.value / DEVICE * height

        x0, y0 = place(0, 0)
        x1, y1 = place(100, 0)
        x2, y2 = place(0, 100)
        linear = ((x1 - x0) / 100, (y1 - y0) / 100, (x2 - x0) / 100, (y2 - y0) / 100)
        return cls(*linear, x0, y0, width, height)

    def point(self, x: float, y: float) -> tuple[float, float]:
        return self.a * x + self.c * y + self.e, self.b * x + self.d * y + self.f

    def box(self, left: float, bottom: float, right: float, top: float) -> tuple[float, ...]:
        """Return x0, y0, x1, y1 of the upright page, in points."""
        xa, ya = self.point(left, bottom)
        xb, yb = self.point(right, top)
        return min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb)


@dataclass(slots=True)
class _Run:
    """A word while it is read. boxes: (x0, y0, x1, y1) of each of its characters."""

    index: int
    chars: list[str] = field(default_factory=list)
    boxes: list[tuple[float, ...]] = field(default_factory=list)


def read_words(page: Any, textpage: Any, frame: Frame) -> PageText:
    """Read the text layer of a page; the caller holds the lock of pdfium."""
    found = PageText()
    for run in _runs(textpage, frame, found):
        _finish(run, textpage, frame, found)
    return found


def _runs(textpage: Any, frame: Frame, found: PageText) -> Iterator[_Run]:
    """Yield the runs of characters between white space and jumps."""
    import pypdfium2.raw as pdfium

    get_char, get_box = pdfium.FPDFText_GetUnicode, pdfium.FPDFText_GetCharBox
    has_error = pdfium.FPDFText_HasUnicodeMapError
    raw = textpage.raw
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    refs = [ctypes.byref(value) for value in (left, right, bottom, top)]
    run: _Run | None = None
    high = 0
    for index in range(textpage.count_chars()):
        code = get_char(raw, index)
        if 0xD800 <= code < 0xDC00:
            high = code
            continue
        if 0xDC00 <= code < 0xE000 and high:
            code = 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)
        high = 0
        char = chr(code) if code < 0x110000 else "\ufffd"
        if char in HYPHENS:
            char = SOFT_HYPHEN
        if char.isspace() or code == 0:
            if run:
                yield run
            run = None
            found.n_bad += code == 0
            found.n_chars += code == 0
            continue
        found.n_chars += 1
        if is_garbage(char) or (code > 0x7F and has_error(raw, index) == 1):
            found.n_bad += 1
        get_box(raw, index, *refs)
        box = frame.box(left.value, bottom.value, right.value, top.value)
        if run and _jumps(run.boxes[-1], box):
            yield run
            run = None
        if run is None:
            run = _Run(index)
        run.chars.append(char)
        run.boxes.append(box)
    if run:
        yield run


def is_garbage(char: str) -> bool:
    """Tell whether a character has no meaning outside the font it was drawn with."""
    return not char.isascii() and (
        char == "\ufffd" or unicodedata.category(char) in {"Co", "Cn", "Cs", "Cc"}
    )


def _jumps(last: tuple[float, ...], box: tuple[float, ...]) -> bool:
    """Tell whether the next character stands apart from the last one of its word."""
    em = max(last[3] - last[1], box[3] - box[1], last[2] - last[0], box[2] - box[0], 1.0)
    gap_x = max(box[0] - last[2], last[0] - box[2])
    gap_y = max(box[1] - last[3], last[1] - box[3])
    return gap_x > 0.9 * em or gap_y > 1.2 * em


def _finish(run: _Run, textpage: Any, frame: Frame, found: PageText) -> None:
    """Clean a run, measure it, and put it with the words of its direction."""
    import pypdfium2.raw as pdfium

    text = "".join(run.chars)
    has_break = text.endswith(SOFT_HYPHEN)
    if not (text.isascii() and text.isprintable()):
        text = clean(text)[0]
        if has_break:
            text += SOFT_HYPHEN
    if not text.strip(SOFT_HYPHEN):
        return
    size, origin, direction = _style(textpage, run, frame)
    x0, y0 = min(box[0] for box in run.boxes), min(box[1] for box in run.boxes)
    x1, y1 = max(box[2] for box in run.boxes), max(box[3] for box in run.boxes)
    # a glyph without an outline still takes its place
    x1, y1 = max(x1, x0 + 0.1 * size), max(y1, y0 + 0.1 * size)
    glyphs: tuple[tuple[str, float, float], ...] = ()
    if len(text) == len(run.chars) and any(map(is_spaceless, text)):
        glyphs = tuple((c, b[0], b[2]) for c, b in zip(text, run.boxes, strict=True))
    if direction:
        glyphs = ()
        x0, y0, x1, y1 = _turn((x0, y0, x1, y1), direction, frame)
    else:
        y0, y1 = min(y0, y1), max(y0, y1)
    ox, oy = origin
    baseline = _turn((ox, oy, ox, oy), direction, frame)[1] if direction else oy
    if not y0 - size < baseline < y1 + size:
        baseline = y1
    word = Word(text, x0, y0, x1, y1, baseline, size, glyphs)
    found.words.setdefault(direction, []).append(word)
    letters = pdfium.FPDFText_GetTextObject(textpage, run.index)
    if letters and pdfium.FPDFTextObj_GetTextRenderMode(letters) == INVISIBLE:
        found.n_hidden += 1


def _turn(box: tuple[float, ...], direction: int, frame: Frame) -> tuple[float, ...]:
    """Turn a box with the page, so that text of this direction runs to the right."""
    x0, y0, x1, y1 = box
    if direction == 1:
        return y0, frame.width - x1, y1, frame.width - x0
    if direction == 2:
        return frame.width - x1, frame.height - y1, frame.width - x0, frame.height - y0
    return frame.height - y1, x0, frame.height - y0, x1


def turn_back(word: Word, direction: int, frame: Frame) -> None:
    """Put a word of a turned direction to its place on the upright page."""
    x0, y0, x1, y1 = word.x0, word.y0, word.x1, word.y1
    if direction == 1:
        word.x0, word.y0, word.x1, word.y1 = frame.width - y1, x0, frame.width - y0, x1
    elif direction == 2:
        word.x0, word.y0 = frame.width - x1, frame.height - y1
        word.x1, word.y1 = frame.width - x0, frame.height - y0
    elif direction == 3:
        word.x0, word.y0, word.x1, word.y1 = y0, frame.height - x1, y1, frame.height - x0


def _style(textpage: Any, run: _Run, frame: Frame) -> tuple[float, tuple[float, float], int]:
    """Return the letters' size, the first one's origin, and the direction they run in."""
    import pypdfium2.raw as pdfium

    x, y = ctypes.c_double(), ctypes.c_double()
    matrix = pdfium.FS_MATRIX()
    size = pdfium.FPDFText_GetFontSize(textpage, run.index)
    direction = 0
    if pdfium.FPDFText_GetMatrix(textpage, run.index, matrix):
        dx = frame.a * matrix.a + frame.c * matrix.b
        dy = frame.b * matrix.a + frame.d * matrix.b
        size *= math.hypot(matrix.c, matrix.d) or 1.0
        if abs(dy) > abs(dx):
            direction = 1 if dy > 0 else 3
        elif dx < 0 and abs(dy) < 0.3 * abs(dx) and _runs_left(run):
            direction = 2
    side = 2 if direction in (1, 3) else 3
    tallest = max(box[side] - box[side - 2] for box in run.boxes)
    if not 0.7 * tallest < size < 6 * max(tallest, 1.0):
        # some files scale letters by other means; the ink tells
        size = 1.3 * tallest or 1.0
    origin = (run.boxes[0][0], run.boxes[0][3])
    if pdfium.FPDFText_GetCharOrigin(textpage, run.index, x, y):
        origin = frame.point(x.value, y.value)
    return size, origin, direction


def _runs_left(run: _Run) -> bool:
    """Tell text that stands on its head from text that is mirrored and mirrored back."""
    return len(run.boxes) < 2 or run.boxes[-1][0] < run.boxes[0][0]
