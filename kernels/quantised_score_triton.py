"""Block skipping by 4-bit estimates on a GPU: one program a block of rows and a head.

The sink and the neighbours are scored first; their sum decides which blocks in between are read
at full width and merged into the same online softmax.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import INTERPRETED, meta, tuned


@triton.jit
def _meet(
    q, keys, values, first, last, row, n_keys, base,
    top, total, acc, scale, D: tl.constexpr, E: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Merge the keys from first to last, causally, into the online softmax."""
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    for at in range(first, last, BLOCK_K):
        key = at + tl.arange(0, BLOCK_K)
        inside = (key < last) & (key < n_keys)
        k = tl.load(
            keys + (base + key)[:, None] * D + d[None, :],
            mask=inside[:, None] & (d < D)[None, :], other=0.0,
        ).to(q.dtype)  # fmt: skip
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = inside[None, :] & (key[None, :] <= row[:, None])
        logits = tl.where(visible, logits, float("-inf"))
        now = tl.maximum(top, tl.max(logits, 1))
        shift = tl.where(now == float("-inf"), 0.0, now)
        weights = tl.exp(logits - shift[:, None])
        shrink = tl.exp(top - shift)
        v = tl.load(
            values + (base + key)[:, None] * E + e[None, :],
            mask=inside[:, None] & (e < E)[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            v = v.to(tl.float32)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = now
    return top, total, acc


@tuned({"BLOCK_K": (32, 64)}, key=["D", "E", "SIZE"])
@triton.jit
def _forward(
    queries, keys, values, query_codes, query_scales, key_codes,
    key_scales, out, kept, n_rows, per_key_head, sink, local,
    scale, log_tau, SIZE: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    low = number * SIZE
    place = tl.arange(0, BLOCK_R)
    row = low + place
    held = (place < SIZE) & (row < n_rows)
    high = tl.minimum(low + SIZE, n_rows)
    begin = tl.minimum((sink + SIZE - 1) // SIZE * SIZE, low)
    end = tl.maximum(begin, tl.maximum(low - local, 0) // SIZE * SIZE)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    base = (head // per_key_head) * n_rows
    rows = (head * n_rows + row)[:, None]
    in_d = held[:, None] & (d < D)[None, :]
    q = tl.load(queries + rows * D + d[None, :], mask=in_d, other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    top, total, acc = _meet(
        q, keys, values, 0, begin, row, n_rows, base, top, total, acc, scale,
        D, E, WIDEN, BLOCK_D, BLOCK_E, BLOCK_K,
    )  # fmt: skip
    top, total, acc = _meet(
        q, keys, values, end, high, row, n_rows, base, top, total, acc, scale,
        D, E, WIDEN, BLOCK_D, BLOCK_E, BLOCK_K,
    )  # fmt: skip
    least = tl.where(held, top + tl.log(total) + log_tau, float("inf"))
    coded = tl.load(query_codes + rows * D + d[None, :], mask=in_d, other=0.0)
    size = tl.load(query_scales + head * n_rows + row, mask=held, other=0.0)
    n_kept = 0
    for at in range(begin, end, SIZE):
        key = at + tl.arange(0, BLOCK_R)
        inside = tl.arange(0, BLOCK_R) < SIZE
        codes = tl.load(
            key_codes + (base + key)[:, None] * D + d[None, :],
            mask=inside[:, None] & (d < D)[None, :], other=0.0,
        )  # fmt: skip
        sizes = tl.load(key_scales + base + key, mask=inside, other=0.0)
        products = tl.dot(coded, tl.trans(codes), input_precision="ieee")
        products = products * (size[:, None] * sizes[None, :] * scale)
        counts = (products >= least[:, None]) & inside[None, :] & held[:, None]
        if tl.max(tl.max(counts.to(tl.int32), 1), 0) > 0:
            n_kept += 1
            top, total, acc = _meet(
                q, keys, values, at, at + SIZE, row, n_rows, base, top, total, acc, scale,
                D, E, WIDEN, BLOCK_D, BLOCK_E, BLOCK_K,
            )  # fmt: skip
    divisor = tl.where(total > 0, total, 1.0)
    tl.store(
        out + rows * E + e[None, :], acc / divisor[:, None],
        mask=held[:, None] & (e < E)[None, :],
    )  # fmt: skip
    tl.store(kept + head * tl.num_programs(0) + number, n_kept)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_codes: tuple[Tensor, Tensor],
    key_codes: tuple[Tensor, Tensor],
    *,
    tau: float,
    block: int,
    sink: int,
    local: int,
) -> tuple[Tensor, int]:
    """Return out (h, t, e), and how many blocks in between were attended to.

    query_codes: codes (h, t, d) float32 and scales (h, t, 1); key_codes of the keys alike.
    """
    (h, t, d), (g, _, e) = queries.shape, values.shape
    out = torch.empty((h, t, e), dtype=queries.dtype, device=queries.device)
    n_blocks = triton.cdiv(t, block)
    kept = torch.zeros((h, n_blocks), dtype=torch.int32, device=queries.device)
    if out.numel():
        _forward[(n_blocks, h)](
            queries.contiguous(), keys.contiguous(), values.contiguous(),
            *(x.contiguous() for x in (*query_codes, *key_codes)), out, kept, t, h // g, sink,
            local, d**-0.5, math.log(tau) if tau > 0 else -math.inf,
            SIZE=block, D=d, E=e,
            # the interpreter's dot knows no bfloat16
            WIDEN=INTERPRETED,
            BLOCK_D=max(16, triton.next_power_of_2(d)),
            BLOCK_E=max(16, triton.next_power_of_2(e)),
            BLOCK_R=max(16, triton.next_power_of_2(block)),
            **meta(BLOCK_K=16),
        )  # fmt: skip
    return out, int(kept.sum())
