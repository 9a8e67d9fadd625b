"""Read the text in pictures with RapidOCR, whose models lie in its package: nothing is fetched.

The models (PP-OCRv6 small) read Latin script with its accents, simplified and traditional Chinese
and Japanese; not Cyrillic, Greek, Arabic, Hebrew or the scripts of India.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import math
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import MissingExtra, ModelError
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.layout import Word, is_spaceless

if TYPE_CHECKING:
    from PIL.Image import Image

LANGUAGES = ("latin", "chinese", "japanese")
N_THREADS = 2
MAX_SIDE_PX = 2000
STRIP_RATIO = 2.5
OVERLAP_PX = 100
MAX_WINDOWS = 20
GATE_SIDE_PX = 320
GATE_CROP_PX = 384
MIN_SCORE = 0.5
SHORT_MIN_SCORE = 0.75
# one engine: its calls set state on it, and more threads than cores gain nothing
_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True)
class OcrLine:
    """A line of text in a picture.

    quad: its four corners in pixels, clockwise from the text's top left. words: (text, quad) of
    each word. score: 0..1, the model's confidence.
    """

    text: str
    quad: tuple[tuple[float, float], ...]
    score: float
    words: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]


def available() -> str | None:
    """Return why OCR cannot be used here, or None when it can."""
    for name in ("rapidocr", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            return f"OCR needs {name}, which is not installed: pip install rapidocr onnxruntime"
    return None


def read_image(image: Image) -> list[OcrLine]:
    """Return the lines of text in an upright RGB picture, in the detector's order.

    A picture is read at `MAX_SIDE_PX` at most; a long strip, as of a whole web page, is read in
    windows of that length, so that its letters stay as large as they are.

    Raises:
        MissingExtra: if rapidocr or onnxruntime is not installed.
        ModelError: if the models cannot be loaded or run.
    """
    width, height = image.size
    short, long = min(image.size), max(image.size)
    if short < 8:
        return []
    if long <= MAX_SIDE_PX or long < STRIP_RATIO * short:
        return _read_window(image, 0, 0)
    step = max(MAX_SIDE_PX - 2 * OVERLAP_PX, -(-long // MAX_WINDOWS))
    lines = []
    for start in range(0, long, step):
        first, last = max(start - OVERLAP_PX, 0), min(start + step + OVERLAP_PX, long)
        box = (0, first, width, last) if height == long else (first, 0, last, height)
        axis = 1 if height == long else 0
        for line in _read_window(image.crop(box), box[0], box[1]):
            centre = sum(corner[axis] for corner in line.quad) / 4
            # what two windows share belongs to the one that has its middle
            if start <= centre < start + step:
                lines.append(line)
    return lines


def _read_window(image: Image, left: int, top: int) -> list[OcrLine]:
    """Read one picture; its corner stands at (left, top) of what the quads count from."""
    width, height = image.size
    pixels = _bgr(_within(image, MAX_SIDE_PX))
    scale = (width / pixels.shape[1], height / pixels.shape[0], left, top)
    with _LOCK:
        engine = _engine()
        try:
            with _quiet():
                found = engine(pixels, return_word_box=True)
        except Exception as error:  # whatever the engine raises, one picture must not stop a run
            raise ModelError(f"OCR failed on a picture of {width} x {height}: {error}") from error
    texts, quads, scores = (getattr(found, name, None) for name in ("txts", "boxes", "scores"))
    if texts is None or quads is None or scores is None:
        return []
    details = found.word_results or ()
    lines = []
    for number, (text, quad, score) in enumerate(zip(texts, quads, scores, strict=True)):
        text = clean(text)[0].strip()
        if not _is_credible(text, float(score)):
            continue
        corners = _scaled(quad, scale)
        detail = details[number] if number < len(details) else ()
        words = _engine_words(text, detail, scale) or _split(text, corners)
        lines.append(OcrLine(text, corners, float(score), tuple(words)))
    return lines


def _is_credible(text: str, score: float) -> bool:
    """Tell text from the specks and patterns that the model takes for letters."""
    n_letters = sum(map(str.isalnum, text))
    return n_letters > 0 and score >= (SHORT_MIN_SCORE if n_letters < 4 else MIN_SCORE)


def read_words(image: Image) -> list[Word]:
    """Return the words in a picture for `layout.arrange`, in pixels of the picture."""
    words = []
    for line in read_image(image):
        ys = [y for _, quad in line.words for _, y in quad]
        if not ys:
            continue
        # one baseline a line: word boxes of one line differ by a pixel or two
        heights = [max(y for _, y in quad) - min(y for _, y in quad) for _, quad in line.words]
        for text, quad in line.words:
            xs, ys = [x for x, _ in quad], [y for _, y in quad]
            glyphs = _glyphs(text, min(xs), max(xs)) if is_spaceless(text[0]) else ()
            size = 0.75 * max(heights)
            words.append(Word(text, min(xs), min(ys), max(xs), max(ys), max(ys), size, glyphs))
    return words


def even_sizes(words: list[Word]) -> list[Word]:
    """Give OCR's words the page's letter size where theirs is near it: boxes are uneven."""
    if words:
        median = statistics.median(word.size for word in words)
        for word in words:
            if 0.7 * median < word.size < 1.4 * median:
                word.size = median
    return words


def looks_textual(image: Image) -> bool:
    """Tell cheaply whether a picture may hold text.

    The detector looks at the whole picture reduced to `GATE_SIDE_PX`, which shows signs and
    titles, then at the part with the most edges in full size, which shows small print.

    Raises:
        MissingExtra: if rapidocr or onnxruntime is not installed.
    """
    if min(image.size) < 12:
        return False
    if max(image.size) < STRIP_RATIO * min(image.size):
        image = _within(image, MAX_SIDE_PX)
    return _has_lines(_within(image, GATE_SIDE_PX)) or (
        max(image.size) > 1.5 * GATE_SIDE_PX and _has_lines(_busiest(image, GATE_CROP_PX))
    )


def _has_lines(image: Image) -> bool:
    """Tell whether the detector finds a box of the shape of a word or line."""
    boxes, scores = _detect(image)
    for quad, score in zip(boxes, scores, strict=True):
        (ax, ay), (bx, by), _, (dx, dy) = ((float(x), float(y)) for x, y in quad)
        sides = math.hypot(bx - ax, by - ay), math.hypot(dx - ax, dy - ay)
        thin, long = min(sides), max(sides)
        is_small = thin < 0.4 * min(image.size) or len(boxes) > 2
        if score >= 0.5 and thin >= 5 and long >= 1.2 * thin and is_small:
            return True
    return False


def _busiest(image: Image, side_px: int) -> Image:
    """Cut out the square with the most upright edges, as small print has."""
    import numpy as np

    grey = np.asarray(image.convert("L"), np.int16)
    edges = np.minimum(np.abs(np.diff(grey, axis=1)), 64)
    cell = 16
    rows, columns = edges.shape[0] // cell, edges.shape[1] // cell
    cells = edges[: rows * cell, : columns * cell].reshape(rows, cell, columns, cell)
    sums = np.pad(cells.sum((1, 3), dtype=np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    high, wide = min(side_px // cell, rows), min(side_px // cell, columns)
    inside = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
    row, column = np.unravel_index(int(inside.argmax()), inside.shape)
    left, top = int(column) * cell, int(row) * cell
    return image.crop((left, top, left + wide * cell, top + high * cell))


def _detect(image: Image) -> tuple[Sequence[Any], Sequence[float]]:
    """Run the detector alone on a small picture, in its own size."""
    pixels = _bgr(image)
    with _LOCK:
        engine = _engine()
        detector = engine._load_det_model()
        kept = detector.limit_side_len, detector.limit_type
        try:
            # the detector enlarges small pictures unless told otherwise
            detector.limit_side_len, detector.limit_type = max(image.size), "max"
            with _quiet():
                found = detector(pixels)
        except Exception as error:  # the engine's own errors have no common class
            raise ModelError(f"OCR failed on a picture of {image.size}: {error}") from error
        finally:
            detector.limit_side_len, detector.limit_type = kept
    if found.boxes is None:
        return [], []
    return list(found.boxes), [float(score) for score in found.scores]


@functools.cache
def _engine() -> Any:
    reason = available()
    if reason:
        raise MissingExtra("OCR", reason.split(" needs ")[1].split(",")[0], reason.split(": ")[1])
    try:
        from rapidocr import RapidOCR

        engine = RapidOCR(
            params={
                "Global.log_level": "critical",
                "Global.text_score": MIN_SCORE,
                # lines are read one by one: wider batches cost memory and save no time here
                "Rec.rec_batch_num": 1,
                "Global.max_side_len": MAX_SIDE_PX,
                "EngineConfig.onnxruntime.intra_op_num_threads": N_THREADS,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
    except Exception as error:  # a broken install fails in any way; the message says which
        raise ModelError(f"the OCR models could not be loaded: {error}") from error
    logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)
    return engine


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep numpy's warnings about empty crops out of the user's terminal."""
    import numpy as np

    with np.errstate(all="ignore"):
        yield


def _within(image: Image, side_px: int) -> Image:
    """Return the picture as RGB, reduced to at most side_px."""
    from PIL import Image as images

    rgb = image if image.mode == "RGB" else image.convert("RGB")
    if max(rgb.size) <= side_px:
        return rgb
    scale = side_px / max(rgb.size)
    size = tuple(max(1, round(side * scale)) for side in rgb.size)
    return rgb.resize((size[0], size[1]), images.Resampling.BOX, reducing_gap=2.0)


def _bgr(image: Image) -> Any:
    import numpy as np

    return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])


def _scaled(quad: Any, scale: tuple[float, float, int, int]) -> tuple[tuple[float, float], ...]:
    x, y, left, top = scale
    return tuple((float(point[0]) * x + left, float(point[1]) * y + top) for point in quad)


def _engine_words(text: str, detail: Any, scale: tuple[float, float, int, int]) -> list[Any]:
    """Return the engine's own words when, put together, they are the line's text."""
    words = []
    for item in detail:
        if len(item) != 3 or item[2] is None:
            return []
        word = clean(str(item[0]))[0].strip()
        if word:
            words.append((word, _scaled(item[2], scale)))
    if "".join(word for word, _ in words) != "".join(text.split()):
        return []
    return _joined(text, words)


def _joined(text: str, words: list[Any]) -> list[Any]:
    """Join the engine's pieces where the line has no space between them, but not Chinese."""
    joined: list[Any] = []
    place = 0
    for word, quad in words:
        start = text.index(word, place)
        is_new = start > place or not joined
        place = start + len(word)
        if is_new or is_spaceless(word[0]) or is_spaceless(joined[-1][0][-1]):
            joined.append((word, quad))
        else:
            last = joined[-1]
            joined[-1] = (last[0] + word, (last[1][0], quad[1], quad[2], last[1][3]))
    return joined


def _split(text: str, quad: tuple[tuple[float, float], ...]) -> list[Any]:
    """Share a line's box out among its words by their characters."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = quad

    def at(share: float) -> tuple[tuple[float, float], tuple[float, float]]:
        top = (ax + (bx - ax) * share, ay + (by - ay) * share)
        return top, (dx + (cx - dx) * share, dy + (cy - dy) * share)

    words = []
    place = 0
    for word in text.split():
        start = text.index(word, place)
        place = start + len(word)
        (top0, low0), (top1, low1) = at(start / len(text)), at(place / len(text))
        words.append((word, (top0, top1, low1, low0)))
    return words


def _glyphs(text: str, x0: float, x1: float) -> tuple[tuple[str, float, float], ...]:
    step = (x1 - x0) / len(text)
    return tuple((c, x0 + i * step, x0 + (i + 1) * step) for i, c in enumerate(text))
