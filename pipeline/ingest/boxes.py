"""From a span of text to the boxes of its lines on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foveate.pipeline.types import Box

if TYPE_CHECKING:
    from foveate.pipeline.types import WordBoxes


def line_boxes(words: WordBoxes, start: int, end: int, page: int | None) -> tuple[Box, ...]:
    """Return one box a line of the words in [start, end); of one page if it is given."""
    import numpy as np

    first = int(np.searchsorted(words.spans[:, 1], start, side="right"))
    last = int(np.searchsorted(words.spans[:, 0], end, side="left"))
    lines: list[list[float]] = []
    for i in range(first, last):
        if page is not None and words.pages[i] != page:
            continue
        x0, y0, x1, y1 = (float(value) for value in words.boxes[i])
        if lines and _same_line(lines[-1], x0, y0, y1):
            line = lines[-1]
            lines[-1] = [line[0], min(line[1], y0), max(line[2], x1), max(line[3], y1)]
        else:
            lines.append([x0, y0, x1, y1])
    boxes = ((max(a, 0.0), max(b, 0.0), min(c, 1.0), min(d, 1.0)) for a, b, c, d in lines)
    return tuple(Box(*box) for box in boxes if box[0] < box[2] and box[1] < box[3])


def _same_line(line: list[float], x0: float, y0: float, y1: float) -> bool:
    """Words share a line when they overlap by half their height, go on, and stand close."""
    height = max(min(line[3] - line[1], y1 - y0), 1e-6)
    overlap = min(line[3], y1) - max(line[1], y0)
    return overlap > height / 2 and -0.5 * height <= x0 - line[2] <= 3 * height
