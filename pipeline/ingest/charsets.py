"""Guess the legacy encoding of a text: the one whose reading looks most like a language.

Each candidate decodes the bytes; its characters above 127 are scored by letter frequencies of the
languages that it is used for, in their context. On short Western texts this is right far more
often than charset-normalizer, which stands in where no candidate can read the bytes.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Callable, Mapping

from foveate.pipeline.ingest.alphabets import COMMON, LETTERS, MARKS, WIDE_MARKS

_WESTERN = ("de", "fr", "es", "pt", "it", "sv", "da", "fi", "nl", "is", "en")
_OTHER_SCRIPTS = frozenset({"ru", "uk", "el", "he", "ar", "th"})
_CENTRAL = ("pl", "cs", "hu", "sk", "ro", "hr")
# encoding: the languages it is used for, and how rare it is
_CANDIDATES: dict[str, tuple[tuple[str, ...], float]] = {
    "cp1252": (_WESTERN, 0.0),
    "cp1250": (_CENTRAL, 1.0),
    "iso8859_2": (_CENTRAL, 1.5),
    "cp1254": (("tr",), 1.0),
    "cp1257": (("lt", "lv", "et"), 1.5),
    "mac_roman": (_WESTERN, 3.0),
    "cp850": (_WESTERN, 3.5),
    "cp437": (_WESTERN, 4.0),
    "cp852": (_CENTRAL, 4.0),
    "mac_latin2": (_CENTRAL, 4.0),
    "cp1251": (("ru", "uk"), 0.5),
    "koi8_r": (("ru",), 1.5),
    "koi8_u": (("uk",), 2.5),
    "cp866": (("ru",), 2.0),
    "mac_cyrillic": (("ru", "uk"), 2.5),
    "iso8859_5": (("ru",), 2.5),
    "cp1253": (("el",), 1.0),
    "iso8859_7": (("el",), 1.5),
    "cp1255": (("he",), 1.0),
    "cp1256": (("ar",), 1.0),
    "iso8859_6": (("ar",), 2.5),
    "cp874": (("th",), 1.0),
    "shift_jis": (("ja",), 1.0),
    "cp932": (("ja",), 1.5),
    "euc_jp": (("ja",), 1.5),
    "gb2312": (("zh-gb2312",), 0.5),
    "gb18030": (("zh-gb2312",), 1.0),
    "big5": (("zh-big5",), 1.0),
    "big5hkscs": (("zh-big5",), 2.0),
    "euc_kr": (("ko",), 0.5),
    "cp949": (("ko",), 1.0),
    "johab": (("ko",), 5.0),
}
# encoding whose plain subset it extends: these are the names that are reported
_REPORTED = {"gb2312": "gb18030", "euc_kr": "cp949"}
# lead bytes of the characters that are in daily use
_DAILY = {
    "zh-gb2312": ("gb2312", 0xB0, 0xD7),
    "zh-big5": ("big5", 0xA4, 0xC6),
    "ko": ("euc_kr", 0xB0, 0xC8),
    "ja": ("euc_jp", 0xB0, 0xCF),
}
_SAMPLE_BYTES = 1 << 16
_SCORED_CHARS = 1500
_NEVER = -16.0
# a lead of so many units of log-probability is sure
_SURE = 10.0


def guess(data: bytes) -> tuple[str, bool]:
    """Return the likeliest encoding of bytes that are no Unicode form, and whether it is sure."""
    sample = _sample(data)
    prior = _prior(sample)
    scores: dict[str, float] = {}
    readings: dict[str, str] = {}
    for name, (languages, rarity) in _CANDIDATES.items():
        try:
            readings[name] = sample.decode(name)
        except UnicodeDecodeError:
            continue
        text = _around(readings[name])
        best = max(_score(text, language) + prior(language) for language in languages)
        scores[name] = best - rarity
    if not scores:
        return _other(sample), False
    best_name = max(scores, key=lambda name: scores[name])
    rivals = [s for n, s in scores.items() if readings[n] != readings[best_name]]
    sure = not rivals or scores[best_name] - max(rivals) > _SURE
    return _REPORTED.get(best_name, best_name), sure


def _other(sample: bytes) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return best.encoding if best is not None else "cp1252"


def _prior(sample: bytes) -> Callable[[str], float]:
    """How likely each language is by the letters that all encodings share."""
    plain = "".join(chr(b) if b < 128 else " " for b in sample[:2000])
    if sum(c.isalpha() for c in plain) < 20:
        return lambda _: 0.0
    from foveate.pipeline.ingest.language import probabilities

    found = probabilities(plain)

    def prior(language: str) -> float:
        share = found.get(language[:2])
        return math.log(share + 1e-3) if share is not None else -3.0

    return prior


@functools.cache
def _frequencies(language: str) -> Mapping[str, float]:
    letters = LETTERS[language]
    # letters by rank: 1/(r + 2) is close to real alphabets
    weights = {letter: 1 / (rank + 2) for rank, letter in enumerate(letters)}
    total = sum(weights.values())
    table = {mark: math.log(0.06 / len(MARKS)) for mark in MARKS}
    for letter, weight in weights.items():
        table[letter] = math.log(0.93 * weight / total)
    return table


def _score(text: str, language: str) -> float:
    """Log-probability of the characters above 127 of a reading, as a text of the language."""
    if language in _DAILY:
        return sum(_wide_score(c, language) for c in text if c > "\x7f")
    table = _frequencies(language)
    total = 0.0
    for i, c in enumerate(text):
        if c > "\x7f":
            before = text[i - 1] if i else " "
            after = text[i + 1] if i + 1 < len(text) else " "
            total += _letter_score(c, before, table) + _place_score(c, before, after, language)
    return total


def _letter_score(c: str, before: str, table: Mapping[str, float]) -> float:
    if c in table:
        return table[c]
    lower = c.lower()
    if lower in table:
        # capitals begin words or stand among capitals
        return table[lower] - (1.0 if before.isupper() else 7.0 if before.isalpha() else 2.5)
    category = unicodedata.category(c)
    if category in {"Cc", "Cf", "Co", "Cn"}:
        return _NEVER
    return -9.0 if c.isalpha() else -7.0 if category in {"Mn", "Mc"} else -12.0


def _place_score(c: str, before: str, after: str, language: str) -> float:
    """A penalty for what does not stand so in a word."""
    if c.isalpha():
        if before.isdigit() or after.isdigit():
            return -6.0
        if language in _OTHER_SCRIPTS and any(n.isascii() and n.isalpha() for n in (before, after)):
            # a word is of one script
            return -4.0
        return -4.0 if c.islower() and before.isupper() and after.isupper() else 0.0
    inside = before.isalpha() and after.isalpha()
    if c == "\u2019":
        return 0.0 if inside else -1.0
    # a dash or a quote in the middle of a word
    return -5.0 if inside and c in MARKS and c != "\u00b7" else 0.0


def _wide_score(c: str, language: str) -> float:
    if c in WIDE_MARKS:
        return math.log(0.1 / len(WIDE_MARKS))
    if language == "ja":
        if "\u3041" <= c <= "\u3096":
            return math.log(0.45 / 84)
        if "\u30a1" <= c <= "\u30fe":
            return math.log(0.12 / 90)
    common = COMMON.get(language, "")
    if c in common:
        return math.log(0.25 / len(common))
    if "\uff01" <= c <= "\uff5e":
        return -9.0
    encoding, low, high = _DAILY[language]
    try:
        code = c.encode(encoding)
    except UnicodeEncodeError:
        return -13.0 if c.isalpha() else _NEVER
    if len(code) == 2 and low <= code[0] <= high:
        return math.log(0.6 / ((high - low + 1) * 94))
    # half-width katakana fill every single byte that is left
    return -14.0 if "\uff61" <= c <= "\uff9f" or not c.isalpha() else -12.0


def _around(text: str) -> str:
    """The parts of a text that have characters above 127, with a neighbour on each side."""
    if len(text) <= _SCORED_CHARS:
        return text
    parts: list[str] = []
    size = 0
    for word in text.split():
        if not word.isascii():
            parts.append(word[:_SCORED_CHARS])
            size += len(parts[-1]) + 1
            if size > _SCORED_CHARS:
                break
    return " ".join(parts)


def _sample(data: bytes) -> bytes:
    """The lines that have bytes above 127: they decide, and may stand far into the file."""
    if len(data) <= _SAMPLE_BYTES:
        return data
    lines: list[bytes] = []
    size = 0
    for line in data.splitlines(keepends=True):
        if not line.isascii():
            lines.append(line)
            size += len(line)
            if size > _SAMPLE_BYTES:
                break
    return b"".join(lines)
