"""Top-k attention, exact: softmax over the k largest logits of each row, the rest left out.

Source: Gupta et al., arXiv 2106.06899. Memory is linear in the number of keys: a tile of rows is
scored, cut and summed before the next. Among equal logits the first keys are kept.

The error against full attention is known: with delta the weight left out and mu the weighted mean
of values kept and left out, |o - o_k| = delta |mu_left - mu_kept| (`sparse_error`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.kernels.attention import PLAIN_SCORE, Score, Softmax, attention
from foveate.pipeline.errors import ShapeError


def topk_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    k: int,
    mask: Tensor | None = None,
    *,
    score: Score = PLAIN_SCORE,
    backend: str | None = None,
) -> Tensor:
    """Attend to the k best keys of each row; the gradient flows through the kept ones alone.

    Args:
        queries: (h, t, d) float.
        keys: (g, u, d).
        values: (g, u, e).
        k: how many keys a row keeps; k >= u is full attention.
        mask: (t, j, 2) int64 intervals; None shows all. A row that sees fewer than k keeps them.
        score: see `foveate.kernels.attention.Score`.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        (h, t, e).
    """
    if k < 1:
        raise ShapeError(f"expected k of at least 1, got {k}")
    return attention(
        queries, keys, values, mask,
        score=score, normaliser=Softmax(top=k), backend=backend, op="topk_attention",
    )  # fmt: skip


def sparse_error(weights: Tensor, values: Tensor, kept: Tensor) -> Tensor:
    """Return |o - o_kept| of rows whose weights sum to 1, by delta |mu_left - mu_kept|.

    Args:
        weights: (..., c), full softmax weights.
        values: (c, e).
        kept: (..., c) bool; at least one key of each row.
    """
    inside = torch.where(kept, weights, 0.0)
    outside = torch.where(kept, 0.0, weights)
    delta = outside.sum(-1, keepdim=True)
    kept_mean = inside @ values / inside.sum(-1, keepdim=True)
    left_mean = outside @ values / delta.clamp(min=torch.finfo(weights.dtype).tiny)
    return (delta * (left_mean - kept_mean)).square().sum(-1).sqrt()
