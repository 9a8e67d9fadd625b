"""A centre and a rotation of token vectors, learned without labels, so that few dimensions do.

Token vectors of a sentence encoder lie in a narrow cone: without their mean, cosines tell more.
The rotation is that of the principal components, so the leading dimensions carry most.

    python -m foveate.encoders.rotation OUT.safetensors

makes the one that ships, from the model's own vocabulary: no corpus, and no label.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

SHIPPED = Path(__file__).parent / "weights" / "minilm_tokens.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """x -> (x - centre) @ matrix. centre: (d,) float32. matrix: (d, k) float32, orthonormal."""

    centre: Floats
    matrix: Floats

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def digest(self) -> str:
        """12 hex digits of what it holds."""
        data = self.centre.tobytes() + np.ascontiguousarray(self.matrix).tobytes()
        return hashlib.sha256(data).hexdigest()[:12]

    @classmethod
    def read(cls, path: Path) -> Rotation:
        """Read a file that `write` made.

        Raises:
            ModelError: it is missing or is not one.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            held = load_file(path)
            return cls(held["centre"].astype(np.float32), held["matrix"].astype(np.float32))
        except (OSError, SafetensorError, KeyError) as error:
            raise ModelError(f"cannot read the rotation {str(path)!r}: {error!r}") from error

    def write(self, path: Path, facts: dict[str, str]) -> None:
        """Write the rotation in half precision, with facts on what it was learned from."""
        from safetensors.numpy import save_file

        matrix: Any = self.matrix.astype(np.float16)
        held = {"centre": self.centre, "matrix": matrix}
        save_file(held, path, metadata={"made_from": json.dumps(facts, sort_keys=True)})

    def keep(self, dim: int | None) -> Rotation:
        """Return the rotation to the leading dimensions; None keeps all."""
        if dim is None or dim == self.dim:
            return self
        if not 0 < dim <= self.dim:
            raise ConfigError(f"expected dim in 1..{self.dim}, got {dim}")
        return Rotation(self.centre, np.ascontiguousarray(self.matrix[:, :dim]))

    def turn(self, states: Floats) -> Floats:
        """Return (t, k) float32. states: (t, d) float32, L2-normalised."""
        return np.asarray((states - self.centre) @ self.matrix, dtype=np.float32)


def learn(states: Floats) -> Rotation:
    """Learn the mean and the principal components of token states (t, d), L2-normalised."""
    centre = states.mean(0, dtype=np.float64)
    spread = np.cov(states, rowvar=False)
    _, columns = np.linalg.eigh(spread)
    turned: Floats = np.ascontiguousarray(columns[:, ::-1], dtype=np.float32)
    # the sign of an eigenvector is free: fix it, so that a second run gives the same file
    turned *= np.sign(turned[np.abs(turned).argmax(0), np.arange(turned.shape[1])])
    return Rotation(centre.astype(np.float32), turned)


def vocabulary_texts(words: list[str], *, n: int = 1000, length: int = 24) -> list[str]:
    """Return n texts of words drawn from a vocabulary by Zipf's law, always the same ones.

    words: the token of each id; a vocabulary lists them by falling frequency.
    """
    whole = [word for word in words if word.isascii() and word.isalpha() and word.islower()]
    chances = 1 / (np.arange(len(whole)) + 10.0)
    random = np.random.default_rng(0)
    drawn = random.choice(len(whole), size=(n, length), p=chances / chances.sum())
    return [" ".join(whole[i] for i in row) for row in drawn.tolist()]


def main(path: str) -> None:
    """Make the rotation of the packaged model: of texts drawn from its own vocabulary."""
    from foveate.encoders.minilm import MiniLM

    texts = MiniLM(device="cpu", dtype="fp32")
    plain = texts.late(rotation="none")
    found = plain.encode(vocabulary_texts(texts._pieces.vocabulary))
    facts = {"model": texts.tower, "texts": "1000 of 24 words, drawn from the vocabulary by rank"}
    learn(found.vectors).write(Path(path), facts)


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
