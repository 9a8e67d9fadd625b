"""Pictures as one vector a patch: the cells of the offline image tower, in the text space.

MaxSim of a query with a picture is then its best cell, so a small thing in a large picture or on
a page is not averaged away. The query is one vector, that of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.efficientnet import EfficientNetLite
from foveate.encoders.late import CODES
from foveate.pipeline.errors import ConfigError, ShapeError
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats


class Patches:
    """Encode pictures by EfficientNet-Lite, one vector a cell, and texts by MiniLM, one vector.

    size and the other options: as 'efficientnet-lite'. code: how an index keeps a vector, 'int8'
    or 'onebit'.
    """

    reads: frozenset[str] = frozenset({"image"})
    window_tokens: int | None = None

    def __init__(self, size: str = "lite0", *, code: str = "int8", **options: Any) -> None:
        if code not in CODES:
            raise ConfigError(f"unknown code {code!r} (known: {', '.join(map(repr, CODES))})")
        self.code = code
        self._pictures = EfficientNetLite(size, **options)

    @property
    def dim(self) -> int:
        return self._pictures.dim

    @property
    def space(self) -> str:
        return self._pictures.space

    @cached_property
    def tower(self) -> str:
        """The picture tower's, and how vectors are kept."""
        return f"{self._pictures.tower} cells code={self.code}"

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> MultiVectors:
        """Encode pictures.

        Returns:
            n items of (cells, d) float32, L2-normalised; cells of padding have none.
        """
        parts: list[Floats] = []
        for number, item in enumerate(inputs, start=1):
            if isinstance(item, str):
                raise ShapeError("expected pictures, got str for an image encoder")
            parts.append(self._pictures.encode_regions(item)[0])
            if progress:
                progress(number)
        flat = np.concatenate([np.empty((0, self.dim), dtype=np.float32), *parts])
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        return MultiVectors(flat, np.concatenate([[0], np.cumsum(sizes)]))

    def encode_queries(self, queries: Sequence[Input]) -> MultiVectors:
        """Encode what is asked, one vector each: a text, or a picture as a whole."""
        vectors = self._pictures.encode_queries(queries)
        return MultiVectors(vectors, np.arange(len(vectors) + 1))

    def boxes(self, image: Image) -> NDArray[np.float32]:
        """Return (cells, 4) float32, x0 y0 x1 y1 in 0..1: where each stored vector looks."""
        return self._pictures.encode_regions(image)[1]

    def spans(self, text: str) -> NDArray[np.int32]:
        """Return (0, 2): no stored vector is of a text."""
        return np.zeros((0, 2), dtype=np.int32)

    def query_spans(self, text: str) -> NDArray[np.int32]:
        """Return (1, 2): the one vector of a query is of all its text."""
        return np.array([[0, len(text)]], dtype=np.int32)

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) of every token, as MiniLM reads the text."""
        return self._pictures.token_spans(text)
