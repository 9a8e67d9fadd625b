"""Attention over intervals on a GPU: one program a tile of rows and a head, online softmax.

Of each run the program visits the tiles of keys between the first key that any of
its rows sees and the last, so masked tiles are never read. Exponentials are powers of two. A key
head is read by its own query heads without being repeated.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels import online_triton as online
from foveate.kernels.attention import Score
from foveate.kernels.tuning import INTERPRETED, meta, tuned

if TYPE_CHECKING:
    from foveate.kernels.attention import Normaliser


@tuned({"BLOCK_R": (16, 64, 128), "BLOCK_K": (32, 64)}, key=["D", "E", "RUNS"])
@triton.jit
def _forward(
    queries,
    keys,
    values,
    bias,
    mask,
    out,
    sums,
    n_rows,
    n_keys,
    per_key_head,
    scale,
    cap,
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
):
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    held = row < n_rows
    place, key_base = head * n_rows + row, (head // per_key_head) * n_keys
    q = online.rows_of(queries, place, held, D, BLOCK_D, WIDEN)
    top, total, acc = online.begin(BLOCK_R, BLOCK_E, ZERO)
    for run in range(RUNS):
        begin = tl.load(mask + (row * RUNS + run) * 2, mask=held, other=0)
        end = tl.load(mask + (row * RUNS + run) * 2 + 1, mask=held, other=0)
        seen = begin < end
        first = tl.min(tl.where(seen, begin, n_keys), 0)
        last = tl.max(tl.where(seen, end, 0), 0)
        for at in range(first, last, BLOCK_K):
            key = at + tl.arange(0, BLOCK_K)
            inside = key < n_keys
            k = online.rows_of(keys, key_base + key, inside, D, BLOCK_D, WIDEN).to(q.dtype)
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if CAPPED:
                logits = online.capped(logits, cap)
            if BIASED:
                logits += tl.load(bias + key, mask=inside, other=0.0).to(tl.float32)[None, :]
            visible = (key[None, :] >= begin[:, None]) & (key[None, :] < end[:, None])
            logits = tl.where(visible, logits, float("-inf"))
            v = online.rows_of(values, key_base + key, inside, E, BLOCK_E, WIDEN)
            top, total, acc = online.see(top, total, acc, logits, v)
    online.put(out, place, held, total, acc, E, BLOCK_E)
    tl.store(sums + place, online.log_sum(top, total), mask=held)


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
