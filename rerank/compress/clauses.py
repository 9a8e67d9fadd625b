"""Cut sentences into clauses, and find in them what could answer a question."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from foveate.rerank.compress.words import plain

if TYPE_CHECKING:
    from foveate.rerank.compress.units import Span

Asked = Literal["time", "number", "place", "person", "other"]
ASKED: tuple[Asked, ...] = ("time", "number", "place", "person", "other")

# a clause begins after these
BREAK = re.compile(
    r"[,;:]\s+|\s+[\u2013\u2014-]+\s+|\s+(?=\()|(?<=\))\s+"
    r"|\s+(?=(?:and|but|or|which|who|whom|whose|where|while|when|after|before|because|although|as"
    r"|during|until|since)\s)",
    re.IGNORECASE,
)
LEAST_WORDS, MOST_WORDS = 3, 9
WORD = re.compile(r"\S+")
PREPOSITIONS = frozenset(
    ["with", "that", "for", "from", "by", "in", "on", "at", "to", "into", "under", "about", "than"]
)
OPENERS = "(\"'\u201c\u2018["

MONTHS = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
TIME = re.compile(
    rf"\b(?:\d{{1,2}}\s+{MONTHS}\b(?:,?\s+\d{{3,4}})?|{MONTHS}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?\b"
    rf"(?:,?\s+\d{{3,4}})?|{MONTHS}\.?,?\s+\d{{4}}|(?:1[0-9]|20)\d\ds?"
    r"|\d{1,2}(?:st|nd|rd|th)\s+century|\d+\s?(?:bc|bce|ad|ce))\b",
    re.IGNORECASE,
)
NUMBER = re.compile(
    r"(?<![\w.])[$\u20ac\u00a3]?\d+(?:[.,]\d+)*%?|\b(?:two|three|four|five|six|seven|eight|nine|ten"
    r"|eleven|twelve|hundreds?|thousands?|millions?|billions?)\b",
    re.IGNORECASE,
)
NAME = re.compile(
    r"[^\W\d_a-z][\w'\u2019.&-]*\w"
    r"(?:\s+(?:(?:of|the|de|la|le|du|von|van|der|bin|al|y|&)\s+){0,2}[^\W\d_a-z][\w'\u2019.&-]*\w"
    r"|\s+[IVX]+\b)*"
)
QUOTED = re.compile(r"[\"\u201c]([^\"\u201d]{2,60})[\"\u201d]")
PLACE = re.compile(r"\b(?:in|at|near|from|of|to|on|outside|between)\s+(?:the\s+)?(?=[A-Z])")
OPENING_WORDS = (
    "the a an in on at he she it they his her its their this that these those after before while "
    "when as for from by with during since although however there and but i we"
)
STARTERS = frozenset(OPENING_WORDS.split())
ASKS: tuple[tuple[Asked, re.Pattern[str]], ...] = (
    (
        "time",
        re.compile(r"\bwhen\b|\b(?:what|which)\b[^?]{0,20}\b(?:year|date|day|month|century)\b"),
    ),
    (
        "number",
        re.compile(
            r"\bhow (?:many|much|long|old|tall|far|fast|high|large|big|deep|often|wide)\b"
            r"|\b(?:what|which)\b[^?]{0,12}\b(?:number|population|percentage|height|age|length|size"
            r"|cost|price|distance|speed|temperature|amount|total|rank|score)\b"
        ),
    ),
    (
        "place",
        re.compile(
            r"\bwhere\b|\b(?:what|which)\b[^?]{0,20}\b(?:country|city|state|town|place|county|area"
            r"|continent|province|island|river|village|district|region|location|municipality|lake"
            r"|sea|ocean|mountain|street|neighborhood|capital)\b"
        ),
    ),
    ("person", re.compile(r"\b(?:who|whom|whose)\b")),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a clause holds: keys of names, times, numbers and quoted titles that could answer."""

    times: frozenset[str]
    numbers: frozenset[str]
    names: frozenset[str]
    quoted: frozenset[str]

    @property
    def keys(self) -> frozenset[str]:
        return self.times | self.numbers | self.names | self.quoted


def asked(question: str) -> Asked:
    """Say what kind of thing a question asks for."""
    low = question.casefold()
    return next((kind for kind, pattern in ASKS if pattern.search(low)), "other")


def clauses(text: str, span: Span) -> list[Span]:
    """Cut a sentence into clauses of a few words and more, which tile it.

    Names and dates with a comma in them, and pairs of names, stay whole.
    """
    start, end = span
    cuts = [start]
    for match in BREAK.finditer(text, start, end):
        at = match.end()
        before = text[cuts[-1] : match.start()].split()
        after = text[at : at + 60].split()[:2]
        if len(text[cuts[-1] : at].split()) < LEAST_WORDS or not after:
            continue
        if match.group().startswith(",") and _named(before[-1]) and _named(after[0]):
            continue
        pair = after[0].lower() in ("and", "or") and len(after) > 1
        if pair and before[-1][:1].isupper() and after[1][:1].isupper():
            continue
        cuts.append(at)
    if len(cuts) > 1 and len(text[cuts[-1] : end].split()) < LEAST_WORDS:
        cuts.pop()
    cuts.append(end)
    parts = [part for pair in itertools.pairwise(cuts) for part in _halves(text, *pair)]
    return [_without_tail(text, *part) for part in parts]


def _halves(text: str, start: int, end: int) -> Iterator[Span]:
    """Cut what is long in two, again and again, where a phrase begins nearest the middle.

    Where there is none, between words of which at most one belongs to a name or number.
    """
    words = [m.span() for m in WORD.finditer(text, start, end)]
    if len(words) <= MOST_WORDS:
        yield start, end
        return
    middle = len(words) / 2
    inner = range(LEAST_WORDS, len(words) - LEAST_WORDS + 1)
    phrases = [i for i in inner if text[slice(*words[i])].lower() in PREPOSITIONS]
    pairs = [
        i
        for i in inner
        if not (_named(text[slice(*words[i - 1])]) and _named(text[slice(*words[i])]))
    ]
    near = [i for i in phrases if abs(i - middle) <= middle / 2] or pairs or list(inner)
    at = words[min(near, key=lambda i: abs(i - middle))][0]
    yield from _halves(text, start, at)
    yield from _halves(text, at, end)


def _named(word: str) -> bool:
    first = word.lstrip(OPENERS)[:1]
    return first.isupper() or first.isdigit()


def _without_tail(text: str, start: int, end: int) -> Span:
    return start, start + len(text[start:end].rstrip())


def find(text: str) -> Found:
    """Return what could answer a question in a text, as keys that compare."""
    times = frozenset(plain(m.group()) for m in TIME.finditer(text))
    numbers = frozenset(plain(m.group()) for m in NUMBER.finditer(text))
    quoted = frozenset(plain(m.group(1)) for m in QUOTED.finditer(text))
    return Found(times, numbers - times, frozenset(names(text)), quoted)


def names(text: str) -> Iterator[str]:
    """Yield capitalised runs of words, without the word that merely begins a sentence."""
    for match in NAME.finditer(text):
        parts = plain(match.group()).split()
        while parts and parts[0] in STARTERS:
            parts = parts[1:]
        if parts:
            yield " ".join(parts)
