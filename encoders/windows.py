"""Texts longer than an encoder's window: cut into windows, whose vectors are averaged."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foveate.pipeline.errors import ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats


def as_texts(prompt: str, inputs: Sequence[Input]) -> list[str]:
    """Return the prompt and each text together.

    Raises:
        ShapeError: if an input is not a text.
    """
    texts: list[str] = []
    for item in inputs:
        if not isinstance(item, str):
            raise ShapeError(f"expected texts, got {type(item).__name__} for a text encoder")
        texts.append(prompt + item)
    return texts


def even_bounds(n_tokens: int, limit: int) -> list[tuple[int, int]]:
    """Return [start, end) of the fewest windows of at most `limit`, of equal size within one."""
    n_windows = max(1, -(-n_tokens // limit))
    edges = [n_tokens * i // n_windows for i in range(n_windows + 1)]
    return list(itertools.pairwise(edges))


def split_windows(ids: list[int], limit: int) -> list[list[int]]:
    """Split token ids into windows of at most `limit`; no ids are one empty window."""
    return [ids[a:b] for a, b in even_bounds(len(ids), limit)]


def split_text(text: str, spans: NDArray[np.int32], limit: int) -> list[tuple[str, int]]:
    """Split a text into (window, its tokens), between the tokens that stand at `spans` (t, 2)."""
    if len(spans) <= limit:
        return [(text, len(spans))]
    return [(text[spans[a, 0] : spans[b - 1, 1]], b - a) for a, b in even_bounds(len(spans), limit)]


def merge_windows(vectors: Floats, owners: Sequence[int], weights: Sequence[int], n: int) -> Floats:
    """Return (n, d) float32, L2-normalised: each owner's mean of its windows by their weights."""
    merged = np.zeros((n, vectors.shape[1]), dtype=np.float32)
    scale = np.maximum(np.asarray(weights, dtype=np.float32), 1)
    np.add.at(merged, np.asarray(owners, dtype=np.int64), vectors * scale[:, None])
    norms = np.linalg.norm(merged, axis=1, keepdims=True)
    return np.asarray(merged / np.maximum(norms, 1e-12), dtype=np.float32)
