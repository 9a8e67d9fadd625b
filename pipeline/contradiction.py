"""Passages that contradict each other: alike in words, and different in the very thing asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foveate.pipeline import terms
from foveate.pipeline.evidence import Evidence, Sentence, title_of

ALIKE = 0.75  # of the words of two sentences, besides what they differ in
NEAR = 0.75  # cosine of two sentences, where there are vectors
BEARS = 0.7  # of the cited sentence's score: the other one speaks of the question as well
FEW = 4  # names and numbers that may differ; more and the sentences are about different things


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two sentences of different passages. cited, other: indices; says, denies: what differs."""

    cited: int
    other: int
    says: tuple[str, ...]
    denies: tuple[str, ...]


def find(evidence: Evidence, cited: Sequence[int]) -> list[Conflict]:
    """Return, for each cited sentence, the best sentence elsewhere that says otherwise.

    Two sentences conflict when they share most words, come from different passages, and each holds
    a name or number that the other lacks, of the kind that the question asks for.
    """
    found = []
    for i in dict.fromkeys(cited):
        against = [
            (evidence.sentences[j].score, -j, says, denies)
            for j, says, denies in rivals(evidence, i)
        ]
        if against:
            _, j, says, denies = max(against)
            found.append(Conflict(i, -j, says, denies))
    return found


def rivals(evidence: Evidence, i: int) -> Iterator[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """Yield (index, what only sentence i holds, what only the other holds)."""
    mine = evidence.sentences[i]
    for j, other in enumerate(evidence.sentences):
        if other.passage.id == mine.passage.id or other.score < BEARS * mine.score:
            continue
        if evidence.vectors is not None and float(evidence.vectors[i] @ evidence.vectors[j]) < NEAR:
            continue
        says, denies = difference(mine, other, evidence)
        if says and denies and alike(mine, other, {*says, *denies}) >= ALIKE:
            yield j, says, denies


def difference(
    mine: Sentence, other: Sentence, evidence: Evidence
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and numbers that only one of two sentences holds, none of them asked."""
    kind, known = evidence.question.kind, evidence.question.words
    # two passages about different things do not contradict each other
    subjects = (
        frozenset(terms.words(title_of(mine.passage))),
        frozenset(terms.words(title_of(other.passage))),
    )
    apart = (subjects[0] ^ subjects[1]) - known
    pairs = []
    for one, two in ((mine, other), (other, mine)):
        held = frozenset(terms.words(f"{two.text} {title_of(two.passage)}")) | terms.numbers(
            two.text
        )
        if kind in ("time", "number"):
            own = terms.numbers(one.text)
        else:
            own = terms.names(one.text) | terms.numbers(one.text)
        new = own - held - known
        if new & apart:
            return (), ()
        pairs.append(tuple(sorted(new)))
    if len(pairs[0]) > FEW or len(pairs[1]) > FEW:
        return (), ()
    return pairs[0], pairs[1]


def alike(mine: Sentence, other: Sentence, apart: set[str]) -> float:
    """Return the share of the shorter sentence's words that the other holds, less what differs."""
    sides = [
        {t for t in one.terms if t not in {terms.stem(w) for w in apart}} for one in (mine, other)
    ]
    least = min(len(sides[0]), len(sides[1]))
    return len(sides[0] & sides[1]) / least if least else 0.0
