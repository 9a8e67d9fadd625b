"""Find the caption that belongs to a picture on a page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from foveate.pipeline.ingest.layout import Piece

CAPTION = re.compile(
    r"(?i)(\(?[a-z]\)\s|fig(ure|\.|\s)|abb(ildung|\.)|photo|plate|chart|image|illustration|scheme"
    r"|exhibit|map\s|рис|图|圖|図)"
)
MAX_GAP_PT = 40.0


def find_caption(box: Sequence[float], pieces: Sequence[Piece]) -> Piece | None:
    """Return the caption nearest below a picture, else nearest above it.

    box: x0, y0, x1, y1 of the picture, in the units of the pieces' words.
    """
    best: tuple[tuple[bool, float], Piece] | None = None
    for piece in pieces:
        if piece.kind == "table" or not piece.lines:
            continue
        words = [word for line in piece.lines for word in line.words]
        x0, x1 = min(word.x0 for word in words), max(word.x1 for word in words)
        overlap = min(x1, box[2]) - max(x0, box[0])
        if overlap < 0.5 * min(x1 - x0, box[2] - box[0]):
            continue
        below = min(word.y0 for word in words) - box[3]
        above = box[1] - max(word.y1 for word in words)
        gap = min((abs(below), abs(above)))
        if gap > MAX_GAP_PT or max(below, above) < -MAX_GAP_PT / 4:
            continue
        if not CAPTION.match(" ".join(word.text for word in piece.lines[0].words)):
            continue
        rank = (gap != abs(below), gap)
        if best is None or rank < best[0]:
            best = (rank, piece)
    return best[1] if best else None
