"""InfoNCE over large batches without the matrix of logits, forward and backward.

    loss = mean_i [ log sum_j exp(<q_i, d_j> / T) - <q_i, d_target(i)> / T ]

Source: van den Oord et al., arXiv 1807.03748; tiles as in arXiv 2410.17243. Tiles of logits are
summed into a running logarithm and dropped; the gradient computes each again:
d q_i = sum_j (p_ij - [j = target]) d_j / (T b), and the same turned round for d_j.

Bytes held: O(b + n) and one tile. Operations: 2 b n d forward, 6 b n d backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError

# channels that a tile of the triton kernel can hold
LARGEST_DIM = 512
# rows and columns of a tile: its logits take 4 MB
TILE = 1024


def infonce(
    queries: Tensor,
    documents: Tensor,
    targets: Tensor | None = None,
    *,
    temperature: float = 0.05,
    backend: str | None = None,
) -> Tensor:
    """Return the contrastive loss of a batch; scale the queries to learn the temperature.

    Args:
        queries: (b, d) float, b at least 1.
        documents: (n, d): each query's own and everything it is to be told from.
        targets: (b,) int64, the document of each query; None means document i for query i.
        temperature: what products are divided by.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        () float32, or float64 if the queries are.
    """
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1]:
        raise ShapeError(
            f"expected queries (b, d) and documents (n, d), "
            f"got {tuple(queries.shape)} and {tuple(documents.shape)}"
        )
    if targets is None:
        targets = torch.arange(len(queries), device=queries.device)
    inside = targets.shape == (len(queries),) and targets.dtype == torch.int64 and len(queries) > 0
    if not inside or int(targets.min()) < 0 or int(targets.max()) >= len(documents):
        raise ShapeError(
            f"expected targets ({len(queries)},) int64 below {len(documents)}, one at the least"
        )
    reason = "asked for"
    if backend is None and queries.is_cuda and queries.shape[1] > LARGEST_DIM:
        backend, reason = "cpu", f"the triton kernel holds at most {LARGEST_DIM} channels"
    chosen = path("infonce", queries.device, backend, reason).name
    if chosen == "reference":
        return infonce_reference(queries, documents, targets, temperature)
    triton = chosen == "triton"
    return _InfoNCE.apply(queries, documents, targets, temperature, triton)  # type: ignore[no-any-return]


def infonce_reference(
    queries: Tensor, documents: Tensor, targets: Tensor, temperature: float
) -> Tensor:
    """Return the same loss from the whole matrix."""
    return cross_entropy(queries @ documents.T / temperature, targets)


class _InfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        documents: Tensor,
        targets: Tensor,
        temperature: float,
        triton: bool,
    ) -> Tensor:
        wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
        if triton:
            from foveate.kernels import infonce_triton

            sums = infonce_triton.sums_of(queries, documents, temperature)
        else:
            sums = _sums(queries, documents, temperature, wide)
        ctx.save_for_backward(queries, documents, targets, sums)
        ctx.temperature, ctx.triton = temperature, triton
        total = sums.new_zeros(())
        for low in range(0, len(queries), TILE):
            own = documents[targets[low : low + TILE]].to(wide)
            total += (queries[low : low + TILE].to(wide) * own).sum()
        return (sums.sum() - total / temperature) / len(queries)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, documents, targets, sums = ctx.saved_tensors
        if ctx.triton:
            from foveate.kernels import infonce_triton

            found = infonce_triton.weighted(queries, documents, sums, ctx.temperature)
        else:
            found = _weighted(queries, documents, sums, ctx.temperature)
        to_queries, to_documents = found
        for low in range(0, len(queries), TILE):
            own = targets[low : low + TILE]
            to_queries[low : low + TILE] -= documents[own].to(sums.dtype)
            rows = queries[low : low + TILE].to(sums.dtype)
            to_documents.index_add_(0, own, rows, alpha=-1)
        factor = gradients[0] / (ctx.temperature * len(queries))
        return (
            (to_queries * factor).to(queries.dtype),
            (to_documents * factor).to(documents.dtype),
            None,
            None,
            None,
        )


def _sums(queries: Tensor, documents: Tensor, temperature: float, wide: torch.dtype) -> Tensor:
    """Return (b,): the logarithm of each row's sum, a tile of logits at a time."""
    found = queries.new_empty(len(queries), dtype=wide)
    for low in range(0, len(queries), TILE):
        rows = queries[low : low + TILE].to(wide)
        running = rows.new_full((len(rows),), -torch.inf)
        for some in torch.split(documents, TILE):
            logits = rows @ some.to(wide).T / temperature
            running = torch.logaddexp(running, logits.logsumexp(1))
        found[low : low + TILE] = running
    return found


def _weighted(
    queries: Tensor, documents: Tensor, sums: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return weights @ documents (b, d) and weights.T @ queries (n, d)."""
    to_queries = torch.zeros_like(queries, dtype=sums.dtype)
    to_documents = torch.zeros_like(documents, dtype=sums.dtype)
    for low in range(0, len(queries), TILE):
        rows = queries[low : low + TILE].to(sums.dtype)
        for begin in range(0, len(documents), TILE):
            some = documents[begin : begin + TILE].to(sums.dtype)
            weights = torch.exp(rows @ some.T / temperature - sums[low : low + TILE, None])
            to_queries[low : low + TILE] += weights @ some
            to_documents[begin : begin + TILE] += weights.T @ rows
    return to_queries, to_documents
