"""Attention over intervals on a GPU: one program a tile of rows and a head, online softmax.

Of each run the program visits the tiles of keys between the first key that any of
its rows sees and the last, so masked tiles are never read. Exponentials are powers of two. A key
head is read by its own query heads without being repeated.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,operator,misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.attention import Score
from foveate.kernels.tuning import INTERPRETED, meta, tuned

if TYPE_CHECKING:
    from foveate.kernels.attention import Normaliser


@tuned({"BLOCK_R": (16, 64, 128), "BLOCK_K": (32, 64)}, key=["D", "E", "RUNS"])
@triton.jit
def _forward(
    queries: Any,
    keys: Any,
    values: Any,
    bias: Any,
    mask: Any,
    out: Any,
    sums: Any,
    n_rows: Any,
    n_keys: Any,
    per_key_head: Any,
    scale: Any,
    cap: Any,
    D: tl.constexpr,
    E: tl.constexpr,
    RUNS: tl.constexpr,
    BIASED: tl.constexpr,
    CAPPED: tl.constexpr,
    ZERO: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    held = row < n_rows
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    key_base = (head // per_key_head) * n_keys
    q = tl.load(
        queries + (head * n_rows + row)[:, None] * D + d[None, :],
        mask=held[:, None] & (d < D)[None, :],
        other=0.0,
    )
    if WIDEN:
        q = q.to(tl.float32)
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    if ZERO:
        top = tl.zeros((BLOCK_R,), tl.float32)
        total = total + 1.0
    for run in range(RUNS):
        begin = tl.load(mask + (row * RUNS + run) * 2, mask=held, other=0)
        end = tl.load(mask + (row * RUNS + run) * 2 + 1, mask=held, other=0)
        seen = begin < end
        first = tl.min(tl.where(seen, begin, n_keys), 0)
        last = tl.max(tl.where(seen, end, 0), 0)
        for at in range(first, last, BLOCK_K):
            key = at + tl.arange(0, BLOCK_K)
            inside = key < n_keys
            k = tl.load(
                keys + (key_base + key)[:, None] * D + d[None, :],
                mask=inside[:, None] & (d < D)[None, :],
                other=0.0,
            ).to(q.dtype)
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if CAPPED:
                # tanh(x) = 2 / (1 + exp(-2 x)) - 1
                logits = cap * (2.0 / (1.0 + tl.exp(-2.0 * logits / cap)) - 1.0)
            if BIASED:
                logits += tl.load(bias + key, mask=inside, other=0.0).to(tl.float32)[None, :]
            visible = (key[None, :] >= begin[:, None]) & (key[None, :] < end[:, None])
            logits = tl.where(visible, logits * 1.4426950408889634, float("-inf"))
            now = tl.maximum(top, tl.max(logits, 1))
            shift = tl.where(now == float("-inf"), 0.0, now)
            weights = tl.exp2(logits - shift[:, None])
            shrink = tl.exp2(top - shift)
            total = total * shrink + tl.sum(weights, 1)
            v = tl.load(
                values + (key_base + key)[:, None] * E + e[None, :],
                mask=inside[:, None] & (e < E)[None, :],
                other=0.0,
            )
            if WIDEN:
                v = v.to(tl.float32)
            acc = acc * shrink[:, None]
            acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = now
    divisor = tl.where(total > 0, total, 1.0)
    tl.store(
        out + (head * n_rows + row)[:, None] * E + e[None, :],
        acc / divisor[:, None],
        mask=held[:, None] & (e < E)[None, :],
    )
    logged = tl.where(total > 0, (top + tl.log2(divisor)) * 0.6931471805599453, float("-inf"))
    tl.store(sums + head * n_rows + row, logged, mask=held)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Score,
    normaliser: Normaliser,
) -> tuple[Tensor, Tensor]:
    """Return (h, t, e) and (h, t) float32, as `attention_with_sums` does; differentiable."""
    found: tuple[Tensor, Tensor] = _Attention.apply(
        queries, keys, values, score.bias, mask, score, normaliser
    )
    return found


class _Attention(torch.autograd.Function):
    """Keeps the output and the sums of the rows; all else is computed again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None,
        mask: Tensor,
        score: Score,
        normaliser: Normaliser,
    ) -> tuple[Tensor, Tensor]:
        out, sums = _attend(queries, keys, values, mask, score, normaliser)
        ctx.save_for_backward(queries, keys, values, bias, mask, out, sums)
        ctx.score = Score(score.scale, score.cap)
        return out, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from foveate.kernels import attention_backward_triton

        queries, keys, values, bias, mask, out, sums = ctx.saved_tensors
        to_out, to_sums = gradients
        score = Score(ctx.score.scale, ctx.score.cap, bias)
        deltas = (to_out.float() * out.float()).sum(2) - to_sums
        dq, dk, dv, db = attention_backward_triton.gradients(
            queries, keys, values, mask, score, sums, to_out, deltas
        )
        slopes = [dq.to(queries.dtype), dk.to(keys.dtype), dv.to(values.dtype)]
        return (*slopes, None if db is None or bias is None else db.to(bias.dtype), *[None] * 3)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Score,
    normaliser: Normaliser,
) -> tuple[Tensor, Tensor]:
    (h, t, d), (g, u, e) = queries.shape, values.shape
    out = torch.empty((h, t, e), dtype=queries.dtype, device=queries.device)
    sums = torch.empty((h, t), dtype=torch.float32, device=queries.device)
    if not h or not t:
        return out, sums

    def grid(sizes: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(t, sizes["BLOCK_R"]), h

    _forward[grid](
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        score.bias,
        mask.contiguous(),
        out,
        sums,
        t,
        u,
        h // g,
        d**-0.5 if score.scale is None else score.scale,
        1.0 if score.cap is None else score.cap,
        D=d,
        E=e,
        RUNS=mask.shape[1],
        BIASED=score.bias is not None,
        CAPPED=score.cap is not None,
        ZERO=getattr(normaliser, "zero", False),
        # the interpreter's dot knows no bfloat16
        WIDEN=INTERPRETED,
        BLOCK_D=max(16, triton.next_power_of_2(d)),
        BLOCK_E=max(16, triton.next_power_of_2(e)),
        **meta(BLOCK_R=16, BLOCK_K=16),
    )
    return out, sums
