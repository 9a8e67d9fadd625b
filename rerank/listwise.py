"""Rerank by asking a generator: for the order of a list, or for a grade of each passage.

Whatever the generator says, every hit comes back once: what it names twice counts once, what it
does not name follows in the order it had, and what it invents is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from foveate.pipeline.errors import ConfigError
from foveate.rerank.cross import encoded
from foveate.rerank.in_context import by_score

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Hit

_NUMBER = re.compile(r"\d+")
_GRADE = re.compile(r"\d+(?:\.\d+)?")
_YES = re.compile(r"\b(yes|no|relevant|irrelevant)\b", re.IGNORECASE)
BEST_GRADE = 10


class Listwise:
    """Order hits by the order that a generator writes (RankGPT, arXiv 2304.09542).

    Lists longer than `window` are sorted from their end in windows that overlap by half.
    `scores["listwise"]` is minus the rank; `score` is 1 / rank.

    Args:
        window: passages of one question to the generator.
        n_words: of each passage that are shown.
    """

    name = "listwise"
    reads = frozenset({"text", "table"})

    def __init__(self, resources: Resources, *, window: int = 10, n_words: int = 120) -> None:
        if window < 2 or n_words < 1:
            raise ConfigError(f"expected window >= 2 and n_words >= 1, got {window} and {n_words}")
        self._resources, self._window, self._n_words = resources, window, n_words

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first."""
        found = list(hits)
        step = max(1, self._window // 2)
        first = max(0, len(found) - self._window)
        while len(found) > 1:
            part = found[first : first + self._window]
            found[first : first + self._window] = self._sorted(query, part)
            if not first:
                break
            first = max(0, first - step)
        ranks = [-float(rank) for rank in range(1, len(found) + 1)]
        return by_score(found, ranks, self.name, lambda value: -1 / value)[:k]

    def _sorted(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        listed = "\n".join(
            f"[{number}] {shown(hit, self._n_words)}" for number, hit in enumerate(hits, start=1)
        )
        asked = (
            f"Passages, each on a line of its own:\n{listed}\n\nQuestion: {query}\n"
            "Write the numbers of the passages, the most helpful first, like [2] > [1]. "
            "Write nothing else."
        )
        said = say(self._resources, asked, 8 * len(hits) + 16)
        return [hits[i] for i in read_order(said, len(hits))]


class Pointwise:
    """Order hits by the grade from 0 to 10 that a generator gives each.

    A reply without a number is read as yes (10) or no (0), and counts half where it is neither.
    `scores["pointwise"]` is the grade; `score` a tenth of it. Equal grades keep their order.
    """

    name = "pointwise"
    reads = frozenset({"text", "table"})

    def __init__(self, resources: Resources, *, n_words: int = 200) -> None:
        self._resources, self._n_words = resources, n_words

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first; equal grades in the order they had."""
        grades = [self._grade(query, hit) for hit in hits]
        order = sorted(range(len(hits)), key=lambda i: -grades[i])
        places = {hits[i].passage.id: place for place, i in enumerate(order)}
        found = by_score(hits, grades, self.name, lambda grade: grade / BEST_GRADE)
        return sorted(found, key=lambda hit: places[hit.passage.id])[:k]

    def _grade(self, query: str, hit: Hit) -> float:
        asked = (
            f"Passage: {shown(hit, self._n_words)}\n\nQuestion: {query}\n"
            f"How well does the passage help to answer the question, from 0 to {BEST_GRADE}? "
            "Write one number."
        )
        return read_grade(say(self._resources, asked, 8))


def shown(hit: Hit, n_words: int) -> str:
    """Return the first words of a passage on one line, so that it cannot pass for another."""
    words = encoded(hit).split()[:n_words]
    return re.sub(r"\[(\d+)\]", r"(\1)", " ".join(words))


def say(resources: Resources, asked: str, max_tokens: int) -> str:
    messages: list[Mapping[str, str]] = [{"role": "user", "content": asked}]
    return "".join(resources.generator().generate(messages, max_tokens=max_tokens))


def read_order(said: str, n: int) -> list[int]:
    """Return a permutation of range(n) from what was said."""
    named = [int(m.group()) - 1 for m in _NUMBER.finditer(said)]
    valid = dict.fromkeys(i for i in named if 0 <= i < n)
    return [*valid, *(i for i in range(n) if i not in valid)]


def read_grade(said: str) -> float:
    """Return a grade, 0 to 10, from what was said."""
    number = _GRADE.search(said)
    if number is not None:
        return min(float(BEST_GRADE), float(number.group()))
    word = _YES.search(said)
    if word is None:
        return BEST_GRADE / 2
    return float(BEST_GRADE) if word.group().lower() in ("yes", "relevant") else 0.0
