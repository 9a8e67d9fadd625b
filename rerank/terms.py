"""Words of queries and passages for features of relevance, with how common each is in English."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foveate.pipeline.types import Passage

WORDS = Path(__file__).parent / "weights" / "words.tsv"

_WORD = re.compile(r"\w+")
_BRACKETS = re.compile(r"\(.*?\)")
_ENDINGS = (
    ("sses", "ss"), ("ies", "y"), ("ations", "ate"), ("ation", "ate"), ("ingly", ""),
    ("edly", ""), ("ing", ""), ("ed", ""), ("ly", ""), ("es", "e"), ("s", ""),
)  # fmt: skip
_UNSEEN = 2  # passages in which a word is taken to stand that the list lacks
_STOPS = (
    "a about above after again all also am an and any are as at be because been before being "
    "below between both but by can could did do does doing down during each few for from further "
    "had has have having he her here hers him his how i if in into is it its itself just me more "
    "most my no nor not now of off on once only or other our out over own same she should so some "
    "such than that the their them then there these they this those through to too under until up "
    "very was we were what when where which while who whom whose why will with would you your"
)


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The stems of a passage. name: of its title without what is in brackets."""

    title: tuple[str, ...]
    text: tuple[str, ...]
    name: tuple[str, ...]
    counts: Mapping[str, int]

    @property
    def joined(self) -> str:
        return f" {' '.join(self.text)} "


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Cut an English word's ending by a few rules; other scripts stay."""
    if len(word) <= 3 or not word.isascii():
        return word
    for ending, stays in _ENDINGS:
        if not word.endswith(ending) or len(word) - len(ending) < 3:
            continue
        if ending == "s" and word.endswith(("ss", "us", "is")):
            continue
        word = word[: -len(ending)] + stays
        doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz"
        if ending in ("ing", "ed", "ingly", "edly") and doubled:
            word = word[:-1]
        break
    if word.endswith("e") and len(word) > 4:
        word = word[:-1]
    if word.endswith("y") and len(word) > 4:
        word = word[:-1] + "i"
    return word


STOPS = frozenset(stem(word) for word in _STOPS.split()) | frozenset(_STOPS.split())


def stems(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text.casefold())]


def words_of(passage: Passage) -> Words:
    """Read a passage; its title is its context, else its source's title."""
    return _read(passage.context or passage.source.title or "", passage.text)


@lru_cache(maxsize=4096)
def _read(title: str, text: str) -> Words:
    # the last few thousand are kept: a list's hits come again
    head, body = tuple(stems(title)), tuple(stems(text))
    counts = Counter(body)
    for word in head:
        counts[word] += 2
    return Words(head, body, tuple(stems(_BRACKETS.sub("", title))), counts)


@cache
def _common() -> tuple[int, dict[str, int]]:
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines[1:])
    return int(lines[0]), {word: int(n) for word, n in pairs}


@lru_cache(maxsize=100_000)
def rarity(word: str) -> float:
    """Return the inverse document frequency of a stem in English text."""
    n, counts = _common()
    return math.log((n + 1) / (counts.get(word, _UNSEEN) + 0.5))


def total(words: Iterable[str]) -> float:
    return sum(map(rarity, words))


def content(words: Sequence[str]) -> list[str]:
    """Return the distinct words that say something; all where none does."""
    distinct = list(dict.fromkeys(words))
    return [word for word in distinct if word not in STOPS] or distinct


def digits_or_capitals(text: str) -> set[str]:
    """Return the stems of names and numbers: words with a capital or a digit, but the first."""
    found = _WORD.findall(text)
    named = [
        w for i, w in enumerate(found) if any(c.isdigit() for c in w) or (i and w[0].isupper())
    ]
    return {stem(word.casefold()) for word in named} - STOPS


def best_window(words: Sequence[str], weights: Mapping[str, float], width: int = 25) -> float:
    """Return the largest weight of distinct words within so many words of each other."""
    places = [(i, word) for i, word in enumerate(words) if word in weights]
    best = 0.0
    for first, (start, _) in enumerate(places):
        seen: set[str] = set()
        for place, word in places[first:]:
            if place - start > width:
                break
            seen.add(word)
        best = max(best, sum(weights[word] for word in seen))
    return best
