"""Optimal transport on a GPU: one program a document, distances and potentials in registers.

Each program ends when its own rows sum to their mass, not when the slowest document's do.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import tuned


@triton.jit
def _over_rows(x):
    top = tl.max(x, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.sum(tl.exp(x - top[None, :]), 0))


@triton.jit
def _over_columns(x):
    top = tl.max(x, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.sum(tl.exp(x - top[:, None]), 1))


@triton.jit
def _potentials(f, cost, log_a, log_b, level):
    g = -level * _over_rows((f / level + log_a)[:, None] - cost / level)
    return g, -level * _over_columns((g / level + log_b)[None, :] - cost / level)


@triton.jit
def _columns(f, cost, log_a, blur):
    return -blur * _over_rows((f / blur + log_a)[:, None] - cost / blur)


@triton.jit
def _log_plan(f, g, cost, log_a, log_b, blur):
    return (f / blur + log_a)[:, None] + (g / blur + log_b)[None, :] - cost / blur


@tuned({}, key=["BLOCK_S", "BLOCK_M"])
@triton.jit
def _plan(
    distances,
    log_as,
    log_bs,
    out,
    n_rows,
    n_columns,
    level,
    blur,
    tolerance,
    max_steps,
    BLOCK_S: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    document = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_M)
    place = (document * n_rows + row)[:, None] * n_columns + column[None, :]
    held = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    cost = tl.load(distances + place, mask=held, other=0.0)
    # what is padding has no mass
    log_a = tl.load(log_as + document * n_rows + row, mask=row < n_rows, other=float("-inf"))
    log_b = tl.load(
        log_bs + document * n_columns + column, mask=column < n_columns, other=float("-inf")
    )
    f = tl.zeros((BLOCK_S,), tl.float32)
    while level > blur:
        g, f = _potentials(f, cost, log_a, log_b, level)
        level = tl.maximum(level * 0.9, blur)
    g, f = _potentials(f, cost, log_a, log_b, blur)
    g = _columns(f, cost, log_a, blur)
    plan = tl.exp(_log_plan(f, g, cost, log_a, log_b, blur))
    wrong = tl.max(tl.abs(tl.sum(plan, 1) - tl.exp(log_a)), 0)
    step = 1
    while (wrong > tolerance) & (step < max_steps):
        f = -blur * _over_columns((g / blur + log_b)[None, :] - cost / blur)
        g = _columns(f, cost, log_a, blur)
        plan = tl.exp(_log_plan(f, g, cost, log_a, log_b, blur))
        wrong = tl.max(tl.abs(tl.sum(plan, 1) - tl.exp(log_a)), 0)
        step += 1
    tl.store(out + place, plan, mask=held)


def plan(
    distances: Tensor,
    log_a: Tensor,
    log_b: Tensor,
    *,
    blur: float,
    tolerance: float,
    max_steps: int,
) -> Tensor:
    """Return the plans (g, s, m) float32. distances: (g, s, m); log_a (g, s); log_b (g, m)."""
    g, s, m = distances.shape
    out = torch.empty((g, s, m), dtype=torch.float32, device=distances.device)
    if out.numel():
        held = [x.float().contiguous() for x in (distances, log_a, log_b)]
        _plan[(g,)](
            *held, out, s, m, max(float(distances.max()), blur), blur, tolerance, max_steps,
            BLOCK_S=triton.next_power_of_2(s), BLOCK_M=triton.next_power_of_2(m),
        )  # fmt: skip
    return out
