"""Map a classifier's features into a text space by the names of its classes, without a photo."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foveate.encoders.convnet import N_CLASSES, ConvNet
from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.pipeline.types import Floats


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where each class lies in the text space, and how a picture is composed of them.

    targets: (1000, d) float32, centred. temperature: of the softmax over classes. ridge: penalty,
    in units of the mean square of the features' directions. share: weight of the ridge map.
    cells: weight of the cells' mean beside the whole picture's vector.
    """

    targets: Floats
    space: str
    temperature: float
    ridge: float
    share: float
    cells: float

    @classmethod
    def read(cls, path: Path) -> Alignment:
        """Read a safetensors file.

        Raises:
            ModelError: if it is missing or not an alignment.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                targets = file.get_tensor("targets").astype(np.float32)
                settings = json.loads(file.metadata()["alignment"])
            alignment = cls(targets, **settings)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"cannot read the alignment {str(path)!r}: {error}") from error
        if targets.ndim != 2 or len(targets) != N_CLASSES or not np.isfinite(targets).all():
            raise ModelError(
                f"expected finite targets ({N_CLASSES}, d) in {str(path)!r}, got {targets.shape}"
            )
        return alignment


class AlignedNet:
    """A network and its alignment: a picture's features to its vector."""

    def __init__(self, net: ConvNet, alignment: Alignment) -> None:
        self.convnet = net
        self._alignment = alignment
        weight, bias = (tensor.numpy() for tensor in net.classifier)
        self._classifier = (np.ascontiguousarray(weight.T), bias)
        self._map = fit_ridge(weight, alignment.targets, alignment.ridge)

    def pictures(self, features: Tensor) -> Floats:
        """Map features (n, 1280, h, w) to (n, d) float32, L2-normalised: whole and cells."""
        cells = features.flatten(2).transpose(1, 2).contiguous().numpy()  # (n, c, 1280)
        n, n_cells, _ = cells.shape
        whole = self.vectors(cells.mean(axis=1))
        seen = self._named(cells.reshape(n * n_cells, -1)).reshape(n, n_cells, -1).mean(axis=1)
        return normalise(whole + self._alignment.cells * normalise(seen))

    def vectors(self, features: Floats) -> Floats:
        """Map features (n, 1280) float32 to vectors (n, d) float32, L2-normalised."""
        share = self._alignment.share
        mapped = normalise(features @ self._map)
        return normalise((1 - share) * self._named(features) + share * mapped)

    def _named(self, features: Floats) -> Floats:
        """Return (n, d) float32, L2-normalised: ConSE of features (n, 1280)."""
        logits = features @ self._classifier[0] + self._classifier[1]
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits / self._alignment.temperature)
        return normalise(odds @ self._alignment.targets)


def fit_ridge(weights: Floats, targets: Floats, penalty: float) -> Floats:
    """Fit the map from classifier rows to targets: X' (X X' + p s I)^-1 T, X centred.

    Args:
        weights: (c, f) float32.
        targets: (c, d) float32, centred.
        penalty: in units of s = ||X||^2 / f.

    Returns:
        (f, d) float32.
    """
    centred = (weights - weights.mean(axis=0)).astype(np.float64)
    gram = centred @ centred.T
    gram[np.diag_indices_from(gram)] += penalty * np.trace(gram) / weights.shape[1]
    return np.asarray(centred.T @ np.linalg.solve(gram, targets), dtype=np.float32)


def normalise(rows: Floats) -> Floats:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12), dtype=np.float32)
