"""Contrastive losses over pairs, views and labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from foveate.pipeline.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def infonce(
    queries: Tensor,
    documents: Tensor,
    targets: Tensor | None = None,
    *,
    temperature: float = 0.05,
) -> Tensor:
    """Tell each query's own document from all others of the batch.

    -mean_i log e^{<q_i, d_t(i)>/T} / sum_j e^{<q_i, d_j>/T}; van den Oord et al. 2018,
    arXiv:1807.03748. The matrix of logits never exists (`kernels.infonce`).

    Args:
        queries: (b, d).
        documents: (n, d), n >= b: positives and hard negatives in any order.
        targets: (b,) int64, each query's document; None: document i for query i.
        temperature: divides the products.
    """
    from foveate.kernels.infonce import infonce as fused

    return fused(queries, documents, targets, temperature=temperature)


def simcse_unsupervised(first: Tensor, second: Tensor, *, temperature: float = 0.05) -> Tensor:
    """Contrast two dropout views of the same sentences.

    -mean_i log e^{cos(z_i, z'_i)/T} / sum_j e^{cos(z_i, z'_j)/T}; Gao et al. 2021,
    arXiv:2104.08821, eq. 4. first, second: (b, d), any norm.
    """
    return infonce(_unit(first), _unit(second), temperature=temperature)


def simcse_supervised(
    anchors: Tensor, positives: Tensor, negatives: Tensor, *, temperature: float = 0.05
) -> Tensor:
    """Contrast entailed pairs; every anchor's contradiction is a negative of all.

    The denominator sums e^{cos(z_i, z+_j)/T} + e^{cos(z_i, z-_j)/T}; arXiv:2104.08821, eq. 5.
    anchors, positives: (b, d); negatives: (m, d), any m.
    """
    documents = torch.cat([_unit(positives), _unit(negatives)])
    return infonce(_unit(anchors), documents, temperature=temperature)


def focal_infonce(
    first: Tensor, second: Tensor, *, margin: float = 0.3, temperature: float = 0.05
) -> Tensor:
    """Weight positives by how sure they are and negatives by how hard they are.

    Positive logit s_ii^2 / T, negative logit s_ij (s_ij + m) / T, then cross entropy with the
    diagonal as target; Hou and Li 2023, arXiv:2310.06918. Both maps are quadratic, so that a
    negative cosine would turn the gradient round: cosines are clamped at 0 first.
    first, second: (b, d), any norm.
    """
    cosines = (_unit(first) @ _unit(second).T).clamp_min(0)
    own = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    logits = torch.where(own, cosines**2, cosines * (cosines + margin)) / temperature
    return F.cross_entropy(logits, torch.arange(len(cosines), device=cosines.device))


def hard_hinge(
    anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, *, margin: float = 0.2
) -> Tensor:
    """Keep the hardest negative of each anchor a margin below its positive.

    mean_i max(0, m + max_j s(z_i, negative_j) - s(z_i, z+_i)) over raw cosines, the negatives of
    an anchor being the other anchors' positives and all hard negatives (its own included), never
    its own positive; PromCSE's energy-based hinge, Jiang et al. 2022, arXiv:2203.06875.
    anchors, positives: (b, d); negatives: (m, d); all any norm.

    Raises:
        ShapeError: for a single pair without negatives, which has nothing to be told from.
    """
    anchors, positives = _unit(anchors), _unit(positives)
    cosines = anchors @ positives.T
    own = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    others = cosines.masked_fill(own, -torch.inf)
    if negatives is not None:
        others = torch.cat([others, anchors @ _unit(negatives).T], dim=1)
    if others.shape[1] < 2:
        raise ShapeError("expected two pairs or a negative, got one pair: give a larger batch")
    return (margin + others.amax(1) - cosines.diagonal()).clamp_min(0).mean()


def supcon(vectors: Tensor, labels: Tensor, *, temperature: float = 0.05) -> Tensor:
    """Draw together all vectors of one label.

    -mean_i 1/|P(i)| sum_{p in P(i)} log e^{<z_i, z_p>/T} / sum_{a != i} e^{<z_i, z_a>/T}, the
    mean over those i whose label another has; Khosla et al. 2020, arXiv:2004.11362, eq. 2; as
    SupCL-Seq (arXiv:2109.07424) over dropout views. vectors: (n, d), any norm; labels: (n,) int.

    Raises:
        ShapeError: if no two vectors have one label.
    """
    unit = _unit(vectors)
    own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    logits = (unit @ unit.T / temperature).masked_fill(own, -torch.inf)
    scores = logits - logits.logsumexp(1, keepdim=True)
    same = (labels[:, None] == labels[None, :]) & ~own
    counts = same.sum(1)
    if not bool(counts.any()):
        raise ShapeError("expected two vectors of one label at least, got none")
    sums = scores.masked_fill(~same, 0.0).sum(1)
    has = counts > 0
    return -(sums[has] / counts[has]).mean()


def composition(
    whole: Tensor, first: Tensor, second: Tensor, *, temperature: float = 0.05
) -> Tensor:
    """Contrast a text with the sum of its two parts' vectors.

    InfoNCE of f(x) against the normalised f(a) + f(b); compositional contrastive learning,
    arXiv:2307.07380 (the weights are ours). whole, first, second: (b, d), any norm.
    """
    return infonce(_unit(whole), _unit(first + second), temperature=temperature)


def poly_view(views: Tensor, *, kind: str = "geometric", temperature: float = 0.05) -> Tensor:
    """Contrast more than two views of each item.

    Shidani et al. 2024, arXiv:2403.05490. With l(a, b) = -log p(b | a) of a pair of views:
    'geometric' is the mean of l over ordered pairs; 'arithmetic' is -log of the mean of p over
    each view's pairs, item by item; 'statistic' contrasts each view with the mean of the others.
    For two views all three are SimCLR's loss.

    Args:
        views: (m, b, d), any norm, m at least 2.
        kind: as above.
        temperature: divides the cosines.

    Raises:
        ShapeError: for fewer than two views or an unknown kind.
    """
    if views.ndim != 3 or len(views) < 2 or kind not in ("geometric", "arithmetic", "statistic"):
        raise ShapeError(
            f"expected views (m >= 2, b, d) and a kind of geometric, arithmetic, statistic; got "
            f"{tuple(views.shape)} and {kind!r}"
        )
    unit = _unit(views)
    found: list[Tensor] = []
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        if kind == "statistic":
            rest = _unit(unit[others].mean(0))
            found.append(-_own_log_share(unit[i], rest, temperature))
            continue
        shares = torch.stack([_own_log_share(unit[i], unit[j], temperature) for j in others])
        if kind == "geometric":
            found.append(-shares.mean(0))
        else:
            found.append(-(shares.logsumexp(0) - math.log(len(others))))
    return torch.stack(found).mean()


def debiased(
    queries: Tensor,
    documents: Tensor,
    similarity: Tensor,
    *,
    threshold: float = 0.9,
    temperature: float = 0.05,
) -> Tensor:
    """Leave out in-batch negatives that a frozen encoder takes for positives.

    InfoNCE whose denominator skips pairs with similarity above the threshold, a query's own
    document apart; the weighting of DCLR, Zhou et al. 2022, arXiv:2205.00656. queries, documents:
    (b, d); similarity: (b, b), cosines of the frozen encoder. A threshold of 1 is plain InfoNCE.
    """
    logits = queries @ documents.T / temperature
    own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    logits = logits.masked_fill((similarity > threshold) & ~own, -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def _own_log_share(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return (b,): log of the softmax share that row i gives to its own."""
    logits = first @ second.T / temperature
    return logits.diagonal() - logits.logsumexp(1)


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)
