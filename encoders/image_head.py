"""A head that was trained on pictures and their captions, beside the label-free alignment.

    v = normalise(s normalise(x A + b) + (1 - s) normalise((f - c) M))

x: (n, f) what the network saw, averaged over the picture: its last features and what every block
gave. A, b: a ridge map to the captions' vectors. f: the label-free vector. M: partly whitens the
text space by the captions' own covariance, and takes out the direction that all captions share;
the same M is inside A. Fitted by train/images.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.alignment import normalise
from foveate.encoders.packages import find_file
from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

FILE = "head.safetensors"
TENSORS = ("map", "offset", "centre", "mix")


@dataclass(frozen=True, slots=True)
class ImageHead:
    """map: (f, d). offset, centre: (d,). mix: (d, d). share: of the map, 0..1.

    base: what it was trained on top of: size, shape, and the fingerprint of its tower without a
    head. space: where its vectors lie, as text encoders name it.
    """

    map: Floats
    offset: Floats
    centre: Floats
    mix: Floats
    share: float
    space: str
    base: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> ImageHead:
        """Read a trained folder.

        Raises:
            ModelError: if it holds no head, or one that is damaged.
        """
        from safetensors import SafetensorError, safe_open

        path = find_file(folder, FILE)
        try:
            with safe_open(path, framework="numpy") as file:
                tensors = [file.get_tensor(name).astype(np.float32) for name in TENSORS]
                settings = json.loads(file.metadata()["head"])
            head = cls(*tensors, **settings)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"cannot read the head {str(path)!r}: {error}") from error
        d = head.offset.shape[0] if head.offset.ndim == 1 else 0
        shapes = [head.map.shape[1:], head.centre.shape, head.mix.shape]
        if shapes != [(d,), (d,), (d, d)] or not all(np.isfinite(t).all() for t in tensors):
            raise ModelError(f"expected finite tensors of one width in {str(path)!r}")
        return head

    def write(self, folder: Path) -> None:
        """Write the tensors as float16 and the settings into a folder that exists."""
        from safetensors.numpy import save_file

        settings: dict[str, Any] = {
            "share": self.share, "space": self.space, "base": dict(self.base),
        }  # fmt: skip
        tensors = {name: getattr(self, name).astype(np.float16) for name in TENSORS}
        save_file(tensors, folder / FILE, metadata={"head": json.dumps(settings)})

    def rounded(self) -> ImageHead:
        """Return the head as it is read again after `write`."""
        kept = {n: getattr(self, n).astype(np.float16).astype(np.float32) for n in TENSORS}
        return dataclasses.replace(self, **kept)

    def vectors(self, features: Floats, free: Floats) -> Floats:
        """Map features (n, f) and label-free vectors (n, d) to (n, d) float32, L2-normalised."""
        mapped = normalise(features @ self.map + self.offset)
        known = normalise(np.asarray((free - self.centre) @ self.mix, dtype=np.float32))
        mixed: Floats = self.share * mapped + (1 - self.share) * known
        return normalise(mixed)
