"""Losses that read judgments: graded relevance, and questions edited to mean something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from foveate.pipeline.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = ("linear", "reciprocal", "log", "constant")
QUERY_SIDE = ("infonce", "hinge", "dot")


def weights_of(grades: Tensor, kind: str = "linear") -> Tensor:
    """Turn grades (b,) >= 0 into weights (b,) of Generalised Contrastive Learning.

    'linear' w = s; 'reciprocal' w = 1 / rank with rank 1 for the highest grade of the batch;
    'log' w = log(1 + s); 'constant' w = 1 where s > 0. arXiv:2404.08535 names the first two.

    Raises:
        ConfigError: for an unknown kind.
    """
    if kind == "linear":
        return grades
    if kind == "log":
        return torch.log1p(grades)
    if kind == "constant":
        return (grades > 0).to(grades.dtype)
    if kind == "reciprocal":
        levels = torch.unique(grades)
        rank = len(levels) - torch.searchsorted(levels, grades)
        return torch.where(grades > 0, 1 / rank.to(grades.dtype), 0.0)
    raise ConfigError(f"unknown weights {kind!r} (known: {', '.join(WEIGHTS)})")


def graded(
    queries: Tensor,
    documents: Tensor,
    weights: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: float = 0.05,
) -> Tensor:
    """Weight each pair by how relevant its document is.

    -sum_i w_i [log p(d_i | q_i) + log p(q_i | d_i)] / (2 sum_i w_i); Generalised Contrastive
    Learning, Zhu et al. 2024, arXiv:2404.08535, the weighting as read from its description. A
    pair of weight 0 is no positive but stays a negative of all others.

    Args:
        queries: (b, d).
        documents: (b, d), document i of query i.
        weights: (b,) at least 0, e.g. from `weights_of`.
        negatives: (m, d), further documents to tell the queries' own from.
        temperature: divides the products.

    Raises:
        ShapeError: if no weight is above 0.
    """
    if not bool((weights >= 0).all()) or not bool(weights.any()):
        raise ShapeError("expected weights of 0 and above, one of them above 0")
    columns = documents if negatives is None else torch.cat([documents, negatives])
    own = torch.arange(len(queries), device=queries.device)
    forth = F.cross_entropy(queries @ columns.T / temperature, own, reduction="none")
    back = F.cross_entropy(documents @ queries.T / temperature, own, reduction="none")
    return (weights * (forth + back)).sum() / (2 * weights.sum())


def query_side(
    queries: Tensor,
    paraphrases: Tensor,
    edited: Tensor,
    *,
    kind: str = "infonce",
    margin: float = 0.5,
    temperature: float = 0.05,
) -> Tensor:
    """Keep a question near its paraphrase and away from a small edit that asks something else.

    Zhang et al. 2023, arXiv:2305.14441. 'infonce': the paraphrase against all paraphrases and
    edits of the batch; 'hinge': mean max(0, m - q.q+ + q.q-); 'dot': mean q.q-, which has no
    lower bound for vectors of free norm, so that its weight must be small. Only the question
    encoder takes part: stored vectors stay as they are.

    Args:
        queries: (b, d).
        paraphrases: (b, d), of the same answer.
        edited: (b, d), of another answer.
        kind: as above.
        margin: of 'hinge'.
        temperature: of 'infonce'.

    Raises:
        ConfigError: for an unknown kind.
    """
    if kind == "infonce":
        logits = queries @ torch.cat([paraphrases, edited]).T / temperature
        return F.cross_entropy(logits, torch.arange(len(queries), device=queries.device))
    near, far = (queries * paraphrases).sum(1), (queries * edited).sum(1)
    if kind == "hinge":
        return (margin - near + far).clamp_min(0).mean()
    if kind == "dot":
        return far.mean()
    raise ConfigError(f"unknown query-side loss {kind!r} (known: {', '.join(QUERY_SIDE)})")
