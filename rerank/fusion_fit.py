"""Fit fusion's weights to judged lists: a listwise loss, and a pull towards weights known before.

    loss = mean over lists of -log softmax(s)_p, averaged over the right hits p, + l2/2 |w - w0|^2

Few judgments move the weights little. Only numpy, a second for a thousand lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.rerank.features import NAMES
from foveate.rerank.fusion import Listed, Weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats

# what is known before any judgment: likeness to what does well, the question's words covered,
# and words of what does well. Few round numbers, seen to do well on texts of several subjects.
SUBJECT = {
    "own": {"fused": 0.3, "neighbours": 0.3, "central": -0.12},
    "near": {"fused": 1.0, "covered": 0.25, "expanded": 0.25},
}
STEPS = 300
RATE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A list, which of its hits are right, and what it counts for."""

    listed: Listed
    right: NDArray[np.bool_]
    weight: float = 1.0


def prior() -> Floats:
    """Return (2 * len(NAMES),) float32, the weights before any judgment."""
    row = np.zeros(2 * len(NAMES), dtype=np.float32)
    for offset, side in ((0, SUBJECT["own"]), (len(NAMES), SUBJECT["near"])):
        for name, weight in side.items():
            row[offset + NAMES.index(name)] = weight
    return row


def fit(lists: Sequence[Judged], before: Floats, l2: float) -> Floats:
    """Return weights (f,) float32 by Adam. before: (f,), what `l2` pulls them to.

    Raises:
        ConfigError: if no list has a right hit among wrong ones.
    """
    some = [j for j in lists if j.right.any() and not j.right.all()]
    if not some:
        raise ConfigError("no query has a right hit among wrong ones: nothing to learn from")
    longest = max(len(j.right) for j in some)
    n_features = some[0].listed.rows.shape[1]
    rows = np.zeros((len(some), longest, n_features))
    hidden = np.ones((len(some), longest), dtype=bool)
    wanted = np.zeros((len(some), longest))
    for i, j in enumerate(some):
        rows[i, : len(j.right)] = j.listed.rows
        hidden[i, : len(j.right)] = False
        wanted[i, : len(j.right)] = j.right / j.right.sum()
    counts = np.array([j.weight for j in some])
    counts /= counts.sum()
    found = before.astype(np.float64).copy()
    first, second = np.zeros(n_features), np.zeros(n_features)
    for step in range(1, STEPS + 1):
        scores = np.where(hidden, -1e9, rows @ found)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        slope = np.einsum("q,qn,qnf->f", counts, shares - wanted, rows) + l2 * (found - before)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope * slope
        found -= RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    fitted: Floats = found.astype(np.float32)
    return fitted


def fit_both(
    lists: Sequence[Judged], *, subject_l2: float = 3.0, names_l2: float = 0.01
) -> tuple[Weights, dict[str, Any]]:
    """Fit each set of weights to the lists of its kind; one without lists stays as it was.

    Returns:
        (the weights, how many lists taught each).
    """
    kinds = {
        "subject": [j for j in lists if j.listed.kind < 0.5],
        "names": [j for j in lists if j.listed.kind >= 0.5],
    }
    before = prior()
    rows = {}
    for kind, l2 in (("subject", subject_l2), ("names", names_l2)):
        taught = any(j.right.any() and not j.right.all() for j in kinds[kind])
        rows[kind] = fit(kinds[kind], before, l2) if taught else before
    return Weights(rows["subject"], rows["names"]), {k: len(v) for k, v in kinds.items()}
