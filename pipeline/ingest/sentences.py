"""Find the sentences of a text in any script."""

from __future__ import annotations

import re

_CLOSERS = "\"'\u2019\u201d\u00bb\u203a)\\]}\u300d\u300f\uff09\u3011\u3009\u300b"
# marks that end a sentence wherever they stand: CJK, Indic, Arabic, Ethiopic, Khmer, Burmese, ...
_HARD = "\u3002\uff01\uff1f\uff0e\uff61\u0964\u0965\u061f\u06d4\u1362\u1367\u17d4\u17d5\u104b\u0589"
_STOP = re.compile(
    f"[{_HARD}]+[{_CLOSERS}]*"
    f"|[.!?\u2026]+[{_CLOSERS}]*(?=\\s|$)"
    r"|\n[ \t]*(?:\n[ \t]*)+|\f"
)
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"\d{1,3}(?:\.\d+)*|\w")
_WORD_AFTER = re.compile(r"[\"'\u2018\u201c\u00ab(\[]*(\w+)")
# Thai, Lao, Khmer and Burmese part their sentences by spaces only
_SPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff][^\S\n]+(?=[\u0e00-\u0eff\u1000-\u17ff])"
)

_ABBREVIATIONS = {
    # never the end of a sentence
    "never": """
        mr mrs ms mx dr prof rev hon gen col maj capt lt sgt sen rep gov pres st mt messrs mme mlle
        hr fr frl dipl ing sra srta ud uds dott sig vs cf viz approx resp eg ie bzw ca z.b d.h u.a
        e.g i.e u.s.w o.\u00e4 vgl evtl sog bspw bzgl
        \u0442.\u0435 \u0442.\u043a \u0438\u043c \u0443\u043b \u0440\u0438\u0441
    """,
    # not the end when a number or one letter follows
    "number": """
        no nos nr fig figs eq eqs vol vols p pp ch chap sec sect art abs par para tab tabl ref refs
        ex app ed eds bd s n n\u00ba num \u0441\u0442\u0440 \u0442
    """,
    # the end only when the next word often begins a sentence
    "maybe": """
        etc al inc ltd co corp bros dept univ assn jr sr ph.d m.d b.a m.a jan feb mar apr jun jul
        aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m u.s u.k u.n e.u usw
        \u0433 \u0433\u0433 \u0442.\u0434 \u0442.\u043f est bldg ave blvd rd
    """,
    "starters": """
        the a an it he she they we you i in on at this that these those there here when where while
        if but and or so as by for from with after before although because however moreover
        furthermore therefore thus hence what who why how is are was were do does did its his her
        their our my your no not some many most all each every both another such then now
        der die das ein eine es er sie wir im le la les un une il elle ils el los las
        \u043e\u043d \u043e\u043d\u0430 \u043e\u043d\u0438 \u044d\u0442\u043e \u0432
    """,
}
_TITLES, _BEFORE_NUMBER, _MAYBE, _STARTERS = (
    frozenset(words.split()) for words in _ABBREVIATIONS.values()
)


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of a text's sentences, ascending, without the space around them.

    A sentence ends at a terminal mark of its script, at an empty line and at a form feed.
    Abbreviations, initials, decimals, list numbers and a mark before a lower-case word do not
    end one. Every character that is not space lies in exactly one span. Linear in the text.
    """
    spans: list[tuple[int, int]] = []
    start = _skip(text, 0)
    spaced = _SPACED.search(text) is not None
    for match in _STOP.finditer(text):
        if match.start() < start or not _ends(text, match, start):
            continue
        end = match.end() if not match.group().isspace() else match.start()
        if spaced:
            start = _split_spaced(text, start, end, spans)
        if end > start:
            spans.append((start, end))
        start = _skip(text, match.end())
    end = len(text.rstrip())
    if spaced and end > start:
        start = _split_spaced(text, start, end, spans)
    if end > start:
        spans.append((start, end))
    return spans


def _split_spaced(text: str, start: int, end: int, spans: list[tuple[int, int]]) -> int:
    for space in _SPACED.finditer(text, start, end):
        # phrases of a few letters are not sentences
        if space.start() + 1 - start >= 40:
            spans.append((start, space.start() + 1))
            start = space.end()
    return start


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _ends(text: str, match: re.Match[str], start: int) -> bool:
    mark = match.group()
    if mark[0] not in ".!?\u2026":
        return True
    after = _WORD_AFTER.match(text, _skip(text, match.end()))
    word = after.group(1) if after else ""
    if word and word[0].islower():
        # "what?" he asked; 3 p.m. on monday
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    words = text[max(start, match.start() - 40) : match.start()].split()
    token = words[-1].lstrip("([{\"'\u2018\u201c\u00ab") if words else ""
    if not token:
        return True
    if _NUMBER.fullmatch(token) and _begins_line(text, match.start() - len(token)):
        return False
    lower = token.lower()
    if lower in _TITLES:
        return False
    if lower in _BEFORE_NUMBER and len(mark) == 1:
        return not (word[:1].isdigit() or len(token) == 1) if word else True
    initial = len(token) == 1 and token.isupper()
    dotted = "." in token and all(len(part) <= 2 for part in token.split("."))
    if initial or dotted or lower in _MAYBE:
        return not word or word.lower() in _STARTERS
    return True


def _begins_line(text: str, position: int) -> bool:
    while position > 0 and text[position - 1] in " \t(":
        position -= 1
    return position == 0 or text[position - 1] == "\n"
