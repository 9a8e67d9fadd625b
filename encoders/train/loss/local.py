"""Losses of parts: a region and its sentence, and captions with some of their words masked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from foveate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.pipeline.types import Box


def best_pair(regions: Tensor, sentences: Tensor) -> tuple[int, int]:
    """Return the numbers of the one region and sentence of largest cosine.

    GOAL's local matching, Choi et al. 2025, arXiv:2503.17782. regions: (r, d); sentences: (s, d).
    """
    cosines = F.normalize(regions, dim=1) @ F.normalize(sentences, dim=1).T
    row, column = divmod(int(cosines.argmax()), cosines.shape[1])
    return row, column


def patches_inside(box: Box, n_rows: int, n_columns: int) -> Tensor:
    """Return (n_rows * n_columns,) bool: patches whose centre lies in the box, one at least."""
    y = (torch.arange(n_rows) + 0.5) / n_rows
    x = (torch.arange(n_columns) + 0.5) / n_columns
    inside = ((y >= box.y0) & (y < box.y1))[:, None] & ((x >= box.x0) & (x < box.x1))[None]
    if not bool(inside.any()):
        row = min(int((box.y0 + box.y1) / 2 * n_rows), n_rows - 1)
        inside[row, min(int((box.x0 + box.x1) / 2 * n_columns), n_columns - 1)] = True
    return inside.flatten()


def local_matching(
    whole: tuple[Tensor, Tensor],
    local: tuple[Tensor, Tensor],
    tokens: tuple[Tensor, Tensor],
    inside: tuple[Tensor, Tensor],
    *,
    weights: tuple[float, float, float] = (1.0, 0.5, 1.0),
    temperature: float = 0.07,
) -> Tensor:
    """Contrast wholes, contrast parts, and make a whole's tokens say what the part alone says.

    L_global + 0.5 L_local + L_TSL; the first two are CLIP's loss, the third is the squared error
    between the mean of the whole's (projected) tokens that lie inside the part and the part's
    own vector, for picture and text; GOAL, arXiv:2503.17782. The parts' vectors are targets in
    L_TSL: no gradient reaches them through it.

    Args:
        whole: pictures (b, d) and texts (b, d), L2-normalised.
        local: the chosen region of each (b, d) and its sentence (b, d), L2-normalised.
        tokens: patches (b, p, d) and text tokens (b, t, d) of the wholes, projected.
        inside: (b, p) bool and (b, t) bool, one True a row at least.
        weights: of the three.
        temperature: of the first two.
    """
    parts = [clip(*whole, temperature=temperature), clip(*local, temperature=temperature)]
    errors = []
    for states, chosen, target in zip(tokens, inside, local, strict=True):
        share = chosen.to(states.dtype)
        pooled = (states * share[:, :, None]).sum(1) / share.sum(1, keepdim=True)
        errors.append(F.mse_loss(pooled, target.detach()))
    parts.append(torch.stack(errors).sum())
    return torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum()


def clip(images: Tensor, texts: Tensor, *, temperature: float = 0.07) -> Tensor:
    """Return the mean of InfoNCE in both directions; Radford et al. 2021, arXiv:2103.00020."""
    logits = images @ texts.T / temperature
    own = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def token_scores(
    gradients: Tensor, attention: Tensor, values: Tensor, mask: Tensor, *, windows: int = 2
) -> Tensor:
    """Return (b, t) >= 0: how much each word carries the match of a picture and a caption.

    Mean over layers of attention_t (g . v_t), then ReLU, with g the gradient of the cosine by the
    layer's last-token state, v_t the value features and attention_t from the last token,
    normalised over the text's own words and averaged with its means over neighbourhoods of 1 to
    `windows` words; the gradient-attention score of GA-DMS, arXiv:2509.09118, per sample (the
    released code normalises over the batch).

    Args:
        gradients: (l, b, d).
        attention: (l, b, t), at least 0.
        values: (l, b, t, d).
        mask: (b, t) bool, True for words.
        windows: the widest neighbourhood, in words to either side; 0 is none.
    """
    share = attention * mask
    share = share / share.sum(-1, keepdim=True).clamp_min(1e-12)
    near = [share]
    for radius in range(1, windows + 1):
        near.append(F.avg_pool1d(share, 2 * radius + 1, 1, radius))
    weights = torch.stack(near).mean(0) * mask
    products = (values * gradients[:, :, None]).sum(-1)
    return (weights * products).mean(0).clamp_min(0)


def mask_tokens(
    scores: Tensor,
    mask: Tensor,
    *,
    kind: str,
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw which words to mask. Returns (b, t) bool.

    With z the scores standardised within each text: 'low' masks with cap 2 sigma(-|z|) where
    z < 0, cap 0.2, words that are likely noise; 'high' the mirror of it, cap 0.3, words worth
    predicting; arXiv:2509.09118 (the shape of the curve is ours).

    Args:
        scores: (b, t), of `token_scores`.
        mask: (b, t) bool, True for words.
        kind: 'low' or 'high'.
        cap: the largest probability.
        generator: of the draw.

    Raises:
        ConfigError: for another kind.
    """
    if kind not in ("low", "high"):
        raise ConfigError(f"expected kind 'low' or 'high', got {kind!r}")
    top = cap if cap is not None else {"low": 0.2, "high": 0.3}[kind]
    count = mask.sum(1, keepdim=True).clamp_min(1)
    mean = (scores * mask).sum(1, keepdim=True) / count
    spread = (((scores - mean) * mask).square().sum(1, keepdim=True) / count).sqrt()
    z = (scores - mean) / spread.clamp_min(1e-12)
    towards = -z if kind == "low" else z
    chance = top * (2 * torch.sigmoid(towards) - 1).clamp_min(0) * mask
    return torch.rand(scores.shape, generator=generator, dtype=scores.dtype) < chance


def matching_distribution(
    images: Tensor, texts: Tensor, labels: Tensor, *, temperature: float = 0.02
) -> Tensor:
    """Match the softmax of similarities to the distribution of true pairs, both ways.

    Sum over both directions of mean_i KL(p_i || q_i), p = softmax(cos / T), q the labels that
    agree, normalised; similarity distribution matching, Jiang and Ye 2023, arXiv:2303.12501, as
    GA-DMS uses it. images, texts: (b, d), L2-normalised; labels: (b,) int.
    """
    true = (labels[:, None] == labels[None, :]).to(images.dtype)
    log_q = (true / true.sum(1, keepdim=True) + 1e-8).log()
    logits = images @ texts.T / temperature
    losses = []
    for way in (logits, logits.T):
        log_p = way.log_softmax(1)
        losses.append((log_p.exp() * (log_p - log_q)).sum(1).mean())
    return losses[0] + losses[1]
