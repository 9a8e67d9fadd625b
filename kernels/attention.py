"""Attention composed of a score, a mask and a normaliser: o_i = sum_j w_ij v_j.

    logits_ij = score(<q_i, k_j>, j)        w_i = normaliser(logits_i over the keys the mask shows)

A new variant is a mask of intervals (`foveate.kernels.masks`), a `Score` or a `Normaliser`.
Source: Vaswani et al., arXiv 1706.03762; the tiles are FlashAttention's, arXiv 2205.14135.

The blocked path takes a tile of rows at a time and multiplies only the runs of keys that the tile
sees, so it holds O(tile * keys) numbers and skips what is masked. A gradient recomputes each tile.
Bytes moved: q and o once, k and v once a tile. Operations: 2 (d + e) for each pair of a tile.

A row that sees no key gives zeros, and -inf as the logarithm of its sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from foveate.kernels import masks, threads
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError

# rows of one tile
TILE = 128


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """What becomes of a product <q, k>: cap * tanh(x * scale / cap) + bias_j.

    Attributes:
        scale: None means 1 / sqrt(d).
        cap: None means none.
        bias: (u,) float added to the logits of each key, or None.
    """

    scale: float | None = None
    cap: float | None = None
    bias: Tensor | None = None

    def logits(self, products: Tensor, dim: int, keys: Tensor | slice) -> Tensor:
        """Return logits (..., c) of products (..., c) with these keys."""
        found = products * (dim**-0.5 if self.scale is None else self.scale)
        if self.cap is not None:
            found = self.cap * torch.tanh(found / self.cap)
        return found if self.bias is None else found + self.bias[keys].to(found.dtype)


@dataclass(frozen=True, slots=True)
class Softmax:
    """Softmax over the keys shown.

    Attributes:
        zero: one more key whose logit and value are 0, so that a row can attend to nothing
            (FLAIR, arXiv 2412.03561).
        top: only the `top` largest logits of a row are kept (arXiv 2106.06899), among equals the
            first ones; None keeps all.
    """

    zero: bool = False
    top: int | None = None

    def weights(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (..., r, c) and the logarithm of their sum (..., r)."""
        if self.top is not None:
            logits = keep_largest(logits, self.top)
        if not logits.shape[-1]:
            sums = logits.new_full(logits.shape[:-1], 0.0 if self.zero else -torch.inf)
            return logits, sums
        highest = logits.amax(-1, keepdim=True)
        blind = highest == -torch.inf
        if bool(blind.any()):
            # exp(-inf + inf) and its slope are NaN: such a row is computed as if it saw all
            weights, sums = self.weights(logits.masked_fill(blind, 0.0))
            nothing = 0.0 if self.zero else -torch.inf
            return weights.masked_fill(blind, 0.0), sums.masked_fill(blind[..., 0], nothing)
        weights = torch.softmax(logits, -1)
        # the largest weight is exp(highest - sum), so no second pass of exponentials is needed
        sums = (highest - weights.amax(-1, keepdim=True).log())[..., 0]
        if self.zero:
            weights = weights * torch.sigmoid(sums)[..., None]
            sums = torch.logaddexp(sums, torch.zeros_like(sums))
        return weights, sums


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """An independent gate for each key: w = sigmoid(logit + bias) (arXiv 2409.04431)."""

    bias: float = 0.0

    def weights(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (..., r, c) and the logarithm of their sum (..., r)."""
        gates = torch.sigmoid(logits + self.bias)
        return gates, gates.sum(-1).log()


Normaliser = Softmax | Sigmoid
# they hold no tensors, so one of each serves all calls
PLAIN_SCORE, PLAIN_SOFTMAX = Score(), Softmax()


def keep_largest(logits: Tensor, top: int) -> Tensor:
    """Set all but the `top` largest of the last axis to -inf; among equals the first are kept."""
    if top >= logits.shape[-1]:
        return logits
    # only the least of them is wanted, so they are not sorted
    least = logits.detach().topk(top, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, tied = logits > least, logits == least
    room = top - above.sum(-1, keepdim=True)
    if bool((tied.sum(-1, keepdim=True) > room).any()):
        tied = tied & (tied.cumsum(-1) <= room)
    return logits.masked_fill(~(above | tied), -torch.inf)


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    score: Score = PLAIN_SCORE,
    normaliser: Normaliser = PLAIN_SOFTMAX,
    backend: str | None = None,
    op: str = "attention",
) -> Tensor:
    """Attend; differentiable in queries, keys, values and the score's bias.

    Args:
        queries: (h, t, d) float.
        keys: (g, u, d); h is a multiple of g, each key head serves h / g query heads in a row.
        values: (g, u, e).
        mask: (t, j, 2) int64 intervals; None shows all.
        score: see `Score`.
        normaliser: `Softmax` or `Sigmoid`.
        backend: see `foveate.kernels.dispatch.path`.
        op: the name under which the path is chosen and logged.

    Returns:
        (h, t, e) in the queries' type; sums are in float32, or float64 if the queries are.
    """
    return _attend(queries, keys, values, mask, score, normaliser, backend, op, with_sums=False)[0]


def attention_with_sums(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    score: Score = PLAIN_SCORE,
    normaliser: Normaliser = PLAIN_SOFTMAX,
    backend: str | None = None,
    op: str = "attention",
) -> tuple[Tensor, Tensor]:
    """Return what `attention` does and (h, t), the logarithm of each row's sum of weights."""
    return _attend(queries, keys, values, mask, score, normaliser, backend, op, with_sums=True)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    score: Score,
    normaliser: Normaliser,
    backend: str | None,
    op: str,
    *,
    with_sums: bool,
) -> tuple[Tensor, Tensor]:
    mask = _check(queries, keys, values, mask)
    leaves = (queries, keys, values, *(() if score.bias is None else (score.bias,)))
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
    reason = "asked for"
    if backend is None and queries.is_cuda and not _in_triton(normaliser, learns):
        backend, reason = "cpu", "the triton kernels know no sigmoid, and no gradient of top-k"
    chosen = path(op, queries.device, backend, reason).name
    if chosen == "reference":
        return attention_reference(queries, keys, values, mask, score, normaliser)
    if chosen == "triton":
        if not _in_triton(normaliser, learns):
            raise ShapeError("the triton paths know no sigmoid, and no gradient of top-k")
        if isinstance(normaliser, Softmax) and normaliser.top is not None:
            from foveate.kernels import topk_attention_triton

            return topk_attention_triton.attend(queries, keys, values, mask, score, normaliser)
        from foveate.kernels import attention_triton

        return attention_triton.attend(queries, keys, values, mask, score, normaliser)
    fused = (
        not with_sums and normaliser == PLAIN_SOFTMAX and (score.cap, score.bias) == (None, None)
    )
    return _blocked(queries, keys, values, mask, score, normaliser, learns, fused)


def _in_triton(normaliser: Normaliser, learns: bool) -> bool:
    return isinstance(normaliser, Softmax) and not (learns and normaliser.top is not None)


def attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    score: Score = PLAIN_SCORE,
    normaliser: Normaliser = PLAIN_SOFTMAX,
) -> tuple[Tensor, Tensor]:
    """Return the output and the logarithm of the sums by the formula, with the whole matrix."""
    mask = _check(queries, keys, values, mask)
    per_key_head = len(queries) // max(1, len(keys))
    keys, values = (x.repeat_interleave(per_key_head, 0) for x in (keys, values))
    logits = score.logits(queries @ keys.transpose(1, 2), queries.shape[2], slice(None))
    logits = logits.masked_fill(~masks.dense(mask, keys.shape[1]), -torch.inf)
    weights, sums = normaliser.weights(logits)
    return weights @ values, sums


def _check(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    (h, t, d), (g, u, _) = queries.shape, keys.shape
    if keys.shape[2] != d or values.shape[:2] != (g, u) or g < 1 or h % g:
        raise ShapeError(
            f"expected queries (h, t, d), keys (g, u, d), values (g, u, e), h a multiple of g, "
            f"got {tuple(queries.shape)}, {tuple(keys.shape)}, {tuple(values.shape)}"
        )
    if mask is None:
        return masks.full(t, u).to(queries.device)
    if mask.ndim != 3 or len(mask) != t or mask.shape[2] != 2 or mask.dtype != torch.int64:
        raise ShapeError(f"expected a mask ({t}, j, 2) int64, got {tuple(mask.shape)} {mask.dtype}")
    if mask.numel() and (int(mask.min()) < 0 or int(mask.max()) > u):
        raise ShapeError(f"expected a mask of keys 0 to {u}, got {mask.min()} to {mask.max()}")
    return mask


def _blocked(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Score,
    normaliser: Normaliser,
    learns: bool,
    fused: bool,
) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    outputs, sums = [], []
    no_sums = queries.new_empty((len(queries), 0))
    whole = _whole(mask, keys.shape[1]) if fused else None
    if whole is not None:
        output = scaled_dot_product_attention(
            queries[None], keys[None], values[None],
            is_causal=whole == "causal", scale=score.scale,
            enable_gqa=len(queries) != len(keys),
        )  # fmt: skip
        return output[0], no_sums

    def attend(tile: tuple[int, int, list[tuple[int, int]]]) -> tuple[Tensor, Tensor]:
        low, high, runs = tile
        shown, rows = mask[low:high], queries[:, low:high]
        if fused:
            return _fused_tile(rows, keys, values, shown, runs, score.scale), no_sums
        arguments = (rows, keys, values, shown, runs, score, normaliser, wide)
        if learns:
            # the weights of a tile are computed again for the gradient, not kept
            found: tuple[Tensor, Tensor] = checkpoint(_tile, *arguments, use_reentrant=False)
            return found
        return _tile(*arguments)

    tiles = masks.tiles(mask, TILE)
    done = map(attend, tiles) if learns else threads.each(attend, tiles, device=queries.device)
    for output, total in done:
        outputs.append(output.to(queries.dtype))
        sums.append(total)
    if not outputs:
        h = len(queries)
        return queries.new_empty((h, 0, values.shape[2])), queries.new_empty((h, 0), dtype=wide)
    return torch.cat(outputs, 1), torch.cat(sums, 1)


def _tile(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    shown: Tensor,
    runs: list[tuple[int, int]],
    score: Score,
    normaliser: Normaliser,
    wide: torch.dtype,
) -> tuple[Any, Any]:
    """Return output (h, r, e) and sums (h, r) of a tile of rows."""
    (h, r, d), g = queries.shape, len(keys)
    at = _places(runs, keys.device)
    which: Tensor | slice = slice(*runs[0]) if len(runs) == 1 else at
    some_keys, some_values = keys[:, which].to(wide), values[:, which].to(wide)
    grouped = queries.reshape(g, h // g * r, d).to(wide)
    logits = score.logits(grouped @ some_keys.transpose(1, 2), d, which)
    visible = _visible(at, shown)
    if not bool(visible.all()):
        logits = logits.view(g, h // g, r, -1).masked_fill(~visible, -torch.inf).view_as(logits)
    weights, sums = normaliser.weights(logits)
    return (weights @ some_values).view(h, r, -1), sums.view(h, r)


def _fused_tile(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    shown: Tensor,
    runs: list[tuple[int, int]],
    scale: float | None,
) -> Tensor:
    """Return output (h, r, e) by torch's fused attention, whose logits stay in the cache."""
    if not runs:
        # joined to the gradient, as zeros
        return queries[..., :1].expand(-1, -1, values.shape[2]) * 0.0
    at = _places(runs, keys.device)
    which = slice(*runs[0]) if len(runs) == 1 else at
    visible = _visible(at, shown)
    return scaled_dot_product_attention(
        queries[None],
        keys[None, :, which],
        values[None, :, which],
        attn_mask=None if bool(visible.all()) else visible,
        scale=scale,
        enable_gqa=len(queries) != len(keys),
    )[0]


def _whole(mask: Tensor, n_keys: int) -> str | None:
    """Return "full" or "causal" if the mask is just that, so that one call serves all rows."""
    if not len(mask) or not n_keys or mask.shape[1] != 1 or bool(mask[:, 0, 0].any()):
        return None
    ends = mask[:, 0, 1]
    if bool((ends == n_keys).all()):
        return "full"
    steps = torch.arange(1, n_keys + 1, device=mask.device)
    return "causal" if len(mask) == n_keys and torch.equal(ends, steps) else None


def _places(runs: list[tuple[int, int]], device: torch.device) -> Tensor:
    if not runs:
        return torch.arange(0, device=device)
    return torch.cat([torch.arange(*run, device=device) for run in runs])


def _visible(at: Tensor, shown: Tensor) -> Tensor:
    """Return (r, c): which of the keys at these places each row sees."""
    return ((at >= shown[:, :, None, 0]) & (at < shown[:, :, None, 1])).any(1)
