"""What the trainer fits: one protocol for text towers, image heads, joint towers and your own.

The trainer owns batches, losses, the optimiser, checkpoints and the choice of weights; a trainable
owns its tensors, how inputs become vectors, and the folder that the trained encoder is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["query", "passage"]
"""Which side of a pair an input stands on: what is asked, or what is stored."""


@runtime_checkable
class Trainable(Protocol):
    """An encoder with gradients.

    use: the registered encoder that loads the saved folder by `path`. space: what its vectors may
    be compared with, `name/dim`.
    """

    @property
    def use(self) -> str: ...
    @property
    def space(self) -> str: ...
    @property
    def dim(self) -> int: ...

    def embed(self, inputs: Sequence[Any], role: Role) -> Tensor:
        """Return (n, d) float32, L2-normalised, in the inputs' order, with gradients.

        A pure function of the inputs, the tensors and torch's random state (dropout): gradient
        caching calls it twice for one batch and restores that state in between.
        """
        ...

    def parameters(self) -> Mapping[str, Tensor]:
        """Return the tensors that are fitted, by name: leaves that require a gradient.

        A checkpoint holds these and nothing else; the trainer writes into them in place.
        """
        ...

    def train(self, mode: bool = True) -> None:
        """Turn dropout and the like on or off."""
        ...

    def fingerprint(self) -> str:
        """Return a short text that tells what training starts from: weights and what is fitted.

        A run is resumed only from the same start.
        """
        ...

    def save(self, folder: Path, card: Mapping[str, Any]) -> None:
        """Write a folder that `use` loads by path, weights as safetensors, the card beside them.

        card: what it was trained on and how; written as README.md by `cards.write_card`.
        """
        ...


def count_parameters(tensors: Iterable[Tensor]) -> int:
    """Return how many numbers are fitted."""
    return sum(tensor.numel() for tensor in tensors)


def frozen_roles(trainable: Trainable) -> frozenset[Role]:
    """Return the roles whose vectors training cannot change: each is then computed once.

    A trainable says so in an attribute `frozen_roles`; without one there are none.
    """
    return frozenset(getattr(trainable, "frozen_roles", ()))
