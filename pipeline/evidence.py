"""Find the sentences of the hits that bear on a question, and fit them into a reader's window."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from foveate.pipeline import terms
from foveate.pipeline.errors import QueryError
from foveate.pipeline.ingest.sentences import sentences

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Floats, Hit, Passage

Span: TypeAlias = tuple[int, int]

# weights of a sentence's score: round figures from the flat top of a grid, hotpot and nq20
WEIGHTS: Mapping[str, float] = {
    "dense": 0.5,
    "overlap": 0.25,
    "context": 0.1,
    "hit": 0.15,
    "kind": 0.12,
}
# how much open terms and a followed name add to a further sentence, and how near the best one it
# must come: chosen on the same questions
OPEN, LINK, NEAR = 0.3, 0.5, 0.85
LONGEST_SENTENCE = 1200  # code points: text without sentence ends is cut, or one quote is a page
LONGEST_RECORD = 300
RECORD = re.compile(r"[^\s:][^:\n]{0,59}: .*(?:\n[^\s:][^:\n]{0,59}: .*)+")
TITLE_CHARS = 80
MOST_SENTENCES = 160  # encoded for one question; the rest are left out by word overlap


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
    None without an encoder. space: the encoder's. notes: what was left out and why.
    """

    question: Question
    sentences: tuple[Sentence, ...]
    vectors: Floats | None
    query: Floats | None
    notes: tuple[str, ...] = ()
    space: str | None = None

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
    kept: Mapping[int, Sequence[tuple[int, int]]] | None = None,
    whole: bool = False,
) -> Evidence:
    """Split the hits into sentences and score each against the question.

    kept: by passage id, the spans of the source that a compressor kept; what it left out is not
    evidence. None takes all. whole: a sentence of which a part was kept is evidence as a whole, for
    quotes: half a sentence is a bad one.
    """
    notes: list[str] = []
    found = split(hits, texts, notes, kept, touching if whole else within)
    asked = understand(question, hits)
    if len(found) > MOST_SENTENCES:
        keep = sorted(
            range(len(found)),
            key=lambda i: (-cover(asked.weights, found[i].terms), found[i].hit, i),
        )[:MOST_SENTENCES]
        notes.append(f"{len(found) - MOST_SENTENCES} sentences left out by word overlap")
        found = [found[i] for i in sorted(keep)]
    vectors = query = None
    cosines: list[float | None] = [None] * len(found)
    if encoder is not None and "text" in encoder.reads and found:
        vectors = encoder.encode([readable(s) for s in found])
        query = encoder.encode_queries([question])[0]
        cosines = (vectors @ query).tolist()
    around = {
        i: cover(asked.weights, frozenset(terms.terms(f"{h.passage.context} {h.passage.text}")))
        for i, h in enumerate(hits)
    }
    scored = tuple(
        score(asked, s, cosine, around[s.hit], hits[s.hit].score)
        for s, cosine in zip(found, cosines, strict=True)
    )
    space = encoder.space if encoder is not None and vectors is not None else None
    return Evidence(asked, scored, vectors, query, tuple(notes), space)


def readable(sentence: Sentence) -> str:
    """Return a sentence behind its title, which says whom a `he` or `it` in it means."""
    title = " ".join(title_of(sentence.passage).split())[:TITLE_CHARS]
    return f"{title}: {sentence.text}" if title else sentence.text


def title_of(passage: Passage) -> str:
    """Return what a passage is about: its headings, or its source's title where its text has it."""
    return passage.context or passage.source.title or ""


def understand(question: str, hits: Sequence[Hit]) -> Question:
    """Weigh the question's terms by how few of the candidates hold them."""
    df: Counter[str] = Counter()
    for hit in hits:
        df.update(set(terms.terms(f"{hit.passage.context} {hit.passage.text}")))
    n = len(hits)
    asked = dict.fromkeys(terms.terms(question))
    weights = {t: math.log(1 + (n - df[t] + 0.5) / (df[t] + 0.5)) + 0.1 for t in asked}
    return Question(question, terms.wanted(question), frozenset(terms.words(question)), weights)


def within(spans: Sequence[Span], kept: Sequence[Span]) -> list[Span]:
    """Return the parts of some spans that lie inside others."""
    cut = ((max(a, c), min(b, d)) for a, b in spans for c, d in kept)
    return [(start, end) for start, end in cut if start < end]


def touching(spans: Sequence[Span], kept: Sequence[Span]) -> list[Span]:
    """Return those of some spans of which a part lies inside others."""
    return [(a, b) for a, b in spans if any(max(a, c) < min(b, d) for c, d in kept)]


def split(
    hits: Sequence[Hit],
    texts: Callable[[str], str],
    notes: list[str],
    kept: Mapping[int, Sequence[tuple[int, int]]] | None = None,
    narrow: Callable[[Sequence[Span], Sequence[Span]], list[Span]] = within,
) -> list[Sentence]:
    """Cut each hit's passage into sentences; one place in a source gives one sentence.

    narrow: takes the sentences' spans and the kept ones, and returns those that are evidence.
    """
    found: list[Sentence] = []
    seen: set[tuple[str, tuple[int, int]]] = set()
    for i, hit in enumerate(hits):
        passage = hit.passage
        span = passage.locator.span
        if span is None or not passage.text.strip():
            continue
        try:
            source = texts(passage.source.id)
        except QueryError:
            notes.append(f"{passage.label} left out: it has left the index since it was found")
            continue
        if source[span[0] : span[1]] != passage.text:
            notes.append(f"{passage.label} left out: its text is not at its place in the source")
            continue
        spans = [(span[0] + start, span[0] + end) for start, end in pieces(passage.text)]
        if kept is not None:
            spans = narrow(spans, kept.get(passage.id, ()))
        for start, end in spans:
            text = source[start:end]
            sentence = Sentence(i, passage, (start, end), text, frozenset(terms.terms(text)))
            if sentence.key not in seen:
                seen.add(sentence.key)
                found.append(sentence)
    return found


def pieces(text: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences, without outer blanks, none longer than the limit.

    A short record, `name: value` a line, is one: its values say nothing apart.
    """
    spans: list[tuple[int, int]] = []
    whole = len(text) <= LONGEST_RECORD and RECORD.fullmatch(text.strip())
    for start, end in [(0, len(text))] if whole else sentences(text):
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


def score(
    question: Question, sentence: Sentence, cosine: float | None, around: float, hit: float
) -> Sentence:
    """Return the sentence with its score: a weighted sum of parts that are each 0..1.

    cosine: with the question, None without an encoder. around: part of the question's terms that
    the whole passage holds. hit: the passage's own score.
    """
    asks = question.kind not in ("other", "yes-no")
    parts = {
        "dense": max(0.0, cosine) if cosine is not None else 0.0,
        "overlap": cover(question.weights, sentence.terms),
        "context": around,
        "hit": min(1.0, max(0.0, hit)),
        "kind": float(asks and terms.offers(sentence.text, question.kind, question.words)),
    }
    total = sum(WEIGHTS[name] * value for name, value in parts.items())
    return replace(sentence, score=total / sum(WEIGHTS.values()), parts=parts)


def select(evidence: Evidence, n: int) -> list[int]:
    """Choose at most n sentences that answer together, best first.

    A further sentence must bring something: terms of the question that are still open, or the
    passage that a name in the chosen ones leads to (the second hop of a question). Its score must
    stand near the best one's, so that a plain question gets one sentence.
    """
    ranked = evidence.ranked()
    if not ranked:
        return []
    chosen = ranked[:1]
    best = evidence.sentences[chosen[0]].score
    while len(chosen) < n:
        gains = [(gain(evidence, chosen, i), -i) for i in ranked if i not in chosen]
        value, i = max(gains, default=(0.0, 0))
        if value < NEAR * best:
            break
        chosen.append(-i)
    return chosen


def gain(evidence: Evidence, chosen: Sequence[int], i: int) -> float:
    """Return what a sentence adds to the chosen ones: its score, open terms and a link to them."""
    sentence, asked = evidence.sentences[i], evidence.question
    picked = [evidence.sentences[j] for j in chosen]
    closed = frozenset().union(*(s.terms for s in picked))
    still = {t: w for t, w in asked.weights.items() if t not in closed}
    total = sum(asked.weights.values()) or 1.0
    opened = sum(w for t, w in still.items() if t in sentence.terms) / total
    new = [t for t in sentence.terms if t not in closed]
    fresh = len(new) / len(sentence.terms) if sentence.terms else 0.0
    return (
        sentence.score * (0.5 + 0.5 * fresh) + OPEN * opened + LINK * link(picked, sentence, asked)
    )


def link(picked: Sequence[Sentence], sentence: Sentence, asked: Question) -> float:
    """Whether a passage is about a name that the chosen sentences bring up, 0..1.

    The names of the title, or of the sentence where there is none, are looked for; those of the
    question and of the chosen passages themselves lead nowhere new.
    """
    if any(s.passage.id == sentence.passage.id for s in picked):
        return 0.0
    known = asked.words | frozenset().union(*(terms.words(title_of(s.passage)) for s in picked))
    told = frozenset().union(*(terms.names(s.text) for s in picked)) - known
    title = [w for w in terms.words(title_of(sentence.passage)) if w not in terms.STOP]
    if title:
        return sum(w in told for w in title) / len(title)
    about = terms.names(sentence.text) - known
    return len(about & told) / len(about) if about else 0.0
