"""Judge whether the evidence answers the question, or only stands near it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from foveate.pipeline import terms
from foveate.pipeline.evidence import Evidence, cover, link, title_of

if TYPE_CHECKING:
    from foveate.pipeline.types import Hit, Passage

Weights: TypeAlias = Mapping[str, float]

# logistic regressions over the features below (tests/bench/answer_quality.py --tune fits alike) on
# questions of hotpot, nq20 and musique, each with its gold documents and without them, and among
# ten, five and three passages. Questions that name something and those that do not have weights of
# their own: what a name leaves open says more than what a common word does. The intercepts are
# moved so that a score of a half refuses 11 % of the answerable questions of either kind.
FULL: Mapping[str, Weights] = {
    "named": {
        "": 5.57,
        "open": -12.72,
        "crowd": -4.9,
        "cover": 4.08,
        "lead": 1.65,
        "few": 5.12,
        "titles": 2.72,
        "link": 1.31,
    },
    "plain": {
        "": 15.11,
        "open": -21.68,
        "crowd": -5.49,
        "cover": 1.3,
        "lead": 2.81,
        "few": 6.41,
        "titles": 0.63,
        "link": 0.57,
    },
}
# for passages without titles
UNTITLED: Mapping[str, Weights] = {
    "named": {
        "": 11.33,
        "open": -17.43,
        "crowd": -5.31,
        "cover": 3.54,
        "lead": 1.15,
        "few": 4.35,
    },
    "plain": {"": 15.68, "open": -22.31, "crowd": -5.18, "cover": 1.29, "lead": 2.63, "few": 6.0},
}
# without an encoder, or with one whose cosines these weights were not fitted on
WORDS: Mapping[str, Weights] = {
    "named": {"": -5.51, "cover": 5.49, "lead": 1.63, "few": 2.85, "titles": 3.81, "link": 1.19},
    "plain": {"": -3.18, "cover": 4.14, "lead": 1.73, "few": 3.52, "titles": 2.5, "link": 0.54},
}
FITTED = "all-MiniLM-L6-v2/384"  # the end of the name of the space
THRESHOLD = 0.5
N_SPANNED = 3  # sentences whose meanings together are held against the question's
N_LOOKED = 30  # sentences that may be among them
LEAST = 3  # passages; where there are fewer, the missing ones are taken to be as usual:
USUAL_COVER, USUAL_COSINE = 0.19, 0.39


@dataclass(frozen=True, slots=True)
class Answerable:
    """score: 0..1, a half being the least that is answered. reason: the weakest part, in words.

    by: what it was judged by, 'meaning and words' or 'words' alone.
    """

    score: float
    features: Mapping[str, float]
    reason: str
    by: str = "words"


def judge(evidence: Evidence, chosen: Sequence[int], hits: Sequence[Hit]) -> Answerable:
    """Score the evidence as an answer to the question. chosen: sentences that answer."""
    if not chosen:
        return Answerable(0.0, {}, "no passage holds text")
    measured = features(evidence, chosen, hits)
    weights = weights_for(evidence)
    logit = weights[""] + sum(w * measured[name] for name, w in weights.items() if name)
    score = 1 / (1 + math.exp(-max(-50.0, min(50.0, logit))))
    by = "meaning and words" if "open" in weights else "words"
    return Answerable(score, measured, weakness(evidence, chosen), by)


def weights_for(evidence: Evidence) -> Weights:
    kind = "named" if terms.names(evidence.question.text) else "plain"
    if evidence.vectors is None or not str(evidence.space).endswith(FITTED):
        return WORDS[kind]
    titled = any(title_of(sentence.passage).strip() for sentence in evidence.sentences)
    return (FULL if titled else UNTITLED)[kind]


def features(evidence: Evidence, chosen: Sequence[int], hits: Sequence[Hit]) -> dict[str, float]:
    """Measure the evidence.

    open: what is left of the question's vector outside the span of the three sentences that
    explain it best, one after another. crowd: the middle of the passages' best cosines; where all
    stand alike near, none stands out. cover: the largest share of the question's weighed terms in
    one passage. lead: how far that stands above the middle passage. few: one over the number of
    passages. titles: how many titles, of two, the question spells out. link: whether the second
    chosen sentence is of a passage that the first one leads to.

    Tried and left out, as they told nothing more beside these: the best cosine, the chosen
    sentences' own, overlap and joint cover, answers of the asked kind, names that are found,
    pairs of words, and the spread of the scores.
    """
    question = evidence.question
    covers = [
        cover(question.weights, frozenset(terms.terms(f"{h.passage.context} {h.passage.text}")))
        for h in hits
    ]
    covers = sorted([*covers, *[USUAL_COVER] * (LEAST - len(covers))], reverse=True)
    first = evidence.sentences[chosen[0]]
    second = evidence.sentences[chosen[1]] if len(chosen) > 1 else None
    found = {
        "cover": covers[0],
        "lead": covers[0] - covers[len(covers) // 2],
        "few": 1 / max(LEAST, len(hits)),
        "titles": min(2, sum(spelled_out(hit, question.words) for hit in hits)) / 2,
        "link": link([first], second, question) if second is not None else 0.0,
    }
    if evidence.vectors is not None:
        found["open"], found["crowd"] = left_open(evidence), crowd(evidence)
    return found


def spelled_out(hit: Hit, asked: frozenset[str]) -> bool:
    """Whether a question holds every word of a passage's title, but for what is in brackets."""
    words = terms.words(title_of(hit.passage).split("(")[0])
    title = [w for w in words if w not in terms.STOP]
    return bool(title) and all(w in asked for w in title)


def crowd(evidence: Evidence) -> float:
    """Return the middle one of the passages' best cosines with the question."""
    best: dict[int, float] = {}
    for sentence in evidence.sentences:
        cosine = sentence.parts["dense"]
        best[sentence.hit] = max(best.get(sentence.hit, 0.0), cosine)
    known = sorted([*best.values(), *[USUAL_COSINE] * (LEAST - len(best))])
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2


def left_open(evidence: Evidence) -> float:
    """Return the length, 0..1, of the question's part outside the span of a few sentences.

    They are taken one after another, each the nearest to what is still open (orthogonal matching
    pursuit): a question of two parts needs a sentence for either.
    """
    import numpy as np

    assert evidence.vectors is not None
    assert evidence.query is not None
    query = evidence.query.astype(np.float64)
    near = np.argsort(-(evidence.vectors @ evidence.query), kind="stable")[:N_LOOKED]
    vectors = evidence.vectors[near].astype(np.float64)  # (n, d)
    rest, spanned = query, np.zeros((0, len(query)))
    for _ in range(min(N_SPANNED, len(vectors))):
        size = np.linalg.norm(rest)
        if size < 1e-6:
            break
        nearest = vectors[int((vectors @ rest).argmax())]
        fresh = nearest - spanned.T @ (spanned @ nearest)
        length = np.linalg.norm(fresh)
        if length < 1e-3:
            break
        spanned = np.vstack([spanned, fresh / length])
        rest = query - spanned.T @ (spanned @ query)
    return float(np.linalg.norm(rest))


def joined(evidence: Evidence, indices: Sequence[int]) -> frozenset[str]:
    """Return every term of some sentences and of their passages' titles."""
    found: set[str] = set()
    for i in indices:
        sentence = evidence.sentences[i]
        found |= sentence.terms
        found.update(terms.terms(title_of(sentence.passage)))
    return frozenset(found)


def unspoken(question: str, cited: Iterable[Passage], hits: Sequence[Hit]) -> str | None:
    """Return the subject of a question if other hits speak of it and no cited passage does.

    A quote may then answer of another thing. It says nothing of a question that names something:
    a second passage is often reached through a name that the question does not hold. On 125
    questions of nq20 each it speaks up in 11 % of those with their gold documents, in 21 %
    without: too little to refuse by, enough to tell.
    """
    subject = terms.subject(question)
    if subject is None or terms.names(question):
        return None
    stem = terms.stem(subject)
    close, near = (
        {t for p in some for t in terms.terms(f"{title_of(p)} {p.source.title or ''} {p.text}")}
        for some in (cited, [hit.passage for hit in hits])
    )
    return subject if stem in near - close else None


def weakness(evidence: Evidence, chosen: Sequence[int]) -> str:
    """Name what the question holds and the evidence lacks."""
    close = joined(evidence, chosen)
    absent = [w for w in terms.words(evidence.question.text) if terms.stem(w) not in close]
    absent = [w for w in dict.fromkeys(absent) if w not in terms.STOP]
    absent.sort(key=lambda w: -evidence.question.weights.get(terms.stem(w), 0.0))
    if absent:
        return f"the nearest sentences do not speak of: {', '.join(absent[:4])}"
    return "the nearest sentences are not close enough to the question"
