"""Late interaction: score(q, n) = sum_i max_j <q_i, d_j>, i over query and j over document tokens.

Source: ColBERT, arXiv 2004.12832, equation 3; the fused form is that of flash-maxsim.

Documents are ragged and never padded. A document without tokens scores -inf (nothing can match it)
and takes no gradient; a query without tokens scores 0 against every other document.

Bytes moved: t d sizeof(dtype) for the documents, once for every query together, and q n 4 for the
scores. The similarities (s, t) live in a block that stays in the cache (`maxsim_scan`).
Operations: 2 t s d, or t s d / 8 additions for one-bit codes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from foveate.kernels import maxsim_scan, ragged
from foveate.kernels.dispatch import path
from foveate.kernels.documents import FLOATS, Documents
from foveate.kernels.maxsim_scan import working
from foveate.pipeline.errors import ShapeError


def maxsim(
    queries: Tensor,
    documents: Documents,
    *,
    query_offsets: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Score every query against every document; differentiable where the tokens are floats.

    Args:
        queries: (s, d) float, the tokens of all queries.
        documents: n documents.
        query_offsets: (q+1,) int64, where each query begins and ends; None means one query.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        scores (q, n) float32 (float64 if the queries are), -inf where a document is empty.
    """
    query_offsets = _check(queries, documents, query_offsets)
    chosen = path("maxsim", queries.device, backend).name
    if chosen == "reference":
        return maxsim_reference(queries, documents, query_offsets=query_offsets)
    if torch.is_grad_enabled() and (queries.requires_grad or documents.tokens.requires_grad):
        triton = chosen == "triton"
        return _MaxSim.apply(queries, documents.tokens, documents, query_offsets, triton)  # type: ignore[no-any-return]
    if chosen == "triton":
        from foveate.kernels import maxsim_triton

        return maxsim_triton.score(queries, documents, query_offsets)
    found = queries.new_empty((len(query_offsets) - 1, len(documents)), dtype=working(queries))
    finish = _summing(query_offsets, documents)
    for begin, end, scores, _ in maxsim_scan.scan(queries, documents, finish=finish):
        found[:, begin:end] = scores
    return found


def maxsim_reference(
    queries: Tensor, documents: Documents, *, query_offsets: Tensor | None = None
) -> Tensor:
    """Return the same scores by the formula, in the queries' type; autograd goes through it."""
    query_offsets = _check(queries, documents, query_offsets)
    dense = documents.dense(queries.dtype)
    parts, asked = documents.offsets.tolist(), query_offsets.tolist()
    rows = []
    for q in range(len(asked) - 1):
        tokens = queries[asked[q] : asked[q + 1]]
        scores = [
            (tokens @ dense[a:b].T).amax(1).sum() if b > a else queries.new_tensor(-torch.inf)
            for a, b in pairwise(parts)
        ]
        rows.append(torch.stack(scores) if scores else queries.new_empty(0))
    return torch.stack(rows) if rows else queries.new_empty((0, len(documents)))


def maxsim_topk(
    queries: Tensor,
    documents: Documents,
    k: int,
    *,
    query_offsets: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k best documents of each query; only k scores a query are kept while scanning.

    Args:
        queries: (s, d) float.
        documents: n documents.
        k: how many, at least 1; more than n is allowed.
        query_offsets: (q+1,) int64; None means one query.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        scores (q, k) float32 descending, -inf where there is none; ids (q, k) int64, -1 there.
        Equal scores come in the documents' order.
    """
    if k < 1:
        raise ShapeError(f"expected k of at least 1, got {k}")
    query_offsets = _check(queries, documents, query_offsets)
    n_queries = len(query_offsets) - 1
    best = queries.new_full((n_queries, k), -torch.inf, dtype=working(queries))
    ids = torch.full((n_queries, k), -1, dtype=torch.int64, device=queries.device)
    chosen = path("maxsim", queries.device, backend).name
    if chosen != "cpu":
        scores = maxsim(queries, documents, query_offsets=query_offsets, backend=chosen)
        return _merge(best, ids, scores, 0)
    finish = _summing(query_offsets, documents)
    for begin, _, scores, _ in maxsim_scan.scan(queries, documents, finish=finish):
        best, ids = _merge(best, ids, scores, begin)
    return best, ids


def maxsim_matches(
    queries: Tensor, documents: Documents, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Say which token of each document each query token matched, for explanations.

    Args:
        queries: (s, d) float.
        documents: n documents.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        similarity (s, n) float32, -inf where a document is empty; position (s, n) int64 within
        the document, -1 there. Among equal tokens any one is named.
    """
    _check(queries, documents, None)
    if path("maxsim", queries.device, backend).name == "triton":
        from foveate.kernels import maxsim_triton

        return maxsim_triton.match(queries, documents)
    shape = (len(queries), len(documents))
    values = queries.new_empty(shape, dtype=working(queries))
    places = torch.empty(shape, dtype=torch.int64, device=queries.device)
    for begin, end, best, where in maxsim_scan.scan(queries, documents, positions=True):
        values[:, begin:end] = best
        assert where is not None
        places[:, begin:end] = where
    return values, places


def _check(queries: Tensor, documents: Documents, query_offsets: Tensor | None) -> Tensor:
    if queries.ndim != 2 or queries.dtype not in FLOATS or queries.shape[1] != documents.dim:
        raise ShapeError(
            f"expected queries (s, {documents.dim}) float, "
            f"got {tuple(queries.shape)} {queries.dtype}"
        )
    if query_offsets is None:
        return torch.tensor([0, len(queries)], device=queries.device)
    ragged.check_offsets(query_offsets, len(queries), "query_offsets")
    return query_offsets


def _merge(best: Tensor, ids: Tensor, scores: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    """Merge the scores (q, b) of documents begin, begin + 1, ... into the best so far."""
    new = torch.arange(begin, begin + scores.shape[1], device=ids.device).expand(scores.shape)
    new = torch.where(scores == -torch.inf, -1, new)
    # stable: what was found earlier has the lower number and wins a tie
    ranked, order = torch.cat([best, scores], 1).sort(dim=1, descending=True, stable=True)
    k = best.shape[1]
    return ranked[:, :k], torch.cat([ids, new], 1).gather(1, order[:, :k])


def _summing(query_offsets: Tensor, documents: Documents) -> Callable[[Tensor, int, int], Tensor]:
    """Return what sums best (s, b) of documents begin..end into scores (q, b), -inf where empty."""
    n_queries, owners = len(query_offsets) - 1, ragged.owners(query_offsets)
    empty = documents.offsets.diff() == 0

    def sums(best: Tensor, begin: int, end: int) -> Tensor:
        if n_queries == 1:
            found = best.sum(0)[None]
        else:
            found = best.new_zeros((n_queries, best.shape[1])).index_add_(0, owners, best)
        # nor can a query without tokens match an empty document
        return found.masked_fill_(empty[begin:end], -torch.inf)

    return sums


class _MaxSim(torch.autograd.Function):
    """The gradient flows only through the token that won: d q_i = sum_n g_n d_best, and back."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        tokens: Tensor,
        documents: Documents,
        query_offsets: Tensor,
        triton: bool,
    ) -> Tensor:
        backend = "triton" if triton else "cpu"
        values, places = maxsim_matches(queries.detach(), documents, backend=backend)
        rows = torch.where(places < 0, -1, places + documents.offsets[:-1])
        ctx.save_for_backward(queries, tokens, rows, query_offsets)
        ctx.triton = triton
        return _summing(query_offsets, documents)(values, 0, len(documents))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, tokens, rows, query_offsets = ctx.saved_tensors
        weights = gradients[0].index_select(0, ragged.owners(query_offsets))  # (s, n)
        weights = torch.where(rows < 0, 0, weights)
        needs_queries, needs_tokens = ctx.needs_input_grad[:2]
        needs_tokens = needs_tokens and tokens.dtype in FLOATS
        if ctx.triton:
            from foveate.kernels import maxsim_triton

            to_queries, to_tokens = maxsim_triton.gradients(queries, tokens, rows, weights)
        else:
            to_queries, to_tokens = _gradients(queries, tokens, rows, weights)
        return (
            to_queries.to(queries.dtype) if needs_queries else None,
            to_tokens.to(tokens.dtype) if needs_tokens else None,
            None,
            None,
            None,
        )


def _gradients(
    queries: Tensor, tokens: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return d queries (s, d) and d tokens (t, d); rows, weights: (s, n)."""
    dtype = working(queries)
    to_queries = torch.zeros_like(queries, dtype=dtype)
    to_tokens = torch.zeros_like(tokens, dtype=dtype)
    if not len(tokens):
        return to_queries, to_tokens
    for i in range(len(queries)):
        kept, weight = rows[i].clamp(min=0), weights[i].to(dtype)
        to_queries[i] = weight @ tokens.index_select(0, kept).to(dtype)
        to_tokens.index_add_(0, kept, weight[:, None] * queries[i].to(dtype))
    return to_queries, to_tokens
