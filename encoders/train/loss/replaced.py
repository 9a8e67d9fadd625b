"""DiffCSE: a sentence vector should let a discriminator see which words were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

from foveate.encoders.train.loss.contrast import simcse_unsupervised

if TYPE_CHECKING:
    from torch import Tensor


def replaced_tokens(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the mean binary cross entropy over the tokens of the mask.

    logits: (b, t), above 0 for 'replaced'; labels: (b, t) bool; mask: (b, t) bool, no padding.
    """
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
    return (losses * mask).sum() / mask.sum().clamp_min(1)


def replaced_labels(ids: Tensor, filled: Tensor, mask: Tensor) -> Tensor:
    """Return (b, t) bool: tokens that the generator changed, none of the padding."""
    return (ids != filled) & mask


def diffcse(
    first: Tensor,
    second: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor,
    *,
    weight: float = 0.005,
    temperature: float = 0.05,
) -> Tensor:
    """Add replaced-token detection through the sentence vector to SimCSE.

    L_SimCSE + lambda L_RTD; Chuang et al. 2022, arXiv:2204.10298. The discriminator reads the
    sentence with masked words filled by a small generator and the sentence vector as its first
    token: the gradient reaches the encoder through that vector.

    Args:
        first: (b, d), one dropout view.
        second: (b, d), another.
        logits: (b, t), the discriminator's.
        labels: (b, t) bool, of `replaced_labels`.
        mask: (b, t) bool, True for tokens that are no padding.
        weight: lambda; 0 is SimCSE.
        temperature: of SimCSE.
    """
    found = simcse_unsupervised(first, second, temperature=temperature)
    return found + weight * replaced_tokens(logits, labels, mask)
