"""Pooling by attention: learned or text queries over the ragged patches of each item.

    out[n, m] = sum_j softmax_j(score(<q_m, k_j>)) v_j,  j over the patches of item n

One operation serves efficient probing (arXiv 2506.10178: learned queries, values are the patches
themselves), latent-attention pooling (arXiv 2405.17428) and FLAIR (arXiv 2412.03561: the query is
a text, and a zero key lets it attend to nothing: `Softmax(zero=True)`).

All logits come from one product (t, m); then items of alike length are pooled together, so
padding costs at most a quarter; the values of long items are not copied. Bytes moved: keys and
values once. Operations: 2 t m (d + e).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from foveate.kernels import masks, ragged, threads
from foveate.kernels.attention import (
    PLAIN_SCORE,
    PLAIN_SOFTMAX,
    Normaliser,
    Score,
    attention,
    attention_reference,
)
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError

# numbers of an item from which on its values are multiplied in place, not gathered
LONG = 1 << 14
# items pooled at a time
PIECE = 64


def pooled_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    *,
    score: Score = PLAIN_SCORE,
    normaliser: Normaliser = PLAIN_SOFTMAX,
    backend: str | None = None,
) -> Tensor:
    """Pool the patches of each item under each query; differentiable.

    Args:
        queries: (m, d) float.
        keys: (t, d), of all items.
        values: (t, e); the keys themselves for efficient probing without a key projection.
        offsets: (n+1,) int64, where the patches of each item begin and end.
        score: see `foveate.kernels.attention.Score`.
        normaliser: `Softmax` or `Sigmoid`.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        (n, m, e) in the values' type; zeros for an item without patches.
    """
    if keys.ndim != 2 or keys.shape[1:] != queries.shape[1:] or len(values) != len(keys):
        raise ShapeError(
            "expected queries (m, d), keys (t, d), values (t, e), "
            f"got {tuple(queries.shape)}, {tuple(keys.shape)}, {tuple(values.shape)}"
        )
    places = ragged.check_offsets(offsets, len(keys))
    chosen = path("pooled_attention", queries.device, backend).name
    if chosen != "cpu":
        return _as_rows(queries, keys, values, offsets, score, normaliser, chosen)
    wide = torch.float64 if keys.dtype == torch.float64 else torch.float32
    # logits of all patches with all queries at once
    bias = None if score.bias is None else score.bias[:, None]
    per_patch = Score(score.scale, score.cap, bias)
    logits = per_patch.logits(keys.to(wide) @ queries.to(wide).T, queries.shape[1], slice(None))
    n, e = len(offsets) - 1, values.shape[1]
    found = values.new_zeros((n, len(queries), e), dtype=wide)
    sizes = offsets.diff()

    def pool(piece: tuple[list[int], int]) -> tuple[Tensor, Tensor]:
        members, longest = piece
        items = torch.tensor(members, device=keys.device)
        rows = ragged.padded_rows(offsets[items], sizes[items], longest)
        beyond = torch.arange(longest, device=keys.device) >= sizes[items, None]
        some = logits[rows].masked_fill(beyond[..., None], -torch.inf).transpose(1, 2)
        weights, _ = normaliser.weights(some)
        if longest * e < LONG:
            pooled = weights @ values[rows].to(wide)
        else:
            parts = [values[places[i] : places[i + 1]].to(wide) for i in members]
            pooled = torch.stack(
                [w[:, : len(part)] @ part for w, part in zip(weights, parts, strict=True)]
            )
        return items, pooled

    pieces = [
        (members[low : low + PIECE], longest)
        for members, longest in ragged.groups([b - a for a, b in pairwise(places)])
        for low in range(0, len(members), PIECE)
    ]
    learns = torch.is_grad_enabled() and (values.requires_grad or logits.requires_grad)
    done = list(map(pool, pieces) if learns else threads.each(pool, pieces, device=keys.device))
    if done:
        items, pooled = (torch.cat(parts) for parts in zip(*done, strict=True))
        found = found.index_copy(0, items, pooled)
    return found.to(values.dtype)


def _as_rows(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    score: Score,
    normaliser: Normaliser,
    backend: str,
) -> Tensor:
    """Pool as attention whose rows are every query once for every item."""
    n, m = len(offsets) - 1, len(queries)
    starts = torch.arange(n + 1, device=offsets.device) * m
    mask = masks.packed(starts, offsets)
    rows = queries.repeat(n, 1)[None]
    if backend == "reference":
        found, _ = attention_reference(rows, keys[None], values[None], mask, score, normaliser)
    else:
        found = attention(
            rows, keys[None], values[None], mask,
            score=score, normaliser=normaliser, backend=backend, op="pooled_attention",
        )  # fmt: skip
    return found.view(n, m, -1)
