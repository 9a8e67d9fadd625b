"""What is known of a list of hits, as numbers: one row a hit, each column scaled within the list.

Three kinds: what the first stage said; how the words of the question stand in a passage; and what
candidates say of each other, weighted by how well those others do (the cluster hypothesis; second
hops, where a passage names another that the question does not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.rerank.terms import (
    STOPS,
    Words,
    best_window,
    content,
    digits_or_capitals,
    rarity,
    stems,
    total,
    words_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Hit

NAMES = (
    "fused", "dense", "words", "late",
    "feedback", "neighbours", "central", "expanded",
    "covered", "covered_here", "bm25_here", "title_covered", "title_in_query", "names", "pairs",
    "window", "length",
    "named", "linked", "links", "linked_named", "links_named", "shares_names",
    "rest", "rest_linked", "hop",
)  # fmt: skip
N_FEEDBACK = 3
FEEDBACK = 0.8
N_TERMS = 30
K1, B = 1.2, 0.6
NAME_RARITY = 4.0  # a title of commoner words than this is no name
NAME_WORDS = 8
SHORT, LONG = math.log(25), math.log(200)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What the features are made of.

    vectors: (n, d) float32 of the passages, zeros where there is none. query: (d,) float32.
    late: (n,) float32 scores of late interaction, None where there are none.
    """

    text: str
    hits: Sequence[Hit]
    vectors: Floats
    query: Floats
    late: Floats | None = None


def scaled(values: NDArray[Any]) -> Floats:
    """Return values with mean 0 and deviation 1; zeros where all are equal."""
    wide = np.asarray(values, dtype=np.float64)
    spread = wide.std()
    if spread < 1e-9:
        return np.zeros(len(wide), dtype=np.float32)
    found: Floats = ((wide - wide.mean()) / spread).astype(np.float32)
    return found


def features(evidence: Evidence) -> Floats:
    """Return (n, len(NAMES)) float32."""
    n = len(evidence.hits)
    columns: dict[str, Floats] = {name: np.zeros(n, dtype=np.float32) for name in NAMES}
    columns |= _first_stage(evidence)
    base = columns["dense"] + columns["words"]
    words = [words_of(hit.passage) for hit in evidence.hits]
    columns |= _by_likeness(evidence, words, base)
    asked = _Asked(evidence.text, words)
    columns |= asked.matches(words)
    columns |= _by_names(asked, words, base)
    found: Floats = np.stack([scaled(columns[name]) for name in NAMES], axis=1)
    return found


def _first_stage(evidence: Evidence) -> dict[str, Floats]:
    hits = evidence.hits
    score = np.array([hit.score for hit in hits], dtype=np.float64).clip(1e-9, 1 - 1e-9)
    words = np.array([hit.scores.get("words", np.nan) for hit in hits], dtype=np.float64)
    # what the words did not find is no better than the last that they did
    words[np.isnan(words)] = 0.0 if np.isnan(words).all() else np.nanmin(words)
    found = {
        "fused": scaled(np.log(score / (1 - score))),
        "dense": scaled(evidence.vectors @ evidence.query),
        "words": scaled(words),
    }
    if evidence.late is not None:
        found["late"] = scaled(evidence.late)
    return found


def _by_likeness(evidence: Evidence, words: Sequence[Words], base: Floats) -> dict[str, Floats]:
    """Score by likeness to the passages that do well: vectors, then words."""
    vectors, query = evidence.vectors, evidence.query
    share = _softmax(base)
    best = np.argsort(-base, kind="stable")[:N_FEEDBACK]
    moved = query + FEEDBACK * vectors[best].mean(0)
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, 0.0)
    lengths = np.array([len(w.text) + len(w.title) for w in words], dtype=np.float64)
    # the likeness of short texts says little
    trust = np.clip((math.log(lengths.mean() + 1) - SHORT) / (LONG - SHORT), 0.0, 1.0)
    second = query + vectors[best[0]]
    hop = vectors @ second
    hop[best[0]] = hop.max()
    expansion: dict[str, float] = {}
    for i in best:
        for word, count in words[i].counts.items():
            if word not in STOPS:
                weight = share[i] * count / max(1.0, lengths[i]) * rarity(word)
                expansion[word] = expansion.get(word, 0.0) + weight
    strongest = sorted(expansion.items(), key=lambda item: (-item[1], item[0]))[:N_TERMS]
    return {
        "feedback": vectors @ moved,
        "neighbours": trust * scaled(alike @ share / (1 - share + 1e-9)),
        "central": trust * scaled(alike.mean(1)),
        "expanded": bm25(words, dict(strongest)),
        "hop": hop,
        "length": np.log(lengths + 1).astype(np.float32),
    }


def bm25(words: Sequence[Words], weights: dict[str, float]) -> Floats:
    """Return (n,) float32: BM25 over these passages, each word with the weight given."""
    lengths = np.array([len(w.text) + len(w.title) for w in words], dtype=np.float64)
    norms = K1 * (1 - B + B * lengths / max(1.0, lengths.mean()))
    found = np.zeros(len(words), dtype=np.float32)
    for i, passage in enumerate(words):
        for word, weight in weights.items():
            count = passage.counts.get(word, 0)
            if count:
                found[i] += weight * count * (K1 + 1) / (count + norms[i])
    return found


class _Asked:
    """The words of a question, weighed by how rare they are, in English and in this list."""

    def __init__(self, text: str, words: Sequence[Words]) -> None:
        self.words = stems(text)
        self.joined = f" {' '.join(self.words)} "
        self.every = frozenset(self.words)
        self.weights = {word: rarity(word) for word in content(self.words)}
        self.whole = sum(self.weights.values()) or 1.0
        n = len(words)
        self.here = {}
        for word in self.weights:
            df = sum(word in passage.counts for passage in words)
            self.here[word] = math.log(1 + (n - df + 0.5) / (df + 0.5))
        pairs = zip(self.words, self.words[1:], strict=False)
        self.pairs = {pair for pair in pairs if not STOPS.issuperset(pair)}
        self.names = {w for w in digits_or_capitals(text) if w in self.weights}

    def matches(self, words: Sequence[Words]) -> dict[str, Floats]:
        rows = [self._match(passage) for passage in words]
        found = {name: np.array([row[name] for row in rows], dtype=np.float32) for name in rows[0]}
        return {**found, "bm25_here": bm25(words, self.here)}

    def _match(self, passage: Words) -> dict[str, float]:
        title, counts = frozenset(passage.title), passage.counts
        pairs = set(zip(passage.text, passage.text[1:], strict=False))
        pairs |= set(zip(passage.title, passage.title[1:], strict=False))
        known = self.weights
        return {
            "covered": sum(x for w, x in known.items() if w in counts) / self.whole,
            "covered_here": sum(x for w, x in self.here.items() if w in counts),
            "title_covered": sum(x for w, x in known.items() if w in title) / self.whole,
            "title_in_query": total(title & self.every) / max(1e-9, total(title)),
            "names": sum(known[w] for w in self.names if w in counts),
            "pairs": sum(known.get(a, 0.0) + known.get(b, 0.0) for a, b in self.pairs & pairs),
            "window": best_window((*passage.title, *passage.text), known),
        }


def _by_names(asked: _Asked, words: Sequence[Words], base: Floats) -> dict[str, Floats]:
    """Score by who names whom: titles of candidates in other candidates and in the question."""
    n = len(words)
    share = _softmax(base)
    names = [
        w.name if 0 < len(w.name) <= NAME_WORDS and total(w.name) > NAME_RARITY else ()
        for w in words
    ]
    joined = [passage.joined for passage in words]
    mentions = np.zeros((n, n), dtype=np.float32)
    overlap = np.zeros((n, n), dtype=np.float32)
    for j, name in enumerate(names):
        if not name:
            continue
        spelt = f" {' '.join(name)} "
        fresh = [w for w in name if w not in STOPS and w not in asked.every]
        weight = total(fresh)
        for i in range(n):
            if i != j:
                mentions[i, j] = spelt in joined[i]
                if weight > 0:
                    overlap[i, j] = total(w for w in fresh if w in words[i].counts) / weight
    named = np.array([bool(x) and f" {' '.join(x)} " in asked.joined for x in names], np.float32)
    best = int(np.argmax(base))
    missing = {w: x for w, x in asked.weights.items() if w not in words[best].counts}
    whole = sum(missing.values()) or 1.0
    rest = np.array(
        [sum(x for w, x in missing.items() if w in passage.counts) / whole for passage in words],
        dtype=np.float32,
    )
    tied = np.maximum(np.maximum(mentions[best], mentions[:, best]), overlap[:, best])
    return {
        "named": named,
        "linked": share @ mentions,
        "links": mentions @ share,
        "linked_named": np.minimum(mentions.T @ named, 1),
        "links_named": np.minimum(mentions @ named, 1),
        "shares_names": overlap @ share,
        "rest": rest,
        "rest_linked": rest * np.maximum(tied, named),
    }


def _softmax(values: Floats) -> Floats:
    raised = np.exp(values - values.max())
    found: Floats = (raised / raised.sum()).astype(np.float32)
    return found
