"""Is one configuration better than another, or was it luck? All tests are seeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

N_DRAWS = 10_000
BLOCK = 500


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean of `other` minus the mean of `base`, over the queries that both have.

    p: two-sided, of the paired randomisation test. interval: 95%, of the difference.
    """

    base: float
    other: float
    difference: float
    p: float
    interval: tuple[float, float]
    n: int
    n_better: int
    n_worse: int


def randomisation_test(
    a: ArrayLike, b: ArrayLike, *, n_draws: int = N_DRAWS, seed: int = 0
) -> float:
    """Return the two-sided p of a paired randomisation test of equal means.

    Under the null hypothesis each pair's sign is a coin toss; p = (1 + #{|draw| >= |seen|}) /
    (1 + n_draws) (Smucker, Allan and Carterette, CIKM 2007).
    """
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    if differences.size == 0 or not differences.any():
        return 1.0
    # queries on which both agree change neither side
    moving = differences[differences != 0]
    seen = abs(moving.sum())
    rng = np.random.default_rng(seed)
    n_extreme = 0
    for start in range(0, n_draws, BLOCK):
        n = min(BLOCK, n_draws - start)
        signs = rng.integers(0, 2, size=(n, moving.size), dtype=np.int8) * 2 - 1
        n_extreme += int((np.abs(signs @ moving) >= seen - 1e-12).sum())
    return (1 + n_extreme) / (1 + n_draws)


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, n_draws: int = N_DRAWS, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean; NaNs for no values."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    means = np.empty(n_draws)
    for start in range(0, n_draws, BLOCK):
        n = min(BLOCK, n_draws - start)
        picks = rng.integers(0, sample.size, size=(n, sample.size), dtype=np.int32)
        means[start : start + n] = sample[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def compare(base: Mapping[str, float], other: Mapping[str, float]) -> Comparison:
    """Compare one measure of two configurations, query by query."""
    a, b = paired(base, other)
    difference = b - a
    return Comparison(
        base=float(a.mean()) if a.size else float("nan"),
        other=float(b.mean()) if b.size else float("nan"),
        difference=float(difference.mean()) if a.size else float("nan"),
        p=randomisation_test(a, b),
        interval=bootstrap_interval(difference),
        n=a.size,
        n_better=int((difference > 1e-9).sum()),
        n_worse=int((difference < -1e-9).sum()),
    )


def paired(
    base: Mapping[str, float], other: Mapping[str, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both sides' values, (n,) each, of the queries that both have."""
    shared = [q for q in base if q in other]
    return (
        np.array([base[q] for q in shared], dtype=np.float64),
        np.array([other[q] for q in shared], dtype=np.float64),
    )


def differences(base: Mapping[str, float], other: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return (query, other - base) of the queries that both have, the largest loss first."""
    found = [(q, other[q] - base[q]) for q in base if q in other]
    return sorted(found, key=lambda item: (item[1], item[0]))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for being several (Holm 1979), in their order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected
