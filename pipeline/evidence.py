"""Find the sentences of the hits that bear on a question, and fit them into a reader's window."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foveate.pipeline import terms
from foveate.pipeline.ingest.sentences import sentences

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Floats, Hit, Passage

# weights of a sentence's score, chosen by tests/bench/answer_quality.py --tune on even questions
WEIGHTS: Mapping[str, float] = {
    "dense": 0.45,
    "overlap": 0.35,
    "context": 0.10,
    "hit": 0.10,
    "kind": 0.10,
}
LONGEST_SENTENCE = 1200  # code points: text without sentence ends is cut, or one quote is a page
TITLE_CHARS = 80
MOST_SENTENCES = 256  # encoded for one question; the rest are left out by word overlap


@dataclass(frozen=True, slots=True, eq=False)
class Sentence:
    """A sentence of a hit. span: in the source's canonical text, which holds it verbatim."""

    hit: int
    passage: Passage
    span: tuple[int, int]
    text: str
    terms: frozenset[str]
    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, tuple[int, int]]:
        return self.passage.source.id, self.span


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question as it is compared. weights: rarity of each of its terms among the candidates."""

    text: str
    kind: terms.Wanted
    words: frozenset[str]
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Every sentence of the hits, scored, in the hits' order.

    vectors: (n, d) float32, L2-normalised, row i is sentences[i]; query: (d,) float32; both are
    None without an encoder. notes: what was left out and why.
    """

    question: Question
    sentences: tuple[Sentence, ...]
    vectors: Floats | None
    query: Floats | None
    notes: tuple[str, ...] = ()

    def ranked(self) -> list[int]:
        """Return the sentences' indices, best first."""
        order = range(len(self.sentences))
        return sorted(order, key=lambda i: (-self.sentences[i].score, i))


def gather(
    question: str,
    hits: Sequence[Hit],
    *,
    texts: Callable[[str], str],
    encoder: Encoder | None = None,
) -> Evidence:
    """Split the hits into sentences and score each against the question."""
    notes: list[str] = []
    found = split(hits, texts, notes)
    asked = understand(question, hits)
    if len(found) > MOST_SENTENCES:
        keep = sorted(
            range(len(found)),
            key=lambda i: (-cover(asked.weights, found[i].terms), found[i].hit, i),
        )[:MOST_SENTENCES]
        notes.append(f"{len(found) - MOST_SENTENCES} sentences left out by word overlap")
        found = [found[i] for i in sorted(keep)]
    vectors = query = None
    if encoder is not None and "text" in encoder.reads and found:
        vectors = encoder.encode([readable(s) for s in found])
        query = encoder.encode_queries([question])[0]
    scored = tuple(
        score(asked, s, hits[s.hit], None if vectors is None else float(vectors[i] @ query))
        for i, s in enumerate(found)
    )
    return Evidence(asked, scored, vectors, query, tuple(notes))


def readable(sentence: Sentence) -> str:
    """Return a sentence behind its title, which says whom a `he` or `it` in it means."""
    title = " ".join(sentence.passage.context.split())[:TITLE_CHARS]
    return f"{title}: {sentence.text}" if title else sentence.text


def understand(question: str, hits: Sequence[Hit]) -> Question:
    """Weigh the question's terms by how few of the candidates hold them."""
    df: Counter[str] = Counter()
    for hit in hits:
        df.update(set(terms.terms(f"{hit.passage.context} {hit.passage.text}")))
    n = len(hits)
    asked = dict.fromkeys(terms.terms(question))
    weights = {t: math.log(1 + (n - df[t] + 0.5) / (df[t] + 0.5)) + 0.1 for t in asked}
    return Question(question, terms.wanted(question), frozenset(terms.words(question)), weights)


def split(hits: Sequence[Hit], texts: Callable[[str], str], notes: list[str]) -> list[Sentence]:
    """Cut each hit's passage into sentences; one place in a source gives one sentence."""
    found: list[Sentence] = []
    seen: set[tuple[str, tuple[int, int]]] = set()
    for i, hit in enumerate(hits):
        passage = hit.passage
        span = passage.locator.span
        if span is None or not passage.text.strip():
            continue
        source = texts(passage.source.id)
        if source[span[0] : span[1]] != passage.text:
            notes.append(f"{passage.label} left out: its text is not at its place in the source")
            continue
        for start, end in pieces(passage.text):
            sentence = Sentence(
                i,
                passage,
                (span[0] + start, span[0] + end),
                passage.text[start:end],
                frozenset(terms.terms(passage.text[start:end])),
            )
            if sentence.key not in seen:
                seen.add(sentence.key)
                found.append(sentence)
    return found


def pieces(text: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences, without outer blanks, none longer than the limit."""
    spans: list[tuple[int, int]] = []
    for start, end in sentences(text):
        while end - start > LONGEST_SENTENCE:
            cut = text.rfind(" ", start + LONGEST_SENTENCE // 2, start + LONGEST_SENTENCE)
            cut = cut if cut > start else start + LONGEST_SENTENCE
            spans.append((start, cut))
            start = cut
        spans.append((start, end))
    trimmed = []
    for start, end in spans:
        body = text[start:end]
        first = start + len(body) - len(body.lstrip())
        last = end - len(body) + len(body.rstrip())
        if first < last:
            trimmed.append((first, last))
    return trimmed


def cover(weights: Mapping[str, float], held: frozenset[str]) -> float:
    """Return which part of the terms' weight is held, 0..1."""
    total = sum(weights.values())
    return sum(w for t, w in weights.items() if t in held) / total if total else 0.0


def score(question: Question, sentence: Sentence, hit: Hit, cosine: float | None) -> Sentence:
    """Return the sentence with its score: a weighted sum of parts that are each 0..1."""
    around = frozenset(terms.terms(f"{sentence.passage.context} {sentence.passage.text}"))
    parts = {
        "dense": max(0.0, cosine) if cosine is not None else 0.0,
        "overlap": cover(question.weights, sentence.terms),
        "context": cover(question.weights, around),
        "hit": hit.score,
        "kind": float(
            question.kind not in ("other", "yes-no")
            and terms.offers(sentence.text, question.kind, question.words)
        ),
    }
    total = sum(WEIGHTS[name] * value for name, value in parts.items())
    return Sentence(
        sentence.hit,
        sentence.passage,
        sentence.span,
        sentence.text,
        sentence.terms,
        total / sum(WEIGHTS.values()),
        parts,
    )


def select(evidence: Evidence, n: int) -> list[int]:
    """Choose at most n sentences that answer together, in reading order of their passages.

    The first is the best one. Each further one is the best of those that add something: terms of
    the question still open, or the passage that a name in the chosen ones leads to.
    """
    ranked = evidence.ranked()
    if not ranked:
        return []
    return ranked[:n]
