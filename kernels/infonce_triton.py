"""InfoNCE on a GPU: tiles of logits live in registers, forward and backward.

The backward makes each tile twice, once for the queries (a program a tile of rows) and once for the
documents (a program a tile of columns), so that nothing is added atomically. Products are ieee.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import meta, tuned

TILES = {"BLOCK_R": (16, 32, 64), "BLOCK_C": (16, 32, 64)}
# a tile's vectors are held whole
LARGEST_DIM = 512


@triton.jit
def _load(rows, at, n, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    held = (at < n)[:, None] & (d < D)[None, :]
    return tl.load(rows + at[:, None] * D + d[None, :], mask=held, other=0.0).to(tl.float32)


@tuned(TILES, key=["D"])
@triton.jit
def _forward(
    queries,
    documents,
    sums,
    b,
    n,
    scale,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    q = _load(queries, row, b, D, BLOCK_D)
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    for start in range(0, n, BLOCK_C):
        column = start + tl.arange(0, BLOCK_C).to(tl.int64)
        docs = _load(documents, column, n, D, BLOCK_D)
        logits = tl.dot(q, tl.trans(docs), input_precision="ieee") * scale
        logits = tl.where((column < n)[None, :], logits, float("-inf"))
        now = tl.maximum(top, tl.max(logits, 1))
        total = total * tl.exp(top - now) + tl.sum(tl.exp(logits - now[:, None]), 1)
        top = now
    tl.store(sums + row, top + tl.log(total), mask=row < b)


@tuned(TILES, key=["D", "TURNED"])
@triton.jit
def _backward(
    queries,
    documents,
    sums,
    out,
    b,
    n,
    scale,
    D: tl.constexpr,
    TURNED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add up weights @ documents for a tile of rows or, turned, weights.T @ queries of columns."""
    d = tl.arange(0, BLOCK_D)
    mine = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    n_mine = n if TURNED else b
    n_other = b if TURNED else n
    kept = _load(documents if TURNED else queries, mine, n_mine, D, BLOCK_D)
    total = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    for start in range(0, n_other, BLOCK_C):
        other = start + tl.arange(0, BLOCK_C).to(tl.int64)
        met = _load(queries if TURNED else documents, other, n_other, D, BLOCK_D)
        logits = tl.dot(kept, tl.trans(met), input_precision="ieee") * scale
        if TURNED:
            shift = tl.load(sums + other, mask=other < b, other=0.0)[None, :]
        else:
            shift = tl.load(sums + mine, mask=mine < b, other=0.0)[:, None]
        inside = (mine < n_mine)[:, None] & (other < n_other)[None, :]
        weights = tl.where(inside, tl.exp(logits - shift), 0.0)
        total += tl.dot(weights, met, input_precision="ieee")
    held = (mine < n_mine)[:, None] & (d < D)[None, :]
    tl.store(out + mine[:, None] * D + d[None, :], total, mask=held)


def sums_of(queries: Tensor, documents: Tensor, temperature: float) -> Tensor:
    """Return (b,) float32: the logarithm of each row's sum."""
    (b, dim), n = queries.shape, len(documents)
    sums = torch.empty(b, dtype=torch.float32, device=queries.device)
    _forward[lambda sizes: (triton.cdiv(b, sizes["BLOCK_R"]),)](
        queries.contiguous(), documents.contiguous(), sums, b, n, 1 / temperature,
        D=dim, BLOCK_D=max(16, triton.next_power_of_2(dim)), **meta(BLOCK_R=16, BLOCK_C=16),
    )  # fmt: skip
    return sums


def weighted(
    queries: Tensor, documents: Tensor, sums: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return weights @ documents (b, d) and weights.T @ queries (n, d), float32."""
    (b, dim), n = queries.shape, len(documents)
    found = []
    for turned, size in ((False, b), (True, n)):
        out = torch.empty((size, dim), dtype=torch.float32, device=queries.device)
        _backward[lambda sizes, size=size: (triton.cdiv(size, sizes["BLOCK_R"]),)](
            queries.contiguous(), documents.contiguous(), sums, out, b, n, 1 / temperature,
            D=dim, TURNED=turned, BLOCK_D=max(16, triton.next_power_of_2(dim)),
            **meta(BLOCK_R=16, BLOCK_C=16),
        )  # fmt: skip
        found.append(out)
    return found[0], found[1]
