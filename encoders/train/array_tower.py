"""Train a modality of your own into the space of a text encoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foveate.encoders.arrays import SETTINGS, WEIGHTS, Features, project
from foveate.encoders.train import cards

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.train.trainable import Role
    from foveate.pipeline.protocols import Encoder


class ArrayTower:
    """A network from features to the space of frozen texts.

    features: of the modality. texts: the encoder of the space; it is not changed, and gives the
    vectors of queries. text_options: what makes it again from `minilm`, for the saved folder.
    width: of the hidden layer. noise: spread of Gaussian noise on the features while training.
    """

    use = "array"
    frozen_roles: frozenset[Role] = frozenset({"query"})

    def __init__(
        self,
        features: Features,
        texts: Encoder,
        *,
        text_options: Mapping[str, Any] | None = None,
        width: int = 256,
        noise: float = 0.1,
        seed: int = 0,
    ) -> None:
        self._features, self._texts, self._noise = features, texts, noise
        self._text_options = dict(text_options or {})
        self._training = False
        draw = torch.Generator().manual_seed(seed)
        f, d = features.dim, texts.dim

        def layer(n_out: int, n_in: int) -> Tensor:
            drawn: Tensor = torch.randn(n_out, n_in, generator=draw) / max(n_in, 1) ** 0.5
            return drawn

        self._net = {
            "in.weight": layer(width, f),
            "in.bias": torch.zeros(width),
            "out.weight": layer(d, width),
            "out.bias": torch.zeros(d),
            "skip.weight": layer(d, f),
        }
        for tensor in self._net.values():
            tensor.requires_grad_()

    @property
    def space(self) -> str:
        return self._texts.space

    @property
    def dim(self) -> int:
        return self._texts.dim

    def parameters(self) -> Mapping[str, Tensor]:
        return self._net

    def train(self, mode: bool = True) -> None:
        self._training = mode

    def fingerprint(self) -> str:
        made = json.dumps(self._features.settings(), sort_keys=True, default=str)
        shapes = [tuple(tensor.shape) for tensor in self._net.values()]
        digest = hashlib.sha256(made.encode()).hexdigest()[:12]
        return f"array features={digest} layers={shapes} texts={self._texts.tower}"

    def embed(self, inputs: Sequence[Any], role: Role) -> Tensor:
        """Return (n, d) float32, L2-normalised; texts by the frozen encoder."""
        if role == "query":
            return torch.from_numpy(self._texts.encode_queries(list(inputs)))
        features = torch.from_numpy(self._features.read(inputs))
        if self._training and self._noise:
            features = features + self._noise * torch.randn(features.shape)
        return project(features, self._net)

    def save(self, folder: Path, card: Mapping[str, Any]) -> None:
        """Write a folder that `ArrayEncoder` loads."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().contiguous() for name, t in self._net.items()}
        save_file(tensors, str(folder / WEIGHTS))
        settings = {
            "space": self.space,
            "texts": self._text_options,
            "features": self._features.settings(),
        }
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
        cards.write_card(folder, card)
