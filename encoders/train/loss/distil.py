"""Losses by which a small tower follows a large one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


def attention_transfer(student: Tensor, teacher: Tensor, *, power: float = 2.0) -> Tensor:
    """Make a layer look where the teacher's looks.

    mean over the batch of || Q_s / ||Q_s|| - Q_t / ||Q_t|| ||_2^2, Q = sum over channels of |A|^p,
    over all places; Zagoruyko and Komodakis 2017, arXiv:1612.03928 (the square makes the gradient
    finite where both agree). No gradient reaches the teacher.

    Args:
        student: (b, c, ...places), of any number of channels.
        teacher: (b, c', ...places), the same places.
        power: p above.
    """
    maps = [
        F.normalize(x.abs().pow(power).sum(1).flatten(1), dim=1)
        for x in (student, teacher.detach())
    ]
    return (maps[0] - maps[1]).square().sum(1).mean()


def pixelwise(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Make every place's distribution over classes the teacher's.

    T^2 times the mean over batch and places of KL(softmax(teacher / T) || softmax(student / T));
    Liu et al. 2019, arXiv:1903.04197, and Hinton et al. 2015, arXiv:1503.02531, for T. student,
    teacher: (b, classes, ...places). No gradient reaches the teacher.
    """
    log_s = (student / temperature).flatten(2).log_softmax(1)
    log_t = (teacher.detach() / temperature).flatten(2).log_softmax(1)
    divergence = (log_t.exp() * (log_t - log_s)).sum(1)
    return temperature**2 * divergence.mean()
