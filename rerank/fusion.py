"""Rerank by all that is known of the hits: first stage, words, likeness among candidates, names.

    x = features of each hit, scaled within the list (foveate.rerank.features)
    A = attention across the list: each hit to its nearest others, by cosine, in a few steps
    s = (1 - g) (x u + A x v) + g (x u' + A x v')

A plays the part of FiT5's attention among candidates (arXiv 2305.14685), without a model: what
hits like this one score counts for this one. Two sets of weights answer two kinds of lists: texts
on a subject, and a question over passages that bear names, where the second passage is found
through the first. g says how much a list is of the second kind.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.rerank.features import LONG, NAMES, SHORT, Evidence, features
from foveate.rerank.terms import words_of

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats, Hit

SHIPPED = Path(__file__).parent / "weights" / "fusion.json"
TEXTS = frozenset({"text", "table"})
NEIGHBOURS = 12
STEPS = 3
FLOW = 0.75  # of a hit's score that comes from its neighbours, where texts are long
LEAST_TRUST = 0.3
NAME_WORDS = 6  # a longer title is a headline, not a name
NAMED = (0.3, 0.7)  # shares of such titles from which g rises and to which
APART = (0.5, 0.7)  # shares of different titles, likewise
_ASKS = re.compile(
    r"^\W*(?:(?:in|on|at|of|for|from|to|with|by)\s+)?(?:who|whom|whose|what|which|when|where|why|"
    r"how|is|are|was|were|do|does|did|can|could|has|have|had)\b|\?\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """subject, names: (2 * len(NAMES),) float32 each, for x and for A x."""

    subject: Floats
    names: Floats

    @classmethod
    def read(cls, path: Path) -> Weights:
        """Read a file that `write` made; a feature that it lacks weighs nothing.

        Raises:
            ConfigError: if it cannot be read.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            parts = [_row(found["weights"][kind]) for kind in ("subject", "names")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read fusion weights from {str(path)!r}: {error}") from error
        return cls(*parts)

    def write(self, path: Path, facts: dict[str, Any]) -> None:
        """Write the weights that are not 0, and what they were made of."""
        weights = {
            kind: {
                side: {n: round(float(w), 4) for n, w in zip(NAMES, part, strict=True) if w}
                for side, part in zip(("own", "near"), np.split(row, 2), strict=True)
            }
            for kind, row in (("subject", self.subject), ("names", self.names))
        }
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text(json.dumps({**facts, "weights": weights}, indent=1) + "\n")
        os.replace(aside, path)


def _row(table: dict[str, dict[str, float]]) -> Floats:
    known = {name: i for i, name in enumerate(NAMES)}
    row = np.zeros(2 * len(NAMES), dtype=np.float32)
    for side, offset in (("own", 0), ("near", len(NAMES))):
        for name, weight in table[side].items():
            row[offset + known[name]] = float(weight)
    return row


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A list as the weights see it. rows: (n, 2 * len(NAMES)). kind: g, 0..1."""

    rows: Floats
    kind: float


def see(evidence: Evidence) -> Listed:
    """Return a list's features, its own and its neighbours'."""
    own = features(evidence)
    mixing = attend(evidence.vectors, _mean_length(evidence.hits))
    near: Floats = (mixing @ own).astype(np.float32)
    return Listed(np.concatenate([own, near], axis=1), kind_of(evidence.text, evidence.hits))


def attend(vectors: Floats, mean_length: float) -> Floats:
    """Return A (n, n): rows sum to 1; each hit keeps a part and takes the rest from neighbours.

    mean_length: words of a passage; the likeness of short texts counts less.
    """
    n = len(vectors)
    alike = np.maximum(vectors @ vectors.T, 0.0) ** 2
    np.fill_diagonal(alike, 0.0)
    least = np.sort(alike, axis=1)[:, -min(NEIGHBOURS, n)][:, None]
    alike = np.where(alike >= least, alike, 0.0)
    sums = alike.sum(1, keepdims=True)
    # a hit that is like no other keeps its own
    step = np.where(sums > 1e-9, alike / np.maximum(sums, 1e-9), np.eye(n))
    trust = min(1.0, max(0.0, (math.log(mean_length + 1) - SHORT) / (LONG - SHORT)))
    flow = FLOW * max(trust, LEAST_TRUST)
    found = np.eye(n)
    for _ in range(STEPS):
        found = (1 - flow) * np.eye(n) + flow * (step @ found)
    mixed: Floats = found.astype(np.float32)
    return mixed


def kind_of(text: str, hits: Sequence[Hit]) -> float:
    """Return g: 0 unless the text is a question, rising with the share of hits titled by names.

    Where many hits stand under one name, a name leads to no passage: g falls with the share of
    different ones.
    """
    if not hits or not _ASKS.search(text):
        return 0.0
    names = [words_of(hit.passage).name for hit in hits]
    named = sum(0 < len(name) <= NAME_WORDS for name in names) / len(hits)
    return _rise(named, *NAMED) * _rise(len(set(names)) / len(hits), *APART)


def _rise(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def score(listed: Listed, weights: Weights) -> Floats:
    """Return (n,) float32, each list's mean 0; the two kinds of scores have the same spread."""
    parts = []
    for row in (weights.subject, weights.names):
        raw = listed.rows @ row
        parts.append((raw - raw.mean()) / max(float(raw.std()), 1e-6))
    found: Floats = ((1 - listed.kind) * parts[0] + listed.kind * parts[1]).astype(np.float32)
    return found


class Fusion:
    """Order hits by a learned sum of features; `score` is the logistic function of that sum.

    Needs no model beyond the index's text encoder, and about 20 ms for 50 hits. `scores["late"]`
    counts where a reranker 'late' ran before.

    Args:
        weights: a file that `foveate fuse` wrote; the shipped ones by default.
    """

    name = "fusion"
    reads = TEXTS

    def __init__(
        self, resources: Resources, *, weights: str | os.PathLike[str] | None = None
    ) -> None:
        self._resources = resources
        self._path = SHIPPED if weights is None else Path(weights).expanduser()
        self._weights: Weights | None = None
        self._lock = threading.Lock()

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first, ties by passage id."""
        if not hits:
            return []
        with self._lock:
            if self._weights is None:
                self._weights = Weights.read(self._path)
        values = score(see(gather(self._resources, query, hits)), self._weights)
        scored = [
            dataclasses.replace(
                hit,
                score=1 / (1 + math.exp(-float(value))),
                scores={**hit.scores, self.name: float(value)},
            )
            for hit, value in zip(hits, values, strict=True)
        ]
        return sorted(scored, key=lambda hit: (-hit.score, hit.passage.id))[:k]


def gather(resources: Resources, query: str, hits: Sequence[Hit]) -> Evidence:
    """Collect what the features need of an engine."""
    encoder = resources.encoders["text"]
    asked = encoder.encode_queries([query])[0]
    vectors = resources.index.vectors([hit.passage.id for hit in hits], "text")
    late = [hit.scores.get("late", np.nan) for hit in hits]
    known = not np.isnan(late).any()
    return Evidence(
        query,
        hits,
        np.nan_to_num(np.asarray(vectors, dtype=np.float32)),
        np.asarray(asked, dtype=np.float32),
        np.asarray(late, dtype=np.float32) if known else None,
    )


def _mean_length(hits: Sequence[Hit]) -> float:
    every = [words_of(hit.passage) for hit in hits]
    return sum(len(w.text) + len(w.title) for w in every) / max(1, len(every))
