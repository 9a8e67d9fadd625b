"""Every setting of a training run: the table [train]."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foveate.pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train.

    loss: 'auto', or a name of `objectives`. epochs: passes over the examples. batch: examples a
    step. micro: inputs that are computed together; where a batch has more, gradients are cached
    (Gao et al. 2021, arXiv:2101.06983), so that memory follows `micro` and the loss the whole
    batch. rate: the largest learning rate. warmup: the part of all steps in which it rises.
    temperature, margin: of the losses. bias: what 'sigmoid' adds to cosines over temperature; None
    is -1 / (2 temperature). anchor: weight of staying near the untrained vectors.
    query_side, query_side_loss: weight and kind of the loss over edited questions. held_out: part
    of the queries that is never trained on and chooses the weights. checks: how often in the run
    they are tried. patience: checks without a gain after which it stops; 0 never does.
    interpolate: parts of the way from the old to the new weights that are tried at the end
    (Wortsman et al. 2022, arXiv:2109.01903). keep_gain: the smallest part is taken that has this
    much of the best one's gain: weights that moved less forget less. minutes: stop after so long,
    to be resumed; 0 is no limit.
    """

    loss: str = "auto"
    epochs: int = 3
    batch: int = 32
    micro: int = 16
    rate: float = 2e-5
    weight_decay: float = 0.01
    warmup: float = 0.1
    temperature: float = 0.05
    bias: float | None = None
    margin: float = 0.2
    hinge_weight: float = 1.0
    grade_weights: str = "linear"
    anchor: float = 0.0
    query_side: float = 0.0
    query_side_loss: str = "infonce"
    uniformity: float = 0.0
    clip: float = 1.0
    held_out: float = 0.1
    checks: int = 6
    patience: int = 3
    interpolate: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    keep_gain: float = 0.9
    checkpoints: int = 6
    minutes: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            name
            for name in ("epochs", "batch", "micro", "checks", "checkpoints")
            if getattr(self, name) < 1
        ]
        wrong += [n for n in ("rate", "temperature") if getattr(self, n) <= 0]
        wrong += [n for n in self.__slots__ if not _finite(getattr(self, n))]
        wrong += [n for n in ("warmup", "held_out") if not 0 <= getattr(self, n) < 1]
        wrong += ["interpolate"] * (not all(0 < part <= 1 for part in self.interpolate))
        if wrong:
            name = wrong[0]
            raise ConfigError(f"train.{name} cannot be {getattr(self, name)!r}")


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
