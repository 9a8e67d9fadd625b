"""MaxSim on a GPU: one program a document and query, the maxima stay in registers.

Nothing of size (t, s) is written. fp32 accumulates with ieee products, not tf32.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.documents import Documents
from foveate.kernels.tuning import INTERPRETED, meta, tuned

FLOAT, INT8, ONEBIT = 0, 1, 2


@tuned({"BLOCK_Q": (16, 32, 64), "BLOCK_T": (32, 64, 128)}, key=["D", "KIND"])
@triton.jit
def _forward(
    queries,
    tokens,
    scales,
    offsets,
    query_offsets,
    scores,
    best,
    where,
    n_documents,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    MATCH: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    document = tl.program_id(0).to(tl.int64)
    query = tl.program_id(1).to(tl.int64)
    low = tl.load(offsets + document)
    high = tl.load(offsets + document + 1)
    first = tl.load(query_offsets + query)
    last = tl.load(query_offsets + query + 1)
    channel = tl.arange(0, BLOCK_D)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    for start in range(first, last, BLOCK_Q):
        row = start + tl.arange(0, BLOCK_Q)
        inside = (row < last)[:, None] & (channel < D)[None, :]
        q = tl.load(queries + row[:, None] * D + channel[None, :], mask=inside, other=0.0)
        if WIDEN:
            q = q.to(tl.float32)
        top = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
        place = tl.full((BLOCK_Q,), -1, tl.int64)
        for at in range(low, high, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            held = (t < high)[:, None] & (channel < D)[None, :]
            if KIND == 2:
                byte = tl.load(
                    tokens + t[:, None] * WIDTH + channel[None, :] // 8, mask=held, other=0
                ).to(tl.int32)
                d = (((byte >> (7 - channel[None, :] % 8)) & 1) * 2 - 1).to(tl.float32)
                d = tl.where(held, d, 0.0)
            else:
                d = tl.load(tokens + t[:, None] * WIDTH + channel[None, :], mask=held, other=0)
                d = d.to(q.dtype)
            sims = tl.dot(q, tl.trans(d), input_precision="ieee")
            if KIND != 0:
                sims = sims * tl.load(scales + t, mask=t < high, other=0.0)[None, :]
            sims = tl.where((t < high)[None, :], sims, float("-inf"))
            high_now = tl.max(sims, 1)
            if MATCH:
                place = tl.where(high_now > top, at - low + tl.argmax(sims, 1), place)
            top = tl.maximum(top, high_now)
        if MATCH:
            out = row * n_documents + document
            tl.store(best + out, top, mask=row < last)
            tl.store(where + out, place, mask=row < last)
        else:
            total += tl.where(row < last, top, 0.0)
    if not MATCH:
        score = tl.sum(total, 0)
        score = tl.where(high > low, score, float("-inf"))
        tl.store(scores + query * n_documents + document, score)


@triton.jit
def _to_queries(
    tokens,
    rows,
    weights,
    out,
    n_documents,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_D)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, n_documents, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        at = tl.load(rows + row * n_documents + n, mask=n < n_documents, other=-1)
        weight = tl.load(weights + row * n_documents + n, mask=n < n_documents, other=0.0)
        held = (at >= 0)[:, None] & (channel < D)[None, :]
        d = tl.load(tokens + at[:, None] * D + channel[None, :], mask=held, other=0.0)
        total += tl.sum(weight[:, None] * d.to(tl.float32), 0)
    tl.store(out + row * D + channel, total, mask=channel < D)


@triton.jit
def _to_tokens(
    queries,
    rows,
    weights,
    out,
    n_rows,
    n_documents,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    document = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    channel = tl.arange(0, BLOCK_D)
    at = tl.load(rows + s * n_documents + document, mask=s < n_rows, other=-1)
    weight = tl.load(weights + s * n_documents + document, mask=s < n_rows, other=0.0)
    held = (at >= 0)[:, None] & (channel < D)[None, :]
    q = tl.load(queries + s[:, None] * D + channel[None, :], mask=held, other=0.0)
    tl.atomic_add(
        out + at[:, None] * D + channel[None, :], weight[:, None] * q.to(tl.float32), mask=held
    )


def score(queries: Tensor, documents: Documents, query_offsets: Tensor) -> Tensor:
    """Return (q, n) float32, as `maxsim` does."""
    shape = (len(query_offsets) - 1, len(documents))
    scores = torch.empty(shape, dtype=torch.float32, device=queries.device)
    _launch(queries, documents, query_offsets, scores, None, None)
    return scores


def match(queries: Tensor, documents: Documents) -> tuple[Tensor, Tensor]:
    """Return similarity and position, both (s, n), as `maxsim_matches` does."""
    shape = (len(queries), len(documents))
    best = torch.empty(shape, dtype=torch.float32, device=queries.device)
    where = torch.empty(shape, dtype=torch.int64, device=queries.device)
    whole = torch.tensor([0, len(queries)], device=queries.device)
    _launch(queries, documents, whole, None, best, where)
    return best, where


def _launch(
    queries: Tensor,
    documents: Documents,
    query_offsets: Tensor,
    scores: Tensor | None,
    best: Tensor | None,
    where: Tensor | None,
) -> None:
    n_queries = len(query_offsets) - 1
    if not n_queries or not len(documents):
        return
    tokens = documents.tokens.contiguous()
    kind = {torch.int8: INT8, torch.uint8: ONEBIT}.get(tokens.dtype, FLOAT)
    dim = documents.dim
    _forward[(len(documents), n_queries)](
        queries.contiguous(),
        tokens,
        documents.scales,
        documents.offsets,
        query_offsets,
        scores,
        best,
        where,
        len(documents),
        D=dim,
        WIDTH=tokens.shape[1],
        KIND=kind,
        MATCH=best is not None,
        # codes are multiplied as float32, and the interpreter's dot knows no bfloat16
        WIDEN=kind != FLOAT or INTERPRETED,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        **meta(BLOCK_Q=16, BLOCK_T=16),
    )


def gradients(
    queries: Tensor, tokens: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return d queries (s, d) and d tokens (t, d), float32; rows, weights: (s, n)."""
    n_rows, n = rows.shape
    dim = queries.shape[1]
    to_queries = torch.zeros(queries.shape, dtype=torch.float32, device=queries.device)
    to_tokens = torch.zeros(tokens.shape, dtype=torch.float32, device=queries.device)
    if n_rows and n and len(tokens):
        rows, weights = rows.contiguous(), weights.float().contiguous()
        width = triton.next_power_of_2(dim)
        _to_queries[(n_rows,)](
            tokens.contiguous(), rows, weights, to_queries, n, D=dim, BLOCK_N=16, BLOCK_D=width
        )
        _to_tokens[(n, triton.cdiv(n_rows, 16))](
            queries.contiguous(), rows, weights, to_tokens, n_rows, n,
            D=dim, BLOCK_S=16, BLOCK_D=width,
        )  # fmt: skip
    return to_queries, to_tokens
