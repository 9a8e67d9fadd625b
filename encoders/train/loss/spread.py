"""How close pairs are and how evenly all vectors spread: losses, and measures of an encoder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from foveate.pipeline.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def alignment(first: Tensor, second: Tensor, *, alpha: float = 2.0) -> Tensor:
    """Return the mean distance of pairs, mean_i ||z_i - z+_i||^alpha.

    Wang and Isola 2020, arXiv:2005.10242, eq. 1. first, second: (b, d), L2-normalised.
    """
    squares = (first - second).square().sum(1)
    return squares.mean() if alpha == 2 else squares.pow(alpha / 2).mean()


def uniformity(vectors: Tensor, *, t: float = 2.0) -> Tensor:
    """Return log of the mean over pairs i < j of e^{-t ||z_i - z_j||^2}.

    Wang and Isola 2020, arXiv:2005.10242, eq. 2. vectors: (n, d), L2-normalised, n at least 2.

    Raises:
        ShapeError: for a single vector.
    """
    if len(vectors) < 2:
        raise ShapeError(f"expected two vectors at least, got {len(vectors)}")
    i, j = torch.triu_indices(len(vectors), len(vectors), offset=1, device=vectors.device)
    # unit vectors: ||a - b||^2 = 2 - 2 <a, b>, whose gradient is finite where a = b
    squares = 2 - 2 * (vectors @ vectors.T)[i, j]
    return (-t * squares).logsumexp(0) - math.log(len(i))


def anchored(vectors: Tensor, before: Tensor) -> Tensor:
    """Return how far vectors have moved from where training began, mean_i 1 - <z_i, z0_i>.

    Keeps what an encoder knew of other subjects (ours). vectors, before: (b, d), L2-normalised.
    """
    return 1 - (vectors * before).sum(1).mean()
