"""Attention to a row's own list of keys on a GPU: one program a row, nothing is gathered first."""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import meta, tuned


@tuned({"BLOCK_L": (32, 64, 128)}, key=["D", "E"])
@triton.jit
def _forward(
    queries,
    keys,
    values,
    chosen,
    bias,
    out,
    n_chosen,
    scale,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    q = tl.load(queries + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((BLOCK_E,), tl.float32)
    for start in range(0, n_chosen, BLOCK_L):
        place = start + tl.arange(0, BLOCK_L)
        held = place < n_chosen
        key = tl.load(chosen + row * n_chosen + place, mask=held, other=0)
        added = tl.load(bias + row * n_chosen + place, mask=held, other=float("-inf"))
        k = tl.load(
            keys + key[:, None] * D + d[None, :], mask=held[:, None] & (d < D)[None, :], other=0.0
        ).to(tl.float32)
        logits = tl.sum(k * q[None, :], 1) * scale + added
        now = tl.maximum(top, tl.max(logits, 0))
        # a row that has seen nothing yet would give exp(-inf + inf)
        shift = tl.where(now == float("-inf"), 0.0, now)
        shrink = tl.exp(top - shift)
        weights = tl.exp(logits - shift)
        v = tl.load(
            values + key[:, None] * E + e[None, :],
            mask=held[:, None] & (e < E)[None, :],
            other=0.0,
        ).to(tl.float32)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * v, 0)
        top = now
    tl.store(out + row * E + e, acc / tl.where(total > 0, total, 1.0), mask=e < E)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, chosen: Tensor, bias: Tensor, scale: float
) -> Tensor:
    """Return (r, e): softmax over chosen (r, l) int64 of <q, k> scale + bias (r, l), times v."""
    (r, d), e = queries.shape, values.shape[1]
    out = torch.empty((r, e), dtype=queries.dtype, device=queries.device)
    if out.numel():
        _forward[(r,)](
            queries.contiguous(), keys.contiguous(), values.contiguous(),
            chosen.contiguous(), bias.float().contiguous(), out, chosen.shape[1], scale,
            D=d, E=e, BLOCK_D=triton.next_power_of_2(d), BLOCK_E=triton.next_power_of_2(e),
            **meta(BLOCK_L=16),
        )  # fmt: skip
    return out
