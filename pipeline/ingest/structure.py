"""Sections, and the pieces inside a block that should stay whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foveate.pipeline.ingest.sentences import sentences
from foveate.pipeline.types import Block, Document

_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n\s*|\f\s*")
_HEADING_MARKS = re.compile(r"^\s*#{1,6}\s+|\s+#+\s*$")


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks that follow one another; path: the headings above the first of them, outer first."""

    start: int
    end: int
    path: tuple[Block, ...]
    blocks: tuple[Block, ...]

    @property
    def own(self) -> tuple[Block, ...]:
        """The headings that it begins with."""
        n_own = 0
        while n_own < len(self.blocks) and self.blocks[n_own].kind == "heading":
            n_own += 1
        return self.blocks[:n_own]

    @property
    def has_table(self) -> bool:
        return any(block.kind == "table" for block in self.blocks)

    @property
    def mixed(self) -> bool:
        """Whether it holds tables and prose, or several tables."""
        tables = sum(block.kind == "table" for block in self.blocks)
        prose = sum(block.kind not in {"table", "heading", "caption"} for block in self.blocks)
        return tables > 1 or (tables == 1 and prose > 0)

    def join(self, other: Section) -> Section:
        return Section(self.start, other.end, self.path, self.blocks + other.blocks)


def cut_sections(document: Document, start: int, end: int) -> Iterator[Section]:
    """Yield the sections of a page, one for each heading or run of headings with what follows."""
    path: list[Block] = []
    for block in document.blocks:
        if block.start >= start:
            break
        if block.kind == "heading":
            path = [*_above(path, block), block]
    outer = tuple(path)
    blocks: list[Block] = []
    for block in _filled(document, start, end):
        if block.kind == "heading":
            if blocks and blocks[-1].kind != "heading":
                yield Section(blocks[0].start, blocks[-1].end, outer, tuple(blocks))
                blocks = []
            path = _above(path, block)
            if not blocks:
                outer = tuple(path)
            path.append(block)
        blocks.append(block)
    if blocks:
        yield Section(blocks[0].start, blocks[-1].end, outer, tuple(blocks))


def _above(path: list[Block], heading: Block) -> list[Block]:
    return [block for block in path if block.level < heading.level]


def heading_text(text: str, heading: Block) -> str:
    """The words of a heading, without the marks that a source may give it."""
    line = text[heading.start : heading.end].strip().split("\n")[0]
    return " ".join(_HEADING_MARKS.sub("", line).split())


def _filled(document: Document, start: int, end: int) -> Iterator[Block]:
    """Yield the blocks in [start, end) and paragraphs for all text between them."""
    position = start
    for block in document.blocks:
        if block.end <= start:
            continue
        if block.start >= end:
            break
        if block.start < position:
            # nested or crossing blocks: the part that is left
            if block.end <= position:
                continue
            block = Block(block.kind, position, block.end, block.level, block.header)
        yield from _paragraphs(document.text, position, block.start)
        if block.end > end:
            block = Block(block.kind, block.start, end, block.level, block.header)
        if document.text[block.start : block.end].strip():
            yield block
        position = block.end
    yield from _paragraphs(document.text, position, end)


def _paragraphs(text: str, start: int, end: int) -> Iterator[Block]:
    while start < end:
        match = _EMPTY_LINE.search(text, start, end)
        stop = match.start() if match else end
        if text[start:stop].strip():
            yield Block("paragraph", start, stop)
        start = match.end() if match else end


def split_block(text: str, block: Block) -> Iterator[tuple[int, int]]:
    """Yield the spans that should stay whole: rows, items, stretches of code, sentences."""
    if block.kind in {"table", "list", "code"}:
        yield from _lines(text, block.start, block.end)
    else:
        for start, end in sentences(text[block.start : block.end]):
            yield block.start + start, block.start + end


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop
        if text[start:stop].strip():
            yield start, stop
        start = stop + 1
