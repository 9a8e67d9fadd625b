"""Top-k attention on a GPU: the k-th logit by bisection over its bits, then one masked softmax.

Nothing of size (t, u) is written: the logits of a tile are computed again in each of the 32 steps
and once more for the softmax, so the work is 33 products and the memory that of the output.
Among equal logits the first keys are kept, as on the other paths.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels import online_triton as online
from foveate.kernels.tuning import INTERPRETED, meta, tuned

if TYPE_CHECKING:
    from foveate.kernels.attention import Score, Softmax


@triton.jit
def _logits(
    q, keys, bias, key, begin, end, n_keys, key_base,
    scale, cap, D: tl.constexpr, BIASED: tl.constexpr, CAPPED: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    inside = key < n_keys
    k = online.rows_of(keys, key_base + key, inside, D, BLOCK_D, WIDEN).to(q.dtype)
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if CAPPED:
        logits = online.capped(logits, cap)
    if BIASED:
        logits += tl.load(bias + key, mask=inside, other=0.0).to(tl.float32)[None, :]
    visible = (key[None, :] >= begin[:, None]) & (key[None, :] < end[:, None])
    return tl.where(visible, logits, float("-inf"))


@triton.jit
def _ordered(logits):
    # whole numbers in the order of the floats; -inf is the least that is ever compared
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@tuned({"BLOCK_R": (16, 64), "BLOCK_K": (32, 64)}, key=["D", "E", "RUNS"])
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
    n_top,
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
    spot, key_base = head * n_rows + row, (head // per_key_head) * n_keys
    q = online.rows_of(queries, spot, held, D, BLOCK_D, WIDEN)
    # the k-th largest is the largest number that at least k reach
    low = tl.full((BLOCK_R,), -2147483648, tl.int64)
    high = tl.full((BLOCK_R,), 2147483647, tl.int64)
    above = tl.zeros((BLOCK_R,), tl.int32)
    for step in range(33):
        middle = (low + high + 1) >> 1
        if step == 32:
            # what is strictly larger than the k-th
            middle = low + 1
        count = tl.zeros((BLOCK_R,), tl.int32)
        for run in range(RUNS):
            begin = tl.load(mask + (row * RUNS + run) * 2, mask=held, other=0)
            end = tl.load(mask + (row * RUNS + run) * 2 + 1, mask=held, other=0)
            seen = begin < end
            first = tl.min(tl.where(seen, begin, n_keys), 0)
            last = tl.max(tl.where(seen, end, 0), 0)
            for at in range(first, last, BLOCK_K):
                key = at + tl.arange(0, BLOCK_K)
                logits = _logits(
                    q, keys, bias, key, begin, end, n_keys, key_base, scale, cap,
                    D, BIASED, CAPPED, WIDEN, BLOCK_D,
                )  # fmt: skip
                reached = (_ordered(logits) >= middle[:, None]) & (logits > float("-inf"))
                count += tl.sum(reached.to(tl.int32), 1)
        if step == 32:
            above = count
        else:
            enough = count >= n_top
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle - 1)
    top, total, acc = online.begin(BLOCK_R, BLOCK_E, ZERO)
    met = tl.zeros((BLOCK_R,), tl.int32)
    for run in range(RUNS):
        begin = tl.load(mask + (row * RUNS + run) * 2, mask=held, other=0)
        end = tl.load(mask + (row * RUNS + run) * 2 + 1, mask=held, other=0)
        seen = begin < end
        first = tl.min(tl.where(seen, begin, n_keys), 0)
        last = tl.max(tl.where(seen, end, 0), 0)
        for at in range(first, last, BLOCK_K):
            key = at + tl.arange(0, BLOCK_K)
            logits = _logits(
                q, keys, bias, key, begin, end, n_keys, key_base, scale, cap,
                D, BIASED, CAPPED, WIDEN, BLOCK_D,
            )  # fmt: skip
            place = _ordered(logits)
            tied = (place == low[:, None]) & (logits > float("-inf"))
            nth = met[:, None] + tl.cumsum(tied.to(tl.int32), 1)
            met += tl.sum(tied.to(tl.int32), 1)
            kept = (place > low[:, None]) | (tied & (nth <= (n_top - above)[:, None]))
            logits = tl.where(kept, logits, float("-inf"))
            v = online.rows_of(values, key_base + key, key < n_keys, E, BLOCK_E, WIDEN)
            top, total, acc = online.see(top, total, acc, logits, v)
    online.put(out, spot, held, total, acc, E, BLOCK_E)
    tl.store(sums + spot, online.log_sum(top, total), mask=held)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, score: Score, normaliser: Softmax
) -> tuple[Tensor, Tensor]:
    """Return (h, t, e) and (h, t) float32, as `attention_with_sums` does."""
    (h, t, d), (g, u, e) = queries.shape, values.shape
    out = torch.empty((h, t, e), dtype=queries.dtype, device=queries.device)
    sums = torch.empty((h, t), dtype=torch.float32, device=queries.device)

    def grid(sizes: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(t, sizes["BLOCK_R"]), h

    if h and t:
        _forward[grid](
            queries.contiguous(), keys.contiguous(), values.contiguous(), score.bias,
            mask.contiguous(), out, sums, t, u, h // g, normaliser.top,
            d**-0.5 if score.scale is None else score.scale,
            1.0 if score.cap is None else score.cap,
            D=d, E=e, RUNS=mask.shape[1],
            BIASED=score.bias is not None, CAPPED=score.cap is not None, ZERO=normaliser.zero,
            # the interpreter's dot knows no bfloat16
            WIDEN=INTERPRETED,
            BLOCK_D=max(16, triton.next_power_of_2(d)),
            BLOCK_E=max(16, triton.next_power_of_2(e)),
            **meta(BLOCK_R=16, BLOCK_K=16),
        )  # fmt: skip
    return out, sums
