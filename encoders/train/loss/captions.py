"""Losses between pictures and their captions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from foveate.encoders.train.loss.contrast import simcse_unsupervised
from foveate.pipeline.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

    Pool = Callable[[Tensor, Tensor], Tensor]
    Number = Tensor | float


def sigmoid(images: Tensor, texts: Tensor, *, scale: Number = 10.0, bias: Number = -10.0) -> Tensor:
    """Ask of every picture and text of a batch, each for itself, whether they belong together.

    -1/b sum_ij log sigma(y_ij (scale <x_i, t_j> + bias)), y_ij = 1 on the diagonal and else -1;
    Zhai et al. 2023, arXiv:2303.15343 (SigLIP). images, texts: (b, d), L2-normalised. scale and
    bias may be learned.
    """
    return _pairwise(scale * (images @ texts.T) + bias, torch.eye(len(images), dtype=torch.bool))


def flair_global(
    images: Tensor, captions: Tensor, *, scale: Number = 10.0, bias: Number = -10.0
) -> Tensor:
    """Ask the sigmoid question of each picture as a whole and all captions, several of them its.

    -sum_{i, columns} log sigma(y (scale <x_i, t> + bias)) / (b K); FLAIR's multi-positive loss,
    Xiao et al. 2024, arXiv:2412.03561. With K = 1 it is SigLIP's.

    Args:
        images: (b, d), L2-normalised.
        captions: (b, K, d), L2-normalised: K captions of each picture.
        scale: multiplies the products.
        bias: is added to them.
    """
    b, k = captions.shape[:2]
    own = torch.arange(b)[:, None] == torch.arange(b).repeat_interleave(k)[None, :]
    return _pairwise(scale * (images @ captions.flatten(0, 1).T) + bias, own)


def flair_conditioned(
    pool: Pool,
    patches: Tensor,
    captions: Tensor,
    chosen: Tensor,
    *,
    scale: Number = 10.0,
    bias: Number = -10.0,
) -> Tensor:
    """Ask the sigmoid question of patches pooled by the caption that is asked about.

    Columns of picture i are its own K captions and one caption of every other picture; each
    column has its own pooled vector. -sum_{i, columns} log sigma(y (scale <v, t> + bias)) /
    (b + K - 1); FLAIR's text-conditioned sigmoid loss, arXiv:2412.03561.

    Args:
        pool: (texts (b, m, d), patches (b, n, d)) -> (b, m, d), L2-normalised.
        patches: (b, n, d).
        captions: (b, K, d), L2-normalised.
        chosen: (b, b) int64 below K: which caption of picture j stands in the columns of i, drawn
            at random; the diagonal is not read.
        scale: multiplies the products.
        bias: is added to them.
    """
    columns, own = conditioned_columns(captions, chosen)
    pooled = pool(columns, patches)
    return _pairwise(scale * (pooled * columns).sum(-1) + bias, own)


def conditioned_columns(captions: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return (b, b + K - 1, d): each picture's columns; and (b, b + K - 1) bool: which are its own.

    Raises:
        ShapeError: if `chosen` is not (b, b).
    """
    b, k = captions.shape[:2]
    if chosen.shape != (b, b):
        raise ShapeError(f"expected chosen ({b}, {b}), got {tuple(chosen.shape)}")
    rows = []
    for i in range(b):
        others = torch.tensor([j for j in range(b) if j != i], dtype=torch.long)
        rows.append(torch.cat([captions[i], captions[others, chosen[i, others]]]))
    own = torch.arange(b + k - 1) < k
    return torch.stack(rows), own.expand(b, -1)


def multimodal(
    first: Tensor,
    second: Tensor,
    grounded: tuple[Tensor, Tensor],
    images: Tensor,
    *,
    weight: float = 0.01,
    temperature: float = 0.05,
) -> Tensor:
    """Add to SimCSE that a sentence, projected, should find its picture.

    L_SimCSE + weight * L_M, L_M the mean over both views of InfoNCE of the projected sentences s
    against their pictures, cos(s_i, v_j) / T; MCSE, Zhang et al. 2022, arXiv:2204.10931.

    Args:
        first: (b, d), one dropout view of the sentences.
        second: (b, d), another.
        grounded: both views projected into the pictures' space, (b, e) each.
        images: (b, e).
        weight: of the second part; 0 is SimCSE.
        temperature: divides the cosines.
    """
    seen = [simcse_unsupervised(view, images, temperature=temperature) for view in grounded]
    own = simcse_unsupervised(first, second, temperature=temperature)
    return own + weight * torch.stack(seen).mean()


def word_region(
    words: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    nouns: tuple[Tensor, Tensor] | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Contrast pictures by how well each word of a caption finds a region.

    With a_ij = softmax_i(q_j . k_i / sqrt d) over the regions i and v_j = sum_i a_ij value_i, a
    picture's compatibility with a caption is the mean over its words of <w_j, v_j>; InfoNCE over
    the pictures of each caption. With `nouns` also over words put in the place of one: each must
    fit the picture less than the true word. Gupta et al. 2020, arXiv:2006.09920.

    Args:
        words: (c, n, d), the words' vectors.
        queries: (c, n, d), the words as they ask.
        keys: (c, r, d), the regions of each caption's picture as they are asked.
        values: (c, r, d), the regions as they answer.
        mask: (c, n) bool, True for words.
        nouns: the place of one word of each caption (c,) int64, and vectors to put there, with
            their queries: (c, m, 2, d), [:, :, 0] as `words` and [:, :, 1] as `queries`.
        temperature: divides the compatibilities.
    """
    logits = word_region_scores(words, queries, keys, values, mask) / temperature
    own = torch.arange(len(words), device=words.device)
    loss = F.cross_entropy(logits.T, own)
    if nouns is None:
        return loss
    place, others = nouns
    true = torch.stack([words[own, place], queries[own, place]], dim=1)[:, None]
    tried = torch.cat([true, others], dim=1)  # (c, 1 + m, 2, d)
    attended = word_region_map(tried[:, :, 1], keys) @ values
    fits = (tried[:, :, 0] * attended).sum(-1) / temperature
    return loss + F.cross_entropy(fits, torch.zeros_like(own))


def word_region_map(queries: Tensor, keys: Tensor) -> Tensor:
    """Return (..., n, r): where each word looks, rows that sum to 1."""
    logits: Tensor = queries @ keys.transpose(-1, -2) / float(queries.shape[-1]) ** 0.5
    return logits.softmax(-1)


def word_region_scores(
    words: Tensor, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """Return (p, c): the compatibility of each of p pictures with each of c captions."""
    attended = word_region_map(queries[None], keys[:, None]) @ values[:, None]  # (p, c, n, d)
    fits = (words[None] * attended).sum(-1).masked_fill(~mask[None], 0.0)
    return fits.sum(-1) / mask.sum(-1).clamp_min(1)[None]


def _pairwise(logits: Tensor, own: Tensor) -> Tensor:
    """Return -sum log sigma(+-logits) / n columns, plus where `own`. logits: (b, columns)."""
    sign = torch.where(own.to(logits.device), 1.0, -1.0).to(logits.dtype)
    return -F.logsigmoid(sign * logits).sum() / logits.shape[1]
