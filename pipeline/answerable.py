"""Judge whether the evidence answers the question, or only stands near it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.pipeline import terms
from foveate.pipeline.evidence import Evidence, cover

# logistic regression over the features below, fitted by tests/bench/answer_quality.py --tune on
# the even fold of hotpot and nq20, each question with its gold documents and without them
INTERCEPT = -3.0
COEFFICIENTS: Mapping[str, float] = {
    "dense": 4.0,
    "overlap": 1.0,
    "joint": 2.0,
    "around": 0.5,
    "kind": 0.5,
    "names": 1.0,
    "lead": 1.0,
}
THRESHOLD = 0.5  # of the score, chosen on the same fold


@dataclass(frozen=True, slots=True)
class Answerable:
    """score: 0..1, the chance that the evidence answers. reason: its weakest feature, in words."""

    score: float
    features: Mapping[str, float]
    reason: str


def judge(evidence: Evidence, chosen: Sequence[int]) -> Answerable:
    """Score the chosen sentences as an answer to the question."""
    if not chosen:
        return Answerable(0.0, {}, "no passage holds text")
    measured = features(evidence, chosen)
    logit = INTERCEPT + sum(COEFFICIENTS[name] * value for name, value in measured.items())
    return Answerable(1 / (1 + math.exp(-logit)), measured, weakness(evidence, chosen))


def features(evidence: Evidence, chosen: Sequence[int]) -> dict[str, float]:
    """Measure the evidence, each feature 0..1.

    dense: best cosine of a sentence. overlap: best share of the question's weighed terms in one
    sentence; joint: in the chosen ones with their titles; around: in all hits. kind: a chosen
    sentence holds a date, number, place or person where one is asked for. names: share of the
    question's names, or of its rarest terms, in the chosen ones with their titles. lead: how far
    the best sentence stands above the middle one.
    """
    asked, picked = evidence.question, [evidence.sentences[i] for i in chosen]
    close = joined(evidence, chosen)
    everywhere = joined(evidence, range(len(evidence.sentences)))
    scores = sorted((s.score for s in evidence.sentences), reverse=True)
    overlap = max(s.parts["overlap"] for s in evidence.sentences)
    if evidence.vectors is None:
        # without an encoder, what the cosine usually is at such an overlap
        dense = 0.25 + 0.5 * overlap
    else:
        dense = max(s.parts["dense"] for s in evidence.sentences)
    if asked.kind in ("other", "yes-no"):
        kind = 0.5
    else:
        kind = float(any(terms.offers(s.text, asked.kind, asked.words) for s in picked))
    rare = key_terms(evidence)
    return {
        "dense": dense,
        "overlap": overlap,
        "joint": cover(asked.weights, close),
        "around": cover(asked.weights, everywhere),
        "kind": kind,
        "names": sum(t in close for t in rare) / len(rare) if rare else 1.0,
        "lead": scores[0] - scores[len(scores) // 2],
    }


def key_terms(evidence: Evidence) -> list[str]:
    """Return the stems of the question's names, or its rarest third where it has none."""
    asked = evidence.question
    named = [t for t in map(terms.stem, sorted(terms.names(asked.text))) if t in asked.weights]
    if named:
        return named
    ranked = sorted(asked.weights, key=lambda t: -asked.weights[t])
    return ranked[: max(1, len(ranked) // 3)]


def joined(evidence: Evidence, indices: Sequence[int]) -> frozenset[str]:
    """Return every term of some sentences and of their passages' titles."""
    found: set[str] = set()
    for i in indices:
        sentence = evidence.sentences[i]
        found |= sentence.terms
        found.update(terms.terms(sentence.passage.context))
    return frozenset(found)


def weakness(evidence: Evidence, chosen: Sequence[int]) -> str:
    """Name what the question holds and the evidence lacks."""
    close = joined(evidence, chosen)
    absent = [w for w in terms.words(evidence.question.text) if terms.stem(w) not in close]
    absent = [w for w in dict.fromkeys(absent) if w not in terms.STOP]
    absent.sort(key=lambda w: -evidence.question.weights.get(terms.stem(w), 0.0))
    if absent:
        return f"the nearest sentences do not speak of: {', '.join(absent[:4])}"
    return "the nearest sentences are not close enough to the question"
