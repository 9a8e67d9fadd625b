"""Cut a text into the terms that word search matches: the same function for texts and queries.

Words are lower-cased, stemmed by the rules of their language or script, and freed of accents.
Scripts that put no spaces between words give single characters and pairs. A name that is joined
by punctuation (`AB-1234/7`, `node.js`, `user_name`, an address) is one term, and so is each part.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

MAX_TERM_CHARS = 64
_MAX_KEPT = 200_000

_STEMMERS = {
    "ar": "arabic", "da": "danish", "nl": "dutch", "en": "english", "fi": "finnish",
    "fr": "french", "de": "german", "el": "greek", "hu": "hungarian", "it": "italian",
    "no": "norwegian", "nb": "norwegian", "nn": "norwegian", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "es": "spanish", "sv": "swedish", "ta": "tamil",
    "tr": "turkish",
}  # fmt: skip
_OF_SCRIPT = (
    ("\u0370", "\u03ff", "el"),
    ("\u1f00", "\u1fff", "el"),
    ("\u0400", "\u052f", "ru"),
    ("\u0600", "\u06ff", "ar"),
    ("\u0b80", "\u0bff", "ta"),
)
_LATIN = frozenset(_STEMMERS) - {"ar", "el", "ru", "ta"}

# scripts without spaces: kana, Han, Hangul (whose endings cling), Thai, Lao, Myanmar, Khmer
_RUN = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\uac00-\ud7af\u1100-\u11ff"
    "\U00020000-\U0003ffff"
)
_EMOJI = "\u2600-\u27bf\u2b00-\u2bff\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff"
_SPECIAL = str.maketrans(
    {
        "\u00df": "ss", "\u00f8": "o", "\u00e6": "ae", "\u0153": "oe", "\u0142": "l",
        "\u0111": "d", "\u00fe": "th", "\u00f0": "d", "\u0131": "i", "\u0623": "\u0627",
        "\u0625": "\u0627", "\u0622": "\u0627", "\u0649": "\u064a", "\u0629": "\u0647",
        "\u0640": None, "\u03c2": "\u03c3",
    }
)  # fmt: skip

# what people leave out of a query in their head: kept in the index, left out of a query that
# says something else besides
STOP_WORDS = frozenset(
    word
    for line in (
        "a about above after again all also am an and any are as at be because been before",
        "being below between both but by can could did do does doing down during each few for",
        "from further had has have having he her here hers him his how i if in into is it its",
        "itself just me more most my no nor not now of off on once only or other our out over",
        "own same she should so some such than that the their them then there these they this",
        "those through to too under until up very was we were what when where which while who",
        "whom why will with would you your",
    )
    for word in line.split()
)


def _letters() -> str:
    """List the characters of words as ranges: letters, digits and combining marks.

    Python's `isalnum` leaves out the vowel signs of Hindi, and holds the scripts that need runs.
    """
    run = re.compile(f"[{_RUN}{_EMOJI}\ufe00-\ufe0f]")
    ranges: list[list[int]] = []
    for code in range(0x80, 0x20000):
        char = chr(code)
        if not (char.isalnum() or unicodedata.category(char) in ("Mn", "Mc")) or run.match(char):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "a-zA-Z0-9" + "".join(f"{chr(a)}-{chr(b)}" for a, b in ranges)


_JOINS = "-_./@':&+#" + "\\\\" + "\u2019\u2010-\u2015"
_NUMBER = r"\d+(?:[.,]\d+)+"


def _token(letters: str) -> str:
    join = f"(?:[{_JOINS}]|(?<=[0-9]),(?=[0-9]))"
    return rf"[{letters}]+(?:{join}[{letters}]+)*(?:\+\+|\#|\+)?"


@cache
def _patterns(is_ascii: bool) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a token and of its parts. ASCII's own are ten times as fast."""
    letters = "a-zA-Z0-9" if is_ascii else _letters()
    parts = re.compile(rf"{_NUMBER}(?![{letters}])|[{letters}]+")
    if is_ascii:
        return re.compile(_token(letters)), parts
    return re.compile(rf"{_token(letters)}|[{_RUN}]+|[{_EMOJI}]"), parts


@cache
def _run() -> re.Pattern[str]:
    return re.compile(f"[{_RUN}]")


def _in_run(token: str) -> bool:
    return not token.isascii() and _run().match(token) is not None


@cache
def _stemmer(language: str) -> Callable[[str], list[str]]:
    import tantivy

    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw())
    analyse: Callable[[str], list[str]] = (
        builder.filter(tantivy.Filter.stemmer(_STEMMERS[language])).build().analyze
    )
    return analyse


def fold(word: str) -> str:
    """Take the accents and points off a word of a script where people leave them out."""
    if word.isascii():
        return word
    word = word.translate(_SPECIAL)
    if not word:
        return word
    if max(word) >= "\u0900" and not any("\u1e00" <= c <= "\u1fff" for c in word):
        return word  # in the scripts of India and beyond, marks are vowels
    plain = unicodedata.normalize("NFD", word)
    return "".join(c for c in plain if unicodedata.category(c) != "Mn")


def _language(word: str, language: str) -> str | None:
    last = max(word)
    if last < "\u0370" or "\u1e00" <= last <= "\u1eff":
        return language if language in _LATIN else None
    return next((code for low, high, code in _OF_SCRIPT if low <= last <= high), None)


def _stems(word: str, language: str) -> list[str]:
    """Return the term of a lower-case word, and that of its plain spelling if it differs."""
    code = _language(word, language)
    stem = fold(_stemmer(code)(word)[0]) if code else fold(word)
    if word.isascii():
        return [stem]
    plain = fold(word)
    if not plain:
        return [word]
    other = fold(_stemmer(code)(plain)[0]) if code and plain else plain
    return [t for t in dict.fromkeys((stem, other)) if t]


class Analyser:
    """Cut texts of one language. What it learns of a word it keeps, as words come back.

    language: a two-letter code; it decides for Latin letters only, other scripts have their own.
    """

    def __init__(self, language: str = "en") -> None:
        self.language = language if language in _STEMMERS else language[:2]
        self._known: dict[str, tuple[str, ...]] = {}

    def tokens(self, text: str) -> list[str]:
        """Return the words, joined names, runs and emoji of a text as they are written."""
        return _patterns(text.isascii())[0].findall(text)

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order, with repeats."""
        found: list[str] = []
        known = self._known
        for token in self.tokens(text):
            terms = known.get(token)
            if terms is None:
                terms = self._cut(token)
                if len(token) <= MAX_TERM_CHARS:
                    if len(known) >= _MAX_KEPT:
                        known.clear()
                    known[token] = terms
            found.extend(terms)
        return found

    def query_terms(self, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (token as written, its terms) for each token of a query.

        A run of a script without spaces gives its pairs only: single characters say little.
        """
        for token in self.tokens(text):
            terms = self._cut(token)
            if len(token) > 1 and _in_run(token):
                terms = tuple(t for t in terms if len(t) > 1)
            yield token, terms

    def _cut(self, token: str) -> tuple[str, ...]:
        if not token[0].isalnum() and not _in_run(token):
            return (token,)
        token = unicodedata.normalize("NFKC", token)
        if len(pieces := token.split()) > 1:
            return tuple(term for piece in pieces for term in self._cut(piece))
        if _in_run(token):
            return _grams(token)
        lower = token.lower().replace("\u2019", "'")
        if lower.isalnum():
            return tuple(_stems(lower[:MAX_TERM_CHARS], self.language))
        return tuple(self._compound(lower))

    def _compound(self, lower: str) -> Iterator[str]:
        parts = _patterns(lower.isascii())[1].findall(lower)
        if not parts:
            return
        if lower.endswith("'s") and len(parts) == 2:
            parts = parts[:1]
        # a hyphen between plain words adds nothing to them: measured, a little better without
        named = not lower.replace("-", "").isalpha() and lower != parts[0]
        if named and "'" not in lower and len(lower) <= MAX_TERM_CHARS:
            yield fold(lower)
        for part in parts:
            if "," in part:
                yield part.replace(",", "")
            yield from _stems(part[:MAX_TERM_CHARS], self.language)


def _grams(run: str) -> tuple[str, ...]:
    run = unicodedata.normalize("NFC", run)
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return (*run, *pairs)


@cache
def analyser(language: str | None) -> Analyser:
    """Return the shared analyser of a language; English rules where it isn't known."""
    code = (language or "en").lower().replace("_", "-").split("-")[0]
    return Analyser(code if code in _STEMMERS or language else "en")


def query_key(language: str | None) -> str:
    """Return the language whose rules an unlabelled or labelled text follows."""
    return analyser(language).language
