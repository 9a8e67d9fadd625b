"""Local attention over packed documents: a row sees its neighbours within its own document.

Source: TKL, arXiv 2005.04908 (chunks with overlap), here without the chunks' borders: every row
has the same reach. Work is t (before + after + 1) pairs, linear in the length.
"""

from __future__ import annotations

from torch import Tensor

from foveate.kernels import masks, ragged
from foveate.kernels.attention import PLAIN_SCORE, Score, attention
from foveate.pipeline.errors import ShapeError


def window_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    *,
    before: int,
    after: int,
    score: Score = PLAIN_SCORE,
    backend: str | None = None,
) -> Tensor:
    """Attend to the keys from `before` rows before to `after` rows after, in the same document.

    Args:
        queries: (h, t, d) float.
        keys: (g, t, d).
        values: (g, t, e).
        offsets: (n+1,) int64, where each document begins and ends.
        before: rows seen before a row.
        after: rows seen after it; 0 is causal.
        score: see `foveate.kernels.attention.Score`.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        (h, t, e).
    """
    if before < 0 or after < 0:
        raise ShapeError(f"expected before and after of at least 0, got {before} and {after}")
    ragged.check_offsets(offsets, queries.shape[1])
    near = masks.window(queries.shape[1], before, after).to(offsets.device)
    mask = masks.both(near, masks.packed(offsets, offsets))
    return attention(
        queries, keys, values, mask, score=score, backend=backend, op="window_attention"
    )
