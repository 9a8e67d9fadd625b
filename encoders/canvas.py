"""The pixels that a convolutional network is shown: a picture, scaled and padded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_ASPECT = 2.0
OWN_SCALE = 1.3  # of the square's side; larger finds little more
CELL_PX = 32
GREY = 127
# by name, what a fingerprint says of each
SHAPES = {"square": "square", "own": f"own{OWN_SCALE:g}"}


def canvas(image: Image, side: int, shape: str) -> tuple[int, int]:
    """Return (width, height) in pixels of what the network is shown.

    'own': the picture's shape on about OWN_SCALE ** 2 times the square's pixels, in whole cells.
    """
    if shape == "square":
        return side, side
    pad_x, pad_y = padding(image.width, image.height)
    aspect = image.width * (1 + 2 * pad_x) / (image.height * (1 + 2 * pad_y))
    lengths = (side * OWN_SCALE * aspect**0.5, side * OWN_SCALE / aspect**0.5)
    width, height = (round(length / CELL_PX) * CELL_PX for length in lengths)
    return width, height


def padding(width: int, height: int) -> tuple[float, float]:
    """Return how much is added at each side in x and in y, as a part of the picture's own."""
    return max(height / MAX_ASPECT / width - 1, 0) / 2, max(width / MAX_ASPECT / height - 1, 0) / 2


def placed(image: Image, width: int, height: int) -> NDArray[np.uint8]:
    """Return (height, width, 3) uint8: the picture scaled to fill it, grey where it was padded."""
    from PIL import Image as Pictures

    pad_x, pad_y = padding(image.width, image.height)
    inner_w = max(1, round(width / (1 + 2 * pad_x)))
    inner_h = max(1, round(height / (1 + 2 * pad_y)))
    # reducing_gap: large photos are first shrunk by whole steps, which is several times faster
    scaled = image.resize((inner_w, inner_h), Pictures.Resampling.BICUBIC, reducing_gap=3.0)
    whole = np.full((height, width, 3), GREY, dtype=np.uint8)
    left, top = (width - inner_w) // 2, (height - inner_h) // 2
    whole[top : top + inner_h, left : left + inner_w] = np.asarray(scaled)
    return whole
