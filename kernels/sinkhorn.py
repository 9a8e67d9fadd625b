"""Optimal transport between the vectors of a query and of ragged documents, for aspect matching.

    score(n) = -sum_ij P_ij |q_i - d_j|,
    P = argmin <P, dist> + e KL(P | a b') with row sums a and column sums b,
    a = softmax_i(max_j -dist_ij / s), b = softmax_j(max_i -dist_ij / s)

Source: Aspire, arXiv 2111.08366 and the authors' code (e = 0.05, annealed by 0.9; s = 1). The
potentials are found in the log domain; documents of alike length go together, so padding costs at
most a quarter. What is padding has no mass.

Operations: about 4 s t for each step, s query vectors, t document vectors.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from foveate.kernels import ragged
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError


def sinkhorn(
    queries: Tensor,
    documents: Tensor,
    offsets: Tensor,
    *,
    blur: float = 0.05,
    marginal_temperature: float = 1.0,
    tolerance: float = 1e-4,
    max_steps: int = 500,
    backend: str | None = None,
) -> Tensor:
    """Score documents by the cost of carrying the query's vectors onto theirs.

    The gradient takes the plan as constant: it flows through the distances.

    Args:
        queries: (s, d) float, at least one vector.
        documents: (t, d), the vectors of all documents.
        offsets: (n+1,) int64.
        blur: e, the weight of the entropy.
        marginal_temperature: s.
        tolerance: steps end when no row sum is further than this from a.
        max_steps: at the last e; the columns always sum to b, the rows then nearly to a.
        backend: see `foveate.kernels.dispatch.path`; the reference takes one document at a time.

    Returns:
        (n,) in the queries' type: higher is better, 0 at best; -inf for an empty document.
    """
    if queries.ndim != 2 or not len(queries) or documents.shape[1:] != queries.shape[1:]:
        raise ShapeError(
            f"expected queries (s, d), s > 0, and documents (t, d), "
            f"got {tuple(queries.shape)} and {tuple(documents.shape)}"
        )
    places = ragged.check_offsets(offsets, len(documents))
    lengths = [b - a for a, b in pairwise(places)]
    backend = path("sinkhorn", queries.device, backend).name
    if backend == "reference":
        parts = [([i], n) for i, n in enumerate(lengths) if n]
    else:
        parts = list(ragged.groups(lengths))
    found = queries.new_full((len(lengths),), -torch.inf)
    sizes = offsets.diff()
    for members, longest in parts:
        chosen = torch.tensor(members, device=queries.device)
        rows = ragged.padded_rows(offsets[chosen], sizes[chosen], longest)
        real = torch.arange(longest, device=queries.device) < sizes[chosen, None]
        distances = distances_between(queries, documents[rows])
        with torch.no_grad():
            given = (blur, marginal_temperature, tolerance, max_steps)
            if backend == "triton":
                from foveate.kernels import sinkhorn_triton

                transport = sinkhorn_triton.plan(
                    distances,
                    *marginals(distances, real, marginal_temperature),
                    blur=blur,
                    tolerance=tolerance,
                    max_steps=max_steps,
                ).to(distances.dtype)
            else:
                transport = plan(distances, real, *given)
        # where there is no mass there is no cost, whatever the distance
        found = found.index_copy(0, chosen, -(transport * distances).sum((1, 2)))
    return found


def distances_between(queries: Tensor, documents: Tensor) -> Tensor:
    """Return (g, s, m): the distances of queries (s, d) to documents (g, m, d)."""
    # not through a product: it would lose the digits of small distances
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries.expand(len(documents), -1, -1), documents, compute_mode=exact)


def plan(
    distances: Tensor,
    real: Tensor,
    blur: float = 0.05,
    marginal_temperature: float = 1.0,
    tolerance: float = 1e-4,
    max_steps: int = 500,
) -> Tensor:
    """Return the plans P (g, s, m) for distances (g, s, m); real (g, m) is false for padding."""
    log_a, log_b = marginals(distances, real, marginal_temperature)
    scale = float(distances.max()) if distances.numel() else 0.0
    level = max(scale, blur)
    f = torch.zeros_like(log_a)
    while True:
        g, f = _step(distances, f, log_a, log_b, level)
        if level == blur:
            break
        level = max(level * 0.9, blur)
    for _ in range(max_steps):
        g = -blur * torch.logsumexp((f / blur + log_a)[..., None] - distances / blur, 1)
        log_plan = _log_plan(distances, f, g, log_a, log_b, blur)
        wrong = (log_plan.logsumexp(2).exp() - log_a.exp()).abs().max()
        if float(wrong) <= tolerance:
            break
        f = -blur * torch.logsumexp((g / blur + log_b)[:, None] - distances / blur, 2)
    return log_plan.exp()


def marginals(distances: Tensor, real: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log a (g, s) and log b (g, m); -inf for padding."""
    near = (-distances).masked_fill(~real[:, None], -torch.inf)
    log_a = torch.log_softmax(near.amax(2) / temperature, 1)
    return log_a, torch.log_softmax(near.amax(1) / temperature, 1)


def _step(
    distances: Tensor, f: Tensor, log_a: Tensor, log_b: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    g = -level * torch.logsumexp((f / level + log_a)[..., None] - distances / level, 1)
    return g, -level * torch.logsumexp((g / level + log_b)[:, None] - distances / level, 2)


def _log_plan(
    distances: Tensor, f: Tensor, g: Tensor, log_a: Tensor, log_b: Tensor, blur: float
) -> Tensor:
    outer = (f / blur + log_a)[..., None] + (g / blur + log_b)[:, None]
    return outer - distances / blur
