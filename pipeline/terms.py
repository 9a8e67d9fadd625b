"""Words, names and numbers of a text, as questions, evidence and answers are compared by them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

Wanted = Literal["person", "time", "place", "number", "yes-no", "other"]

TOKEN = re.compile(r"\d+(?:[.,]\d+)*(?![^\W\d_])|[^\W_]+")
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f]")
NAME = re.compile(
    r"(?:[^\W\d_]*[A-Z\u00c0-\u00de\u0400-\u042f][^\W_]*)(?:['\u2019&.-][^\W_]+)*", re.UNICODE
)
SENTENCE_START = re.compile(r"(?:^|[.!?:;]['\"\u201d\u2019)]*\s+|\n\s*|[\"\u201c(]\s*)$")

STOP_WORDS = (
    "a about after all also an and any are as at be been before being between both but by can "
    "could did do does doing for from had has have having he her hers him his how i if in into is "
    "it its itself just me more most my no nor not of on one only or other our out over own s "
    "same she should so some such t than that the their them then there these they this those "
    "through to too under until up us very was we were what when where which while who whom whose "
    "why will with would you your name called known many much long old kind type"
)
STOP = frozenset(STOP_WORDS.split())
AUXILIARY_WORDS = (
    "am are can could did do does had has have is may might must shall should was were will would"
)
AUXILIARY = frozenset(AUXILIARY_WORDS.split())
DETERMINER_WORDS = "a an the this that these those my your his her its our their all"
DETERMINERS = frozenset(DETERMINER_WORDS.split())
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
DIGITS = {word: str(value) for value, word in enumerate(NUMBER_WORDS.split())}
MONTH = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
)
TIME = re.compile(
    rf"\b(?:1[0-9]|20)\d\ds?\b|\b{MONTH}\.?\s+\d|\b\d{{1,2}}\s+{MONTH}\b"
    r"|\b\d{1,2}(?:st|nd|rd|th) century\b|\b\d+\s?(?:bc|bce|ad|ce)\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
    re.IGNORECASE,
)
PLACE = re.compile(
    r"\b(?:in|at|near|from|of|to|on|located|between|outside)\s+(?:the\s+)?(?:[a-z]+\s+)?"
    r"([A-Z\u00c0-\u00de][\w'\u2019-]+)"
)
PEOPLE = re.compile(
    r"\b[A-Z\u00c0-\u00de][\w'\u2019-]+(?:\s+(?:[A-Z]\.\s+)*[A-Z\u00c0-\u00de][\w'\u2019-]+)+"
)
ASKS: tuple[tuple[Wanted, re.Pattern[str]], ...] = (
    (
        "time",
        re.compile(r"\b(?:when|(?:what|which)\b[^?]{0,20}\b(?:year|date|day|month|century))\b"),
    ),
    (
        "number",
        re.compile(
            r"\bhow (?:many|much|long|old|tall|far|fast|high|large|big|deep|often|wide)\b"
            r"|\bwhat (?:is|was|are|were) the (?:\w+ )?(?:number|population|percentage|height|age|"
            r"length|size|cost|price|distance|speed|temperature|amount|total)\b"
        ),
    ),
    (
        "place",
        re.compile(
            r"\bwhere\b|\b(?:what|which)\b[^?]{0,16}\b(?:country|city|state|town|place|county|"
            r"continent|province|island|river|village)\b"
        ),
    ),
    ("person", re.compile(r"\b(?:who|whom|whose)\b")),
    (
        "yes-no",
        re.compile(
            r"^\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b"
        ),
    ),
)


def plain(text: str) -> str:
    """Return the text case-folded, in compatibility form and without accents."""
    folded = unicodedata.normalize("NFKD", text.casefold().replace("\u2019", "'"))
    return "".join(c for c in folded if not unicodedata.combining(c))


def stem(word: str) -> str:
    """Cut the commonest English endings, so that `limits`, `limited` and `limit` agree."""
    if word.isdigit() or len(word) < 4:
        return word
    for ending, least in (("ies", 3), ("ing", 4), ("ed", 4), ("es", 4), ("ly", 5), ("s", 3)):
        if word.endswith(ending) and len(word) - len(ending) >= least - 1:
            if ending == "s" and word.endswith(("ss", "us", "is")):
                break
            word = word[: -len(ending)] + ("y" if ending == "ies" else "")
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    return word[:-1] if len(word) > 4 and word.endswith("e") else word


def words(text: str) -> list[str]:
    """Return every word as it is compared; Chinese, Japanese and Thai as pairs of characters."""
    found: list[str] = []
    for match in TOKEN.finditer(plain(text)):
        word = match.group()
        if CJK.search(word):
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        elif word[0].isdigit():
            found.append(word.replace(",", ""))
        else:
            found.append(word)
    return found


def terms(text: str) -> list[str]:
    """Return the stems of the content words, in order, with repeats."""
    return [stem(word) for word in words(text) if word not in STOP]


def numbers(text: str) -> frozenset[str]:
    """Return the numbers as digits without separators; `three` counts as 3."""
    found = set()
    for word in words(text):
        if word[0].isdigit():
            found.add(word)
        elif word in DIGITS:
            found.add(DIGITS[word])
    return frozenset(found)


def names(text: str) -> frozenset[str]:
    """Return the words of names: capitalised and not merely first in a sentence."""
    found: set[str] = set()
    matches = list(NAME.finditer(text))
    for i, match in enumerate(matches):
        word = match.group()
        first = bool(SENTENCE_START.search(text[max(0, match.start() - 8) : match.start()]))
        follows = i + 1 < len(matches) and text[match.end() : matches[i + 1].start()] == " "
        inner = any(c.isupper() for c in word[1:])
        if first and not follows and not inner:
            continue
        found.update(part for part in words(word) if part not in STOP)
    return frozenset(found)


def subject(question: str) -> str | None:
    """Return the word that the first auxiliary verb speaks of: `tomatoes` of `do tomatoes keep`.

    None where a pronoun or nothing follows it.
    """
    asked = words(question)
    for place, word in enumerate(asked[:-1]):
        if word in AUXILIARY:
            rest = [w for w in asked[place + 1 :] if w not in DETERMINERS]
            return rest[0] if rest and rest[0] not in STOP else None
    return None


def wanted(question: str) -> Wanted:
    """Say what kind of thing a question asks for."""
    low = question.casefold()
    for kind, pattern in ASKS:
        if pattern.search(low):
            return kind
    return "other"


def offers(text: str, kind: Wanted, known: Iterable[str]) -> bool:
    """Whether a sentence holds a thing of the kind that a question asks for.

    known: words of the question; a name or number that the question gives is no answer to it.
    """
    old = set(known)
    if kind == "time":
        return any(not set(words(m.group())) <= old for m in TIME.finditer(text))
    if kind == "number":
        return bool(numbers(text) - old)
    if kind == "person":
        return any(not set(words(m.group())) <= old for m in PEOPLE.finditer(text))
    if kind == "place":
        return any(not set(words(m.group(1))) <= old for m in PLACE.finditer(text))
    return True
