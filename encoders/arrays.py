"""Any array in a text's space: table rows, sensor windows, audio features.

A modality of your own needs one thing, features: something that turns its items into an array
(n, f). A small network, trained on items and texts about them (`train.array_tower`), maps those
into the space of a text encoder, and every text can then be compared with every item.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foveate.encoders.packages import find_file, fingerprint
from foveate.pipeline.errors import ModelError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Floats

SETTINGS, WEIGHTS = "array.json", "model.safetensors"


class Features(Protocol):
    """What a modality must bring."""

    @property
    def dim(self) -> int: ...

    def read(self, items: Sequence[Any]) -> Floats:
        """Return (n, f) float32, finite."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return what makes these features again, as JSON."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """Items that are arrays already, all of one shape: flattened and scaled.

    mean, scale: of each of the f numbers, from the items that were trained on.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, items: Sequence[Any]) -> Plain:
        """Take mean and spread from items."""
        rows = np.stack([np.asarray(item, dtype=np.float64).ravel() for item in items])
        spread = rows.std(0)
        spread[spread < 1e-12] = 1.0
        return cls(tuple(rows.mean(0).tolist()), tuple(spread.tolist()))

    @property
    def dim(self) -> int:
        return len(self.mean)

    def read(self, items: Sequence[Any]) -> Floats:
        rows = [np.asarray(item, dtype=np.float32).ravel() for item in items]
        for row in rows:
            if len(row) != self.dim:
                raise ShapeError(f"expected arrays of {self.dim} numbers, got {len(row)}")
        found = np.stack(rows) if rows else np.zeros((0, self.dim), dtype=np.float32)
        return np.asarray((found - self.mean) / self.scale, dtype=np.float32)

    def settings(self) -> dict[str, Any]:
        return {"kind": "plain", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Rows of a table, given as mappings: numbers scaled, categories one of each known value.

    numbers: {column: (mean, spread)}; a missing number is the mean, and said to be missing.
    categories: {column: known values}; an unknown value is none of them.
    """

    numbers: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[str, ...]]

    @classmethod
    def fit(cls, rows: Sequence[Mapping[str, Any]], *, most_values: int = 64) -> Columns:
        """Take columns, their scales and values from rows.

        A column whose values are all numbers is one of numbers; another keeps its `most_values`
        most frequent values.
        """
        names = list(dict.fromkeys(name for row in rows for name in row))
        numbers: dict[str, tuple[float, float]] = {}
        categories: dict[str, tuple[str, ...]] = {}
        for name in names:
            values = [row[name] for row in rows if row.get(name) is not None]
            if values and all(_is_number(value) for value in values):
                known = np.asarray(values, dtype=np.float64)
                numbers[name] = (float(known.mean()), float(known.std()) or 1.0)
                continue
            counts: dict[str, int] = {}
            for value in values:
                counts[str(value)] = counts.get(str(value), 0) + 1
            kept = sorted(counts, key=lambda value: (-counts[value], value))[:most_values]
            categories[name] = tuple(sorted(kept))
        return cls(numbers, categories)

    @property
    def dim(self) -> int:
        return 2 * len(self.numbers) + sum(map(len, self.categories.values()))

    def read(self, items: Sequence[Any]) -> Floats:
        found = np.zeros((len(items), self.dim), dtype=np.float32)
        for i, row in enumerate(items):
            if not isinstance(row, Mapping):
                raise ShapeError(f"expected rows as mappings, got {type(row).__name__}")
            at = 0
            for name, (mean, scale) in self.numbers.items():
                value = row.get(name)
                if value is not None and _is_number(value):
                    found[i, at] = (float(value) - mean) / scale
                else:
                    found[i, at + 1] = 1.0
                at += 2
            for name, values in self.categories.items():
                if str(row.get(name)) in values:
                    found[i, at + values.index(str(row.get(name)))] = 1.0
                at += len(values)
        return found

    def settings(self) -> dict[str, Any]:
        return {"kind": "columns", **dataclasses.asdict(self)}


class ArrayEncoder:
    """Encode items of a trained modality into the space of a text encoder.

    path: the folder that training wrote. texts: the encoder of that space; None is the one that
    the folder names. features: of a kind of your own; the built-in kinds are read from the folder.
    """

    reads: frozenset[str] = frozenset({"array"})
    window_tokens: int | None = None

    def __init__(
        self,
        path: str | Path,
        *,
        texts: Encoder | None = None,
        features: Features | None = None,
    ) -> None:
        self._folder = Path(path).expanduser()
        self._given = (texts, features)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        try:
            return dict(json.loads(find_file(self._folder, SETTINGS).read_text("utf-8")))
        except ValueError as error:
            raise ModelError(f"cannot read {str(self._folder / SETTINGS)!r}: {error}") from error

    @cached_property
    def texts(self) -> Encoder:
        """The encoder of the space's texts.

        Raises:
            ModelError: if it is of another space than the folder was trained into.
        """
        from foveate.encoders.minilm import MiniLM

        texts = self._given[0] or MiniLM(**self._settings["texts"])
        if texts.space != self.space:
            raise ModelError(f"expected texts in {self.space!r}, got an encoder of {texts.space!r}")
        return texts

    @cached_property
    def features(self) -> Features:
        return self._given[1] or read_features(self._settings["features"])

    @property
    def space(self) -> str:
        return str(self._settings["space"])

    @property
    def dim(self) -> int:
        return int(self.space.rpartition("/")[2])

    @cached_property
    def tower(self) -> str:
        """Features, layers and sampled SHA-256 of the weights."""
        digest = fingerprint(find_file(self._folder, WEIGHTS))
        return f"array@{digest} features={self._settings['features']['kind']} norm=l2"

    @cached_property
    def _net(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return load_file(str(find_file(self._folder, WEIGHTS)))

    def encode(
        self, inputs: Sequence[Any], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode items. Returns (n, d) float32, L2-normalised, in the inputs' order."""
        import torch

        if not len(inputs):
            return np.zeros((0, self.dim), dtype=np.float32)
        with torch.inference_mode():
            vectors = project(torch.from_numpy(self.features.read(inputs)), self._net)
        if progress:
            progress(len(inputs))
        return np.ascontiguousarray(vectors.numpy(), dtype=np.float32)

    def encode_queries(self, queries: Sequence[Any]) -> Floats:
        """Encode what is asked, texts or items. Returns (q, d) float32, L2-normalised."""
        is_text = np.array([isinstance(query, str) for query in queries], dtype=bool)
        vectors = np.zeros((len(queries), self.dim), dtype=np.float32)
        vectors[is_text] = self.texts.encode_queries([q for q in queries if isinstance(q, str)])
        vectors[~is_text] = self.encode([q for q in queries if not isinstance(q, str)])
        return vectors

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32, as the text encoder reads the text."""
        return self.texts.token_spans(text)


def project(features: Tensor, net: Mapping[str, Tensor]) -> Tensor:
    """Return (n, d), L2-normalised: a linear map beside two layers with a GELU.

    features: (n, f). net: in.weight (h, f), in.bias (h,), out.weight (d, h), skip.weight (d, f),
    out.bias (d,).
    """
    from torch.nn import functional as F

    inner = F.gelu(F.linear(features, net["in.weight"], net["in.bias"]))
    mapped = F.linear(inner, net["out.weight"], net["out.bias"])
    return F.normalize(mapped + F.linear(features, net["skip.weight"]), dim=1)


def read_features(settings: Mapping[str, Any]) -> Features:
    """Return features of a built-in kind.

    Raises:
        ModelError: for a kind that must be given as an object.
    """
    kind = settings.get("kind")
    if kind == "plain":
        return Plain(tuple(settings["mean"]), tuple(settings["scale"]))
    if kind == "columns":
        numbers = {name: (float(m), float(s)) for name, (m, s) in settings["numbers"].items()}
        return Columns(numbers, {n: tuple(v) for n, v in settings["categories"].items()})
    raise ModelError(f"features of kind {kind!r} are your own: give them as features=")


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )
