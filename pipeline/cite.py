"""Give every sentence of an answer the verbatim span that supports it, or take the sentence out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from foveate.pipeline import terms
from foveate.pipeline.evidence import Evidence, Question, Sentence, title_of
from foveate.pipeline.ingest.sentences import sentences
from foveate.pipeline.types import Box, Citation

if TYPE_CHECKING:
    from foveate.pipeline.looks import Looks
    from foveate.pipeline.protocols import Encoder

Boxes: TypeAlias = Callable[[str, tuple[int, int]], Sequence[tuple[int, Box]]]
Dropper = Literal["cite"]

# [3], [1, 2], [1-3], [^2]: what a model or a document writes as a reference
MARKER = re.compile(r"\[\^?\d+(?:\s*[,;\u2013-]\s*\^?\d+)*\]")
LEADS = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)]|(?:final )?answer\s*[:-])\s+", re.IGNORECASE)
NEGATION = frozenset({"not", "no", "never", "none", "neither", "nor", "without", "cannot"})
# weights of the alignment of a claim with a sentence, each part 0..1; what a local model looked at
# while it wrote comes on top, and decides between sentences that read alike
MEANING, OVERLAP, BEARING = 0.35, 0.5, 0.15
LOOKED = 0.1
NEGATION_COST = 0.15


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sentence that was taken out of an answer, by whom and why."""

    sentence: str
    reason: str
    by: Dropper = "cite"


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of an answer, and the sentences that support it.

    missing: names and numbers that none of them holds. parts: of the first one's support, each
    0..1: meaning, overlap of words, bearing on the question, and how much it was looked at.
    """

    text: str
    evidence: tuple[int, ...]
    support: float
    missing: frozenset[str] = frozenset()
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cited:
    """An answer's text with its markers. removed: markers that the model wrote itself.

    claims: every sentence of it, also those that were dropped.
    """

    text: str
    citations: tuple[Citation, ...]
    dropped: tuple[Dropped, ...] = ()
    removed: int = 0
    claims: tuple[Claim, ...] = ()

    @property
    def supports(self) -> tuple[float, ...]:
        return tuple(claim.support for claim in self.claims)


@dataclass(slots=True)
class Numbering:
    """One marker for each passage that is cited, counted from 1 in order of appearance."""

    numbers: dict[tuple[str, int], int] = field(default_factory=dict)

    def of(self, sentence: Sentence) -> int:
        key = sentence.passage.source.id, sentence.passage.id
        return self.numbers.setdefault(key, len(self.numbers) + 1)


def cite(
    answer: str,
    evidence: Evidence,
    allowed: Sequence[int],
    *,
    encoder: Encoder | None = None,
    attention: Looks | None = None,
    least_support: float = 0.45,
    keep_unsupported: bool = False,
    boxes: Boxes | None = None,
) -> Cited:
    """Cite a generated answer.

    allowed: indices of the evidence sentences that the reader was shown. A sentence of the answer
    that none of them supports is dropped, or kept without a marker if keep_unsupported is set.
    attention: what a local model looked at while it wrote.
    """
    bare, removed = strip_markers(answer)
    texts = claims(bare)
    aligned = align(texts, evidence, allowed, encoder, attention)
    dropped: list[Dropped] = []
    kept: list[Claim] = []
    for claim in aligned:
        reason = doubt(claim, least_support)
        if reason:
            dropped.append(Dropped(claim.text, reason))
        if not reason:
            kept.append(claim)
        elif keep_unsupported:
            kept.append(Claim(f"{claim.text} (not supported)", (), claim.support))
    text, citations = write(kept, evidence, boxes)
    return Cited(text, citations, tuple(dropped), removed, tuple(aligned))


def quote(chosen: Sequence[int], evidence: Evidence, boxes: Boxes | None = None) -> Cited:
    """Make an answer of evidence sentences themselves, each cited at its own place."""
    # a quote supports itself
    kept = [Claim(display(evidence.sentences[i].text), (i,), 1.0) for i in chosen]
    text, citations = write(kept, evidence, boxes)
    return Cited(text, citations, claims=tuple(kept))


def strip_markers(answer: str) -> tuple[str, int]:
    """Take out every reference that the model wrote: none of them was checked."""
    removed = len(MARKER.findall(answer))
    return re.sub(r"[ \t]+([.,;:!?])", r"\1", MARKER.sub("", answer)), removed


def claims(answer: str) -> list[str]:
    """Split an answer into sentences without list marks, each once."""
    found: dict[str, None] = {}
    for start, end in sentences(answer):
        text = display(LEADS.sub("", answer[start:end]))
        if terms.words(text):
            found.setdefault(text)
    return list(found)


def display(text: str) -> str:
    """Return a quote for running text: blanks joined, and no bracket that looks like a marker."""
    text = MARKER.sub(lambda m: f"\uff3b{m.group()[1:-1]}\uff3d", text)
    return " ".join(text.split())


def align(
    texts: Sequence[str],
    evidence: Evidence,
    allowed: Sequence[int],
    encoder: Encoder | None,
    attention: Looks | None = None,
) -> list[Claim]:
    """Find for each claim the sentence that supports it best, and others for what that lacks."""
    cosines = None
    if encoder is not None and evidence.vectors is not None and texts and allowed:
        cosines = encoder.encode(list(texts)) @ evidence.vectors[list(allowed)].T  # (claims, a)
    made = []
    for row, text in enumerate(texts):
        looked = attention.shares(text, allowed) if attention is not None else {}
        scored = []
        for column, i in enumerate(allowed):
            meaning = float(cosines[row, column]) if cosines is not None else None
            parts = compare(text, evidence.sentences[i], evidence.question, meaning)
            if looked:
                parts["looked"] = looked.get(i, 0.0)
            scored.append((worth(parts), -i, parts))
        made.append(best_support(text, scored, evidence))
    return made


def best_support(
    text: str, scored: Sequence[tuple[float, int, Mapping[str, float]]], evidence: Evidence
) -> Claim:
    """Take the best sentence, and up to two more that hold names or numbers it lacks.

    scored: (worth, minus the sentence's index, parts).
    """
    needs = required(text, evidence.question)
    if not scored:
        return Claim(text, (), 0.0, needs)
    ranked = sorted(scored, key=lambda one: one[:2], reverse=True)
    # a sentence that holds all that is needed goes before one that only reads alike
    ranked.sort(key=lambda one: len(needs - held(evidence.sentences[-one[1]])))
    support, first, parts = ranked[0]
    used, missing = [-first], needs - held(evidence.sentences[-first])
    for _ in range(2):
        if not missing:
            break
        gains = [(len(missing & held(evidence.sentences[-i])), s, i) for s, i, _ in ranked]
        gain, _, i = max(gains)
        if not gain:
            break
        used.append(-i)
        missing -= held(evidence.sentences[-i])
    return Claim(text, tuple(used), min(1.0, support), missing, parts)


def compare(
    text: str, sentence: Sentence, question: Question, meaning: float | None
) -> dict[str, float]:
    """Compare a claim with a sentence: meaning, words, bearing, and whether only one denies."""
    claimed = terms.terms(text)
    have = sentence.terms | frozenset(terms.terms(title_of(sentence.passage)))
    weight = {t: 0.4 if t in question.weights else 1.0 for t in claimed}
    total = sum(weight.values())
    overlap = sum(w for t, w in weight.items() if t in have) / total if total else 0.0
    near = max(0.0, meaning) if meaning is not None else overlap
    denies = bool(NEGATION & set(terms.words(text)))
    differ = denies != bool(NEGATION & set(terms.words(sentence.text)))
    return {"meaning": near, "overlap": overlap, "bearing": sentence.score, "denies": float(differ)}


def worth(parts: Mapping[str, float]) -> float:
    """Return how well a sentence supports a claim, 0..1, a little more where looked at."""
    value = MEANING * parts["meaning"] + OVERLAP * parts["overlap"] + BEARING * parts["bearing"]
    value += LOOKED * parts.get("looked", 0.0) - NEGATION_COST * parts["denies"]
    return max(0.0, value)


def required(text: str, question: Question) -> frozenset[str]:
    """Return the names and numbers of a claim that the question did not give."""
    return (terms.names(text) | terms.numbers(text)) - question.words


def held(sentence: Sentence) -> frozenset[str]:
    """Return what a sentence can vouch for: its words and numbers, and the names of its title."""
    return (
        frozenset(terms.words(sentence.text))
        | terms.numbers(sentence.text)
        | frozenset(w for w in terms.words(title_of(sentence.passage)) if not w[0].isdigit())
    )


def doubt(claim: Claim, least_support: float) -> str:
    """Say why a claim is not supported; empty if it is."""
    if not claim.evidence:
        return "no passage was shown"
    if claim.missing:
        return f"not in the passages: {', '.join(sorted(claim.missing))}"
    if claim.support < least_support:
        return f"support {claim.support:.2f} is under {least_support:.2f}"
    return ""


def write(
    kept: Sequence[Claim], evidence: Evidence, boxes: Boxes | None
) -> tuple[str, tuple[Citation, ...]]:
    """Join claims and their markers, and make the citations that the markers name."""
    text, made = "", []
    numbering = Numbering()
    for claim in kept:
        start = len(text) + 1 if text else 0
        text = f"{text} {claim.text}" if text else claim.text
        sentence_span = (start, start + len(claim.text))
        markers: dict[int, None] = {}
        for i in claim.evidence:
            sentence = evidence.sentences[i]
            marker = numbering.of(sentence)
            markers.setdefault(marker)
            made.append(point(marker, sentence, sentence_span, claim.support, boxes))
        text += "".join(f" [{marker}]" for marker in markers)
    return text, tuple(made)


def point(
    marker: int,
    sentence: Sentence,
    sentence_span: tuple[int, int],
    support: float,
    boxes: Boxes | None,
) -> Citation:
    """Make the citation of one verbatim sentence, with its page and boxes where they are known."""
    locator = sentence.passage.locator
    page, places = locator.page, tuple(locator.boxes)
    if boxes is not None:
        found = list(boxes(sentence.passage.source.id, sentence.span))
        if found:
            page = found[0][0]
            places = tuple(box for number, box in found if number == page)
    return Citation(
        marker=marker,
        quote=sentence.text,
        passage=sentence.passage,
        span=sentence.span,
        sentence=sentence_span,
        page=page,
        boxes=places,
        support=min(1.0, support),
    )
