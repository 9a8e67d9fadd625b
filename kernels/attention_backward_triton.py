"""The gradient of attention over intervals on a GPU; weights are computed again, not kept.

    w = exp(l - sum)        dl = w (<dout, v> - <dout, out> + dsum)
    dq = sum_j dx k_j       dk = sum_i dx q_i       dv = sum_i w dout_i       dbias = sum_i dl

with dx = dl scale (1 - (l / cap)^2) where there is a cap. One program a tile of rows for dq, one a
tile of keys and a key head for the rest, so nothing is added by two programs but the bias's.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import meta, tuned

if TYPE_CHECKING:
    from foveate.kernels.attention import Score


@triton.jit
def _slopes(
    q, k, v, grad, key, begin, end, bias, n_keys,
    total, delta, scale, cap, BIASED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Return weights (r, c), slopes of the logits and slopes of the products."""
    raw = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    bent = 1.0
    if CAPPED:
        raw = cap * (2.0 / (1.0 + tl.exp(-2.0 * raw / cap)) - 1.0)
        bent = 1.0 - (raw / cap) * (raw / cap)
    logits = raw
    if BIASED:
        logits += tl.load(bias + key, mask=key < n_keys, other=0.0).to(tl.float32)[None, :]
    visible = (key[None, :] >= begin[:, None]) & (key[None, :] < end[:, None])
    # a row that sees nothing has -inf as its sum
    shift = tl.where(total == float("-inf"), 0.0, total)
    weights = tl.where(visible, tl.exp(logits - shift[:, None]), 0.0)
    slopes = weights * (tl.dot(grad, tl.trans(v), input_precision="ieee") - delta[:, None])
    return weights, slopes, slopes * scale * bent


@tuned({"BLOCK_R": (16, 64), "BLOCK_K": (32, 64)}, key=["D", "E", "RUNS"])
@triton.jit
def _to_queries(
    queries, keys, values, bias, mask, grads, sums,
    deltas, out, n_rows, n_keys, per_key_head, scale, cap,
    D: tl.constexpr, E: tl.constexpr, RUNS: tl.constexpr, BIASED: tl.constexpr,
    CAPPED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    held = row < n_rows
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    key_base = (head // per_key_head) * n_keys
    rows = head * n_rows + row
    in_d, in_e = held[:, None] & (d < D)[None, :], held[:, None] & (e < E)[None, :]
    q = tl.load(queries + rows[:, None] * D + d[None, :], mask=in_d, other=0.0).to(tl.float32)
    grad = tl.load(grads + rows[:, None] * E + e[None, :], mask=in_e, other=0.0).to(tl.float32)
    total = tl.load(sums + rows, mask=held, other=float("-inf"))
    delta = tl.load(deltas + rows, mask=held, other=0.0)
    found = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    for run in range(RUNS):
        begin = tl.load(mask + (row * RUNS + run) * 2, mask=held, other=0)
        end = tl.load(mask + (row * RUNS + run) * 2 + 1, mask=held, other=0)
        first = tl.min(tl.where(begin < end, begin, n_keys), 0)
        last = tl.max(tl.where(begin < end, end, 0), 0)
        for at in range(first, last, BLOCK_K):
            key = at + tl.arange(0, BLOCK_K)
            inside = key < n_keys
            place = (key_base + key)[:, None]
            k = tl.load(
                keys + place * D + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0
            ).to(tl.float32)
            v = tl.load(
                values + place * E + e[None, :], mask=inside[:, None] & (e < E)[None, :], other=0.0
            ).to(tl.float32)
            _, _, steep = _slopes(
                q, k, v, grad, key, begin, end, bias, n_keys, total, delta, scale, cap,
                BIASED, CAPPED,
            )  # fmt: skip
            found += tl.dot(steep, k, input_precision="ieee")
    tl.store(out + rows[:, None] * D + d[None, :], found, mask=in_d)


@tuned({"BLOCK_R": (16, 64), "BLOCK_K": (32, 64)}, key=["D", "E", "RUNS"])
@triton.jit
def _to_keys(
    queries, keys, values, bias, mask, grads, sums,
    deltas, to_keys, to_values, to_bias, n_rows, n_keys,
    per_key_head, scale, cap, D: tl.constexpr, E: tl.constexpr,
    RUNS: tl.constexpr, BIASED: tl.constexpr, CAPPED: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    key_head = tl.program_id(1).to(tl.int64)
    key = tl.program_id(0).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = key < n_keys
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    place = (key_head * n_keys + key)[:, None]
    in_d, in_e = inside[:, None] & (d < D)[None, :], inside[:, None] & (e < E)[None, :]
    k = tl.load(keys + place * D + d[None, :], mask=in_d, other=0.0).to(tl.float32)
    v = tl.load(values + place * E + e[None, :], mask=in_e, other=0.0).to(tl.float32)
    dk = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_K, BLOCK_E), tl.float32)
    db = tl.zeros((BLOCK_K,), tl.float32)
    for member in range(per_key_head):
        head = key_head * per_key_head + member
        for low in range(0, n_rows, BLOCK_R):
            row = low + tl.arange(0, BLOCK_R)
            held = row < n_rows
            rows = head * n_rows + row
            q = tl.load(
                queries + rows[:, None] * D + d[None, :],
                mask=held[:, None] & (d < D)[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
            grad = tl.load(
                grads + rows[:, None] * E + e[None, :],
                mask=held[:, None] & (e < E)[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
            total = tl.load(sums + rows, mask=held, other=float("-inf"))
            delta = tl.load(deltas + rows, mask=held, other=0.0)
            for run in range(RUNS):
                begin = tl.load(mask + (row * RUNS + run) * 2, mask=held, other=0)
                end = tl.load(mask + (row * RUNS + run) * 2 + 1, mask=held, other=0)
                weights, slopes, steep = _slopes(
                    q, k, v, grad, key, begin, end, bias, n_keys, total, delta, scale, cap,
                    BIASED, CAPPED,
                )  # fmt: skip
                dk += tl.dot(tl.trans(steep), q, input_precision="ieee")
                dv += tl.dot(tl.trans(weights), grad, input_precision="ieee")
                db += tl.sum(slopes, 0)
    tl.store(to_keys + place * D + d[None, :], dk, mask=in_d)
    tl.store(to_values + place * E + e[None, :], dv, mask=in_e)
    if BIASED:
        tl.atomic_add(to_bias + key, db, mask=inside)


def gradients(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Score,
    sums: Tensor,
    grads: Tensor,
    deltas: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the slopes of queries, keys, values and bias, float32.

    sums, deltas: (h, t) float32; deltas = <dout, out> - dsum of each row. grads: (h, t, e).
    """
    (h, t, d), (g, u, e) = queries.shape, values.shape
    held = [x.contiguous() for x in (queries, keys, values)]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in held)
    db = None if score.bias is None else torch.zeros_like(score.bias, dtype=torch.float32)
    if not (h and t and u):
        return dq, dk, dv, db
    rows = (*held, score.bias, mask.contiguous(), grads.contiguous(), sums, deltas)
    numbers = (
        t, u, h // g, d**-0.5 if score.scale is None else score.scale,
        1.0 if score.cap is None else score.cap,
    )  # fmt: skip
    shape = {
        "D": d, "E": e, "RUNS": mask.shape[1],
        "BIASED": score.bias is not None, "CAPPED": score.cap is not None,
        "BLOCK_D": max(16, triton.next_power_of_2(d)),
        "BLOCK_E": max(16, triton.next_power_of_2(e)),
        **meta(BLOCK_R=16, BLOCK_K=16),
    }  # fmt: skip
    _to_queries[lambda sizes: (triton.cdiv(t, sizes["BLOCK_R"]), h)](*rows, dq, *numbers, **shape)
    _to_keys[lambda sizes: (triton.cdiv(u, sizes["BLOCK_K"]), g)](
        *rows, dk, dv, db, *numbers, **shape
    )
    return dq, dk, dv, db
