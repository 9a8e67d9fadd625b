"""What a compressor keeps or drops as a whole: sentences, table rows, records, pieces of code.

A row needs its header, so the header is kept with the first row that is. An object of a JSON list
is one unit, so that what is kept parses; only a single object too large for the budget is taken
apart, by its lines. Code goes by what stands between empty lines at the left margin.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from foveate.pipeline.types import Hit

if TYPE_CHECKING:
    Span = tuple[int, int]
    Sentences = Callable[[str], list[Span]]

Kind = Literal["prose", "row", "record", "json", "code"]

LONGEST = 1200  # code points of a unit of prose; text without sentence ends is cut at a blank
LONGEST_RECORD = 300
RECORD = re.compile(r"[^\s:][^:\n]{0,59}: .*(?:\n[^\s:][^:\n]{0,59}: .*)+")
BULLET = re.compile(r"\n[^\S\n]*(?=(?:[-*+\u2022\u2023\u25aa\u00b7]|\d{1,3}[.)])\s)")
FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n.*?(?:^\1[^\n]*$|\Z)", re.M | re.S)
PIECE = re.compile(r"\n[^\S\n]*\n(?:[^\S\n]*\n)*(?=[^\s)\]}])")
RULE = re.compile(r"[\s|:+=-]*-{2,}[\s|:+=-]*")
CELLS = re.compile(r"[|\t]")
CODE_LINE = re.compile(
    r"^(?:\s*(?:def |class |func |fn |import |from \S+ import |#include|package |using |return\b"
    r"|public |private |static |const |let |var |if \(|for \(|while \(|@\w+|else\b)|.*[;{}]\s*$)"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a hit. span: in the source's canonical text. needs: spans kept with it."""

    hit: int
    span: Span
    text: str
    kind: Kind = "prose"
    needs: tuple[Span, ...] = ()


def cut(hits: Sequence[Hit], sentences: Sentences) -> list[Unit]:
    """Cut every hit's passage into units, in the hits' order.

    A place of a source that several passages hold gives one unit, of the first of them.
    """
    found: list[Unit] = []
    seen: set[tuple[str, Span]] = set()
    for i, hit in enumerate(hits):
        span = hit.passage.locator.span
        if span is None:
            continue
        text, base = hit.passage.text, span[0]
        for kind, (start, end), needs in pieces(hit, sentences):
            place = (base + start, base + end)
            if (hit.passage.source.id, place) not in seen:
                seen.add((hit.passage.source.id, place))
                moved = tuple((base + a, base + b) for a, b in needs)
                found.append(Unit(i, place, text[start:end], kind, moved))
    return found


def pieces(hit: Hit, sentences: Sentences) -> Iterator[tuple[Kind, Span, tuple[Span, ...]]]:
    """Yield (kind, span in the passage's text, spans that it needs) of each piece."""
    text = hit.passage.text
    if not text.strip():
        return
    if hit.passage.modality == "table":
        yield from rows(text, hit.passage.context)
        return
    objects = json_objects(text)
    if objects:
        yield from (("json", span, ()) for span in objects)
        return
    if is_code(text):
        yield from (("code", span, ()) for span in code_pieces(text, 0, len(text)))
        return
    if RECORD.fullmatch(text.strip()):
        spans = [trim(text, (0, len(text)))] if len(text) <= LONGEST_RECORD else lines(text)
        yield from (("record", span, ()) for span in spans if span)
        return
    done = 0
    for fence in FENCE.finditer(text):
        yield from prose(text, done, fence.start(), sentences)
        span = trim(text, fence.span())
        if span:
            yield "code", span, ()
        done = fence.end()
    yield from prose(text, done, len(text), sentences)


def prose(
    text: str, start: int, end: int, sentences: Sentences
) -> Iterator[tuple[Kind, Span, tuple[Span, ...]]]:
    """Yield sentences and list items; rows of a table that stands in the prose keep its header."""
    cuts = [start, *(m.end() for m in BULLET.finditer(text, start, end)), end]
    for first, last in itertools.pairwise(cuts):
        part = text[first:last]
        if part.count("\n") > 1 and sum(bool(CELLS.search(r)) for r in part.split("\n")) > 2:
            for kind, (a, b), needs in rows(part, ""):
                yield kind, (first + a, first + b), tuple((first + c, first + d) for c, d in needs)
            continue
        for a, b in sentences(part):
            yield from (("prose", span, ()) for span in shorten(text, (first + a, first + b)))


def rows(text: str, context: str) -> Iterator[tuple[Kind, Span, tuple[Span, ...]]]:
    """Yield each line of a table; those below the header need it.

    Where the context ends with the header, as in a passage from the middle of a table, every line
    is a row.
    """
    spans = lines(text)
    if not spans:
        return
    first = text[slice(*spans[0])]
    above = context.rstrip().rpartition("\n")[2]
    told = bool(above) and len(CELLS.findall(above)) == len(CELLS.findall(first)) > 0
    n_header = 0 if told else 1
    while n_header < len(spans) and RULE.fullmatch(text[slice(*spans[n_header])]):
        n_header += 1
    if n_header == 0 or n_header == len(spans):
        yield from (("row", span, ()) for span in spans)
        return
    header = (spans[0][0], spans[n_header - 1][1])
    yield from (("row", span, (header,)) for span in spans[n_header:])


def json_objects(text: str) -> list[Span]:
    """Return the spans of the values that can stand alone; none where the text is no JSON.

    A list gives its items, JSON lines give their lines, anything else is one value.
    """
    body = text.strip()
    if body[:1] not in ("{", "["):
        return []
    decoder = json.JSONDecoder()
    try:
        if body[0] == "[":
            json.loads(body)
            return [(a, b) for a, b in items(text, text.index("["), decoder)]
        spans = []
        at = text.index("{")
        while at < len(text):
            _, end = decoder.raw_decode(text, at)
            spans.append((at, end))
            at = end + len(text[end:]) - len(text[end:].lstrip())
    except ValueError:
        return []
    return spans


def items(text: str, opened: int, decoder: json.JSONDecoder) -> Iterator[Span]:
    at = opened + 1
    while True:
        at += len(text[at:]) - len(text[at:].lstrip())
        if text[at] == "]":
            return
        _, end = decoder.raw_decode(text, at)
        yield at, end
        at = end + len(text[end:]) - len(text[end:].lstrip())
        at += text[at] == ","


def is_code(text: str) -> bool:
    """Whether most lines look like source code."""
    filled = [line for line in text.split("\n") if line.strip()]
    marked = sum(bool(CODE_LINE.match(line)) for line in filled)
    return len(filled) > 2 and marked >= 2 and marked * 3 >= len(filled)


def code_pieces(text: str, start: int, end: int) -> Iterator[Span]:
    cuts = [start, *(m.end() for m in PIECE.finditer(text, start, end)), end]
    for first, last in itertools.pairwise(cuts):
        span = trim(text, (first, last), keep_indent=True)
        if span:
            yield span


def lines(text: str, span: Span | None = None) -> list[Span]:
    """Return the spans of the lines that are not blank."""
    found = []
    at, end = span or (0, len(text))
    while at < end:
        stop = text.find("\n", at, end)
        stop = end if stop < 0 else stop
        if text[at:stop].strip():
            found.append((at, at + len(text[at:stop].rstrip())))
        at = stop + 1
    return found


def shorten(text: str, span: Span) -> Iterator[Span]:
    """Cut what is longer than the limit at blanks."""
    start, end = span
    while end - start > LONGEST:
        stop = text.rfind(" ", start + LONGEST // 2, start + LONGEST)
        stop = stop if stop > start else start + LONGEST
        piece = trim(text, (start, stop))
        if piece:
            yield piece
        start = stop
    piece = trim(text, (start, end))
    if piece:
        yield piece


def trim(text: str, span: Span, *, keep_indent: bool = False) -> Span | None:
    """Return the span without outer blanks, None where nothing is left."""
    body = text[slice(*span)]
    if not body.strip():
        return None
    lead = len(body) - len(body.lstrip("\n\r" if keep_indent else None))
    return span[0] + lead, span[0] + len(body.rstrip())
