"""Sentinel: a linear probe on the reader's attention says which sentences matter (2505.23277).

    p = sigmoid(v . w + b),  v: each head's attention from the prompt's last token, spread over
    the passages only, the mean of a sentence's tokens

The reader reads in windows, in order. `foveate fit sentinel` fits the probe of one reader.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.types import Hit
from foveate.rerank.compress.attended import over
from foveate.rerank.compress.valued import ByValue, Valued

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.compress.units import Unit

SHIPPED = Path(__file__).with_name("weights") / "sentinel-smollm2-135m-instruct.json"
WINDOW_TOKENS = 1024
RIDGE = 0.003  # a question, on standardised features


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """reader: what it was fitted to. mean, deviation, weights: (heads,) float32, of log v."""

    reader: str
    mean: Floats
    deviation: Floats
    weights: Floats
    bias: float

    def chances(self, features: Floats) -> Floats:
        """Return (n,) float32 within 0..1 of features (n, heads); no weights give one half."""
        x = np.clip((features - self.mean) / self.deviation, -5, 5)
        found: Floats = (1 / (1 + np.exp(-(x @ self.weights + self.bias)))).astype(np.float32)
        return found

    def as_dict(self) -> dict[str, Any]:
        arrays = {n: getattr(self, n) for n in ("mean", "deviation", "weights")}
        listed = {n: [round(float(x), 5) for x in array] for n, array in arrays.items()}
        return {"reader": self.reader, "bias": round(self.bias, 5), **listed}


class Sentinel(ByValue):
    """Sentences by a probe on the reader's attention.

    Args:
        resources: what the engine lends.
        probe: a file that `foveate fit sentinel` wrote for the configured reader. The offline
            reader's ships.
        window_tokens: the reader reads so many tokens of passages at a time.
    """

    name = "sentinel"

    def __init__(
        self,
        resources: Resources,
        *,
        probe: str | os.PathLike[str] | None = None,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        super().__init__(resources)
        self._place = probe
        self.window_tokens = window_tokens
        self._probe: Probe | None = None
        self._lock = threading.Lock()

    @property
    def probe(self) -> Probe:
        with self._lock:
            if self._probe is None:
                reader = self._resources.reader().name
                found = load(SHIPPED if self._place is None else self._place)
                if found.reader != reader and self._place is None:
                    raise ConfigError(
                        f"compressor 'sentinel' has no probe of the reader {reader!r}: fit one "
                        "with `foveate fit sentinel`, then set compress.probe to its file"
                    )
                if found.reader != reader:
                    raise ModelError(
                        f"{str(self._place)!r} was fitted to {found.reader!r}, not to {reader!r}: "
                        "fit one with `foveate fit sentinel`"
                    )
                self._probe = found
            return self._probe

    def value(self, query: str, hits: Sequence[Hit], found: Sequence[Unit]) -> Valued:
        """Return each unit's chance to matter."""
        probe = self.probe
        seen = features(self._resources, query, hits, found, self.window_tokens)
        return Valued(probe.chances(seen))


def features(
    resources: Resources,
    query: str,
    hits: Sequence[Hit],
    found: Sequence[Unit],
    window_tokens: int = WINDOW_TOKENS,
) -> Floats:
    """Return (n, heads) float32: log of each unit's mean attention by head, times the tokens.

    An even spread over the passages gives 0 everywhere, whatever their number.
    """
    from foveate.rerank.attention import shared_scan

    scan = shared_scan(
        resources,
        heads="all",
        mode="causal",
        rows="last",
        calibrate=False,
        mask_deviations=None,
        share="passages",
        read_tokens=window_tokens,
    )
    look = scan.look(query, [hit.passage for hit in hits], per_head=True)
    heads: Any = look.token_heads
    rows = [over(heads[unit.hit], look, hits, unit) for unit in found]
    seen = np.asarray(rows, dtype=np.float32).reshape(len(found), -1)
    n_tokens = sum(map(len, look.token_scores))
    logs: Floats = np.log(np.maximum(seen * n_tokens, 1e-4)).astype(np.float32)
    return logs


def load(path: str | os.PathLike[str]) -> Probe:
    """Read a probe from a file.

    Raises:
        ModelError: for a file that is none.
    """
    place = Path(path).expanduser()
    try:
        table = json.loads(place.read_text(encoding="utf-8"))
        mean, deviation, weights = (
            np.asarray(table[n], np.float32) for n in ("mean", "deviation", "weights")
        )
        return Probe(str(table["reader"]), mean, deviation, weights, float(table["bias"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read the probe {str(place)!r}: {error}") from error


def fit(reader: str, features: Sequence[Floats], labels: Sequence[NDArray[np.bool_]]) -> Probe:
    """Fit a probe to questions, each with features (n, heads) and labels (n,) of its sentences.

    Ridge logistic regression by Newton's method; right and wrong sentences of a question weigh
    the same, as in the paper's balanced pairs.
    """
    x = np.concatenate(features).astype(np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-3
    x = np.clip((x - mean) / deviation, -5, 5)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    y = np.concatenate(labels).astype(np.float64)
    weight = np.concatenate(
        [np.where(row, 0.5 / max(1, row.sum()), 0.5 / max(1, (~row).sum())) for row in labels]
    )
    ridge = np.full(x.shape[1], RIDGE * len(labels))
    ridge[-1] = 1e-6
    w = np.zeros(x.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-(x @ w)))
        slope = x.T @ (weight * (p - y)) + ridge * w
        bend = (x * (weight * p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(bend, slope)
        w -= step
        if np.abs(step).max() < 1e-6:
            break
    found = w.astype(np.float32)
    return Probe(
        reader, mean.astype(np.float32), deviation.astype(np.float32), found[:-1], float(found[-1])
    )
