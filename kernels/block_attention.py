"""BlockRank attention: passages blind to each other between a shared prefix and a query block.

Source: arXiv 2510.05396 and the authors' code. From packed ragged passages, never padded: work is
linear in the number of passages, sum_n len_n (len_0 + len_n) + len_last * total pairs.

`block_scores` gives the scoring rows alone, from stored keys: the query's rows attend to the
tokens of every passage under one softmax, and a passage's score is the weight that falls on it,
averaged over rows and heads. It reads the keys once, h r u d multiplications, and no values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.kernels import masks, ragged, threads
from foveate.kernels.attention import PLAIN_SCORE, Score, attention
from foveate.pipeline.errors import ShapeError


def block_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    *,
    score: Score = PLAIN_SCORE,
    backend: str | None = None,
) -> Tensor:
    """Attend under BlockRank's mask.

    Args:
        queries: (h, t, d) float, already rotated by position.
        keys: (g, t, d).
        values: (g, t, e).
        offsets: (n+1,) int64: the prefix, the passages, the query block.
        score: see `foveate.kernels.attention.Score`.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        (h, t, e).
    """
    ragged.check_offsets(offsets, queries.shape[1])
    mask = masks.block_rank(offsets)
    return attention(
        queries, keys, values, mask, score=score, backend=backend, op="block_attention"
    )


def block_scores(
    queries: Tensor, keys: Tensor, offsets: Tensor, *, score: Score = PLAIN_SCORE
) -> Tensor:
    """Score passages by the attention that the scoring rows pay to their stored keys.

    Args:
        queries: (h, r, d) float, the scoring rows.
        keys: (g, u, d), the packed keys of all passages and of nothing else.
        offsets: (n+1,) int64, where each passage begins and ends.
        score: see `foveate.kernels.attention.Score`.

    Returns:
        (n,) float32 (float64 if the queries are) that sum to 1; 0 for a passage without tokens.
    """
    (h, r, d), (g, u, _) = queries.shape, keys.shape
    if keys.shape[2] != d or g < 1 or h % g:
        raise ShapeError(
            f"expected queries (h, r, d) and keys (g, u, d), h a multiple of g, "
            f"got {tuple(queries.shape)} and {tuple(keys.shape)}"
        )
    ragged.check_offsets(offsets, u)
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    weights = queries.new_zeros(u, dtype=wide)

    def weigh(head: int) -> Tensor:
        # a key head at a time: its logits (h / g * r, u) stay in the cache
        rows = queries[head * (h // g) : (head + 1) * (h // g)].reshape(-1, d).to(wide)
        logits = score.logits(rows @ keys[head].to(wide).T, d, slice(None))
        return logits.softmax(-1).sum(0)

    learns = torch.is_grad_enabled() and (queries.requires_grad or keys.requires_grad)
    done = map(weigh, range(g)) if learns else threads.each(weigh, range(g), device=keys.device)
    for some in done:
        weights = weights + some
    found = weights.new_zeros(len(offsets) - 1)
    return found.index_add(0, ragged.owners(offsets), weights / max(1, h * r))
