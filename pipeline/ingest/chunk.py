"""Cut a document into passages: by pages, sections, paragraphs and sentences, within a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foveate.pipeline.ingest.boxes import line_boxes
from foveate.pipeline.ingest.structure import Section, cut_sections, heading_text, split_block
from foveate.pipeline.ingest.tokens import TokenIndex, safe_cut
from foveate.pipeline.types import Block, Document, Draft, Locator, Modality

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    TokenSpans = Callable[[str], "NDArray[np.int32]"]

# a split table repeats its header as context; more than this share of the window is cut off
_HEADER_SHARE = 4


@dataclass(frozen=True, slots=True)
class _Limits:
    chunk: int
    overlap: int
    context: int


@dataclass(frozen=True, slots=True)
class _Context:
    """What stands above a section: for the passage that begins it, and for those after."""

    begin: int
    at_start: str
    below: str
    n_tokens: int
    n_start: int

    def of(self, start: int) -> str:
        return self.at_start if start <= self.begin else self.below


@dataclass(frozen=True, slots=True)
class _Atom:
    """A stretch that is kept whole: a sentence, a list item, a row, a code block."""

    start: int
    end: int
    n_tokens: int
    overlaps: bool  # prose may be repeated at the start of the next passage


def chunk(
    document: Document,
    token_spans: TokenSpans,
    *,
    chunk_tokens: int = 250,
    overlap_tokens: int = 32,
    context_tokens: int = 32,
) -> list[Draft]:
    """Return the passages of a document, its text in order and then its pictures.

    chunk_tokens: at most so many tokens in a passage together with its context, so that a
    document that fits is one passage. overlap_tokens: whole sentences of at most so many tokens
    are repeated from one passage to the next. context_tokens: of title and headings. token_spans:
    text -> (t, 2) int, [start, end) of each token.

    `document.text[start:end] == draft.text` for every draft with a span, and every character that
    is not space lies in some draft. No draft crosses a page. Tables are cut between rows, code
    between its lines, and only what has no other place to cut is cut between tokens; never inside
    a surrogate pair or a combining sequence (of up to 64 characters).
    """
    limits = _Limits(chunk_tokens, min(overlap_tokens, chunk_tokens // 2), context_tokens)
    drafts = _Chunker(document, token_spans, limits).drafts() if document.text.strip() else []
    title = ""
    if document.pictures:
        title = _cut_context(document.title or "", token_spans, limits.context)[0]
    for picture in document.pictures:
        span = picture.span
        drafts.append(
            Draft(
                picture.modality,
                document.text[span[0] : span[1]] if span else "",
                Locator(span, picture.page, (picture.box,) if picture.box else (), document.row),
                title,
                picture.image,
            )
        )
    return drafts


class _Chunker:
    def __init__(self, document: Document, token_spans: TokenSpans, limits: _Limits) -> None:
        self.document = document
        self.text = document.text
        self.token_spans = token_spans
        self.limits = limits
        self.tokens = TokenIndex(self.text, token_spans)
        self.contexts: dict[tuple[str, ...], tuple[str, int]] = {}

    def drafts(self) -> list[Draft]:
        drafts: list[Draft] = []
        starts = self.document.page_starts
        for page, start, end in _pages(self.text, starts):
            for section in self._sections(start, end):
                drafts += self._section(section, page if starts else None)
        return drafts

    def _sections(self, start: int, end: int) -> Iterator[Section]:
        """Sections of one page; small neighbours are joined while they fit the window."""
        pending: Section | None = None
        for section in cut_sections(self.document, start, end):
            if pending is not None:
                joined = pending.join(section)
                size = self.tokens.count(joined.start, joined.end)
                if not joined.mixed and size + self._context(joined).n_start <= self.limits.chunk:
                    pending = joined
                    continue
                yield pending
            pending = section
        if pending is not None:
            yield pending

    def _section(self, section: Section, page: int | None) -> Iterator[Draft]:
        context = self._context(section)
        room = max(self.limits.chunk - context.n_tokens, 1)
        start, end = _trim(self.text, section.start, section.end)
        fits = self.tokens.count(start, end) + context.n_start <= self.limits.chunk
        if fits and not section.mixed:
            modality: Modality = "table" if section.has_table else "text"
            yield self._draft(modality, start, end, page, context.of(start))
            return
        lead: int | None = None
        run: list[Block] = []
        for block in section.blocks:
            if block.kind != "table":
                run.append(block)
                continue
            # a heading or caption right above a table belongs to it
            kept = len(run)
            while kept and run[kept - 1].kind in {"heading", "caption"}:
                kept -= 1
            lead = run[kept].start if kept < len(run) else None
            yield from self._prose(run[:kept], room, page, context)
            yield from self._table(block, lead, page, context, room)
            run = []
        yield from self._prose(run, room, page, context)

    def _prose(
        self, blocks: list[Block], room: int, page: int | None, context: _Context
    ) -> Iterator[Draft]:
        if not blocks:
            return
        start, end = _trim(self.text, blocks[0].start, blocks[-1].end)
        if self.tokens.count(start, end) <= room:
            if end > start:
                yield self._draft("text", start, end, page, context.of(start))
            return
        atoms = [atom for block in blocks for atom in self._atoms(block, room)]
        for span in self._pack(atoms, room):
            first, last = _trim(self.text, *span)
            yield self._draft("text", first, last, page, context.of(first))

    def _atoms(self, block: Block, room: int) -> Iterator[_Atom]:
        """Split a block until each piece fits the room."""
        size = self.tokens.count(block.start, block.end)
        if size <= room and block.kind in {"code", "heading", "caption"}:
            yield _Atom(block.start, block.end, size, False)
            return
        prose = block.kind != "code"
        for start, end in split_block(self.text, block):
            size = self.tokens.count(start, end)
            if size <= room:
                yield _Atom(start, end, size, prose)
                continue
            for piece in self.tokens.split(start, end, room):
                yield _Atom(*piece, self.tokens.count(*piece), False)

    def _pack(self, atoms: list[_Atom], room: int) -> Iterator[tuple[int, int]]:
        """Fill passages evenly: each closes at a fair share of the rest, at the latest at room."""
        overlap = min(self.limits.overlap, room // 2)
        end = atoms[-1].end if atoms else 0
        first = 0
        share = self._share(atoms, 0, room, overlap)
        for i, atom in enumerate(atoms):
            if i == first:
                continue
            start = atoms[first].start
            fair = share < room and self.tokens.count(start, atom.start) >= share
            if fair or self.tokens.count(start, atom.end) > room:
                yield start, atoms[i - 1].end
                first = self._overlap(atoms, first, i, min(overlap, room - atom.n_tokens))
                share = self._share(atoms, first, room, overlap)
        if atoms:
            yield atoms[first].start, end

    def _share(self, atoms: list[_Atom], first: int, room: int, overlap: int) -> int:
        """Tokens of the passage that starts at an atom, if all after it are to be alike."""
        rest = self.tokens.count(atoms[first].start, atoms[-1].end) if atoms else 0
        if rest <= room:
            return room
        n_passages = -(-(rest - overlap) // (room - overlap))
        return min(room, (rest + overlap * (n_passages - 1)) // n_passages)

    def _overlap(self, atoms: list[_Atom], first: int, i: int, budget: int) -> int:
        """Index of the first atom that passage i repeats, or i."""
        j = i
        while (
            j - 1 > first
            and atoms[j - 1].overlaps
            and self.tokens.count(atoms[j - 1].start, atoms[i].start) <= budget
        ):
            j -= 1
        return j

    def _table(
        self, block: Block, lead: int | None, page: int | None, context: _Context, room: int
    ) -> Iterator[Draft]:
        start = block.start if lead is None else lead
        if self.tokens.count(start, block.end) <= room:
            span = _trim(self.text, start, block.end)
            yield self._draft("table", *span, page, context.of(start))
            return
        header = ""
        if block.header:
            header = self.text[block.header[0] : block.header[1]].split("\n")[0].strip()
        below, _ = _cut_context(header, self.token_spans, self.limits.chunk // _HEADER_SHARE)
        below = "\n".join(filter(None, (context.below, below)))
        rest = max(self.limits.chunk - len(self.token_spans(below)) if below else room, 1)
        rows = [] if lead is None else [_Atom(lead, block.start, 0, False)]
        for row_start, row_end in split_block(self.text, block):
            size = self.tokens.count(row_start, row_end)
            pieces = [(row_start, row_end)]
            if size > min(room, rest):
                pieces = list(self.tokens.split(row_start, row_end, min(room, rest)))
            rows += [_Atom(*piece, self.tokens.count(*piece), False) for piece in pieces]
        first, limit, under = 0, room, context.of(start)
        for i in range(1, len(rows) + 1):
            if i < len(rows) and self.tokens.count(rows[first].start, rows[i].end) <= limit:
                continue
            span = _trim(self.text, rows[first].start, rows[i - 1].end)
            yield self._draft("table", *span, page, under)
            first, limit, under = i, rest, below

    def _context(self, section: Section) -> _Context:
        """Title and headings above a section; its own headings too for what follows its start."""
        above = [heading_text(self.text, heading) for heading in section.path]
        own = [heading_text(self.text, heading) for heading in section.own]
        begin = _trim(self.text, section.start, section.end)[0]
        title = self.document.title or ""
        names = list(dict.fromkeys(name for name in (title, *above) if name))
        first = [n for n in names if n not in own and not self.text.startswith(n, begin)]
        later = list(dict.fromkeys((*names, *own)))
        (at_start, n_start), (below, n_below) = self._joined(first), self._joined(later)
        return _Context(begin, at_start, below, max(n_start, n_below), n_start)

    def _joined(self, names: list[str]) -> tuple[str, int]:
        key = tuple(names)
        if key not in self.contexts:
            limit = min(self.limits.context, self.limits.chunk // 2)
            self.contexts[key] = _cut_context(" > ".join(names), self.token_spans, limit)
        return self.contexts[key]

    def _draft(
        self, modality: Modality, start: int, end: int, page: int | None, context: str
    ) -> Draft:
        words = self.document.words
        boxes = line_boxes(words, start, end, page) if words is not None else ()
        locator = Locator((start, end), page, boxes, self.document.row)
        return Draft(modality, self.text[start:end], locator, context)


def _pages(text: str, starts: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (1-based page, start, end)."""
    if not starts or starts[0] > 0:
        yield 1, 0, starts[0] if starts else len(text)
    for i, start in enumerate(starts):
        yield i + 1, start, starts[i + 1] if i + 1 < len(starts) else len(text)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _cut_context(text: str, token_spans: TokenSpans, limit: int) -> tuple[str, int]:
    """Cut a context to a number of tokens, at a word where there is one; also count them."""
    if not text or limit <= 0:
        return "", 0
    # a title may be a megabyte
    text = text[: limit * 40]
    spans = token_spans(text)
    if len(spans) <= limit:
        return text, len(spans)
    end = int(spans[limit][0])
    space = text.rfind(" ", 0, end)
    end = space if space > end // 2 else safe_cut(text, 0, end)
    text = text[:end].rstrip(" >|")
    return text, len(token_spans(text))
