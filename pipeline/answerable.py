"""Judge whether the evidence answers the question, or only stands near it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.pipeline import terms
from foveate.pipeline.evidence import Evidence, cover

# logistic regression over the features below, fitted by tests/bench/answer_quality.py --tune on
# 50 questions of hotpot and 50 of nq20, each with its gold documents and without them
INTERCEPT = -8.94
COEFFICIENTS: Mapping[str, float] = {"dense": 5.07, "joint": 3.47, "lead": 2.3, "chosen": 6.08}
THRESHOLD = 0.45  # of the score: refuses 13 % of those questions although the answer is there


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

    dense: best cosine of a sentence. joint: share of the question's weighed terms in the chosen
    ones with their titles. lead: how far the best sentence stands above the middle one. chosen:
    mean cosine of the chosen sentences. Tried and left out, as they told nothing more: whether a
    date or name is there where one is asked for, and the share of the question's names.
    """
    found = evidence.sentences
    scores = sorted((s.score for s in found), reverse=True)
    parts = [found[i].parts for i in chosen]
    if evidence.vectors is None:
        # without an encoder, what the cosine usually is at such an overlap
        dense = 0.25 + 0.5 * max(s.parts["overlap"] for s in found)
        mean = 0.25 + 0.5 * sum(p["overlap"] for p in parts) / len(parts)
    else:
        dense = max(s.parts["dense"] for s in found)
        mean = sum(p["dense"] for p in parts) / len(parts)
    return {
        "dense": dense,
        "joint": cover(evidence.question.weights, joined(evidence, chosen)),
        "lead": scores[0] - scores[len(scores) // 2],
        "chosen": mean,
    }


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
