"""What a person sees: hits, answers, cited spans, reports and progress, on a terminal or in a pipe.

On a terminal lines are wrapped and matched words are lit; in a pipe every item is one plain line.
NO_COLOR, COLUMNS and TERM=dumb are honoured by rich.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.pipeline import terms

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from foveate.pipeline.protocols import Progress
    from foveate.pipeline.types import Answer, Citation, Hit, Note, Passage, Source
    from foveate.rerank.late import Match

# marks that reorder or hide what follows them on a terminal
INVISIBLE = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
)
ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W_]+")
EXCERPT_CHARS = 280
AROUND_CHARS = 400
N_MATCHES = 8


def printable(text: str) -> str:
    r"""Escape every character that could move the cursor, hide or reorder text.

    An undecodable byte of a file name is shown as `\xNN`.
    """
    return "".join(c if c.isprintable() and c not in INVISIBLE else _escape(c) for c in text)


def _escape(c: str) -> str:
    code = ord(c)
    if c in ESCAPES:
        return ESCAPES[c]
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode puts an undecodable byte there
        return f"\\x{code - 0xDC00:02x}"
    category = unicodedata.category(c)
    if category == "Zs" or (category == "Cf" and c not in INVISIBLE):
        return c
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def flat(text: str) -> str:
    """Put a text on one safe line."""
    return printable(" ".join(text.split()))


def short_path(uri: str) -> str:
    """Return a path as seen from here, safe to print."""
    path, row, number = uri.partition("#row=")
    with contextlib.suppress(ValueError, OSError):
        path = str(Path(path).relative_to(Path.cwd()))
    return printable(path + row + number)


def size_text(n_bytes: float) -> str:
    """Return a size in the largest unit of 1000 that leaves at least one."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            break
        n_bytes /= 1000
    return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 10 else f"{n_bytes:.1f} {unit}"


def number(n: int, thing: str) -> str:
    """Return '1 file' or '3 files'."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def matches(text: str, query: str) -> list[tuple[int, int]]:
    """Return [start, end) of every word of the text that the query has, whatever its ending."""
    asked = {terms.stem(w) for w in terms.words(query)}
    wanted = {w for w in asked if w not in terms.STOP} or asked
    found: list[tuple[int, int]] = []
    for match in WORD.finditer(text):
        start, word = match.start(), match.group()
        if terms.CJK.search(word):
            pairs = (start + i for i in range(max(1, len(word) - 1)))
            spans = [(i, min(i + 2, match.end())) for i in pairs if _has(wanted, text[i : i + 2])]
        else:
            spans = [match.span()] if _has(wanted, word) else []
        for low, high in spans:
            if found and low <= found[-1][1]:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
    return found


def _has(wanted: set[str], word: str) -> bool:
    return any(terms.stem(w) in wanted for w in terms.words(word))


def excerpt(text: str, query: str, max_chars: int = EXCERPT_CHARS) -> tuple[int, int]:
    """Return [start, end) of the sentence that holds most of the query's words, cut to length."""
    from foveate.pipeline.ingest.sentences import sentences

    spans = sentences(text) or [(0, len(text))]

    def worth(span: tuple[int, int]) -> int:
        part = text[span[0] : span[1]]
        return len({terms.plain(part[a:b]) for a, b in matches(part, query)})

    start, end = max(spans, key=lambda span: (worth(span), -span[0]))
    if not worth((start, end)):  # no word to show: the beginning says what it is about
        end = max((e for _, e in spans if e - start <= max_chars), default=end)
    if end - start <= max_chars:
        return start, end
    lit = matches(text[start:end], query)
    centre = start + (lit[0][0] if lit else 0)
    low = max(start, min(centre - max_chars // 3, end - max_chars))
    high = min(end, low + max_chars)
    if low > start and " " in text[low:centre]:
        low = text.index(" ", low, centre) + 1
    if high < end and " " in text[centre:high]:
        high = text.rindex(" ", centre, high)
    return low, high


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that never interprets markup, emoji codes or numbers in what it prints."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def lit(text: str, query: str, style: str = "bold yellow") -> Text:
    """Return a text on one line with the query's words lit."""
    from rich.text import Text

    line = flat(text)
    shown = Text(line)
    for start, end in matches(line, query):
        shown.stylize(style, start, end)
    return shown


def write(console: Console, text: str | Text, *, indent: int = 0, mark: str = "") -> None:
    """Print one item: wrapped under its indent on a terminal, on one line in a pipe.

    mark: stands in the indent of the first line.
    """
    from rich.text import Text

    line = text if isinstance(text, Text) else Text(text)
    width = console.width - indent
    parts = line.wrap(console, width) if console.is_terminal and width > 12 else [line]
    for part in parts:
        console.print(Text(mark.ljust(indent)) + part, soft_wrap=True)
        mark = ""


def paged(source: Source) -> bool:
    """Whether a page says more than the file's name does."""
    if source.n_pages is None:
        return not source.media_type.startswith("image/")
    return source.n_pages > 1


def place(passage: Passage) -> str:
    """Return where a passage stands: path, page or row."""
    where = short_path(passage.source.uri)
    if passage.locator.page is not None and paged(passage.source):
        where += f", page {passage.locator.page}"
    return where


def shown_title(passage: Passage) -> str:
    """Return the source's title; '' when it is only the file's name again."""
    title = passage.source.title or ""
    name = passage.source.name
    return "" if title in (name, os.path.splitext(name)[0]) else flat(title)


def picture_size(passage: Passage) -> str:
    """Return a picture's size as people say it; '' when it is not known."""
    meta = passage.metadata
    pixels = f"{meta['width']} x {meta['height']}" if {"width", "height"} <= meta.keys() else ""
    if passage.modality == "page" or passage.locator.page is not None:
        return pixels
    return ", ".join(part for part in (pixels, size_text(passage.source.size)) if part)


def print_hits(
    console: Console,
    hits: Sequence[Hit],
    query: str,
    *,
    explain: Callable[[Hit], Sequence[str]] = lambda hit: (),
) -> Iterator[Hit]:
    """Print hits one by one; yields each picture after its lines, to be shown inline.

    explain: what to say of a hit besides, line by line.
    """
    from rich.text import Text

    for rank, hit in enumerate(hits, start=1):
        passage = hit.passage
        head = Text()
        if title := shown_title(passage):
            head.append(title, "bold").append("  ")
        head.append(place(passage), "cyan")
        if passage.modality in ("image", "page"):
            size = picture_size(passage)
            head.append(f"  {passage.modality}" + (f", {size}" if size else ""), "magenta")
        head.append(f"  {hit.score:.3f}", "dim").append(f"  {passage.label}", "dim")
        write(console, head, indent=4, mark=f"{rank:>2}. ")
        if passage.text.strip():
            start, end = excerpt(passage.text, query)
            line = lit(passage.text[start:end], query)
            write(console, line, indent=4)
        if hit.duplicates:
            write(console, Text(f"and {len(hit.duplicates)} like it", "dim"), indent=4)
        for told in explain(hit):
            write(console, Text(told, "dim"), indent=4)
        if passage.modality in ("image", "page"):
            yield hit


def stages(hit: Hit) -> str:
    """Return each stage's own score and rank of a hit."""
    parts = [
        f"{stage} {score:.4f}" + (f" (#{hit.ranks[stage]})" if stage in hit.ranks else "")
        for stage, score in hit.scores.items()
    ]
    return "; ".join([*parts, f"fused {hit.score:.4f}"])


def matched(query: str, hit: Hit, matches: Sequence[Match]) -> str:
    """Return which words of the query met which of the hit, the strongest first."""
    best = sorted(matches, key=lambda match: -match.share)[:N_MATCHES]
    pairs = []
    for match in best:
        asked = query[slice(*match.asked)]
        found = hit.passage.text[slice(*match.found)] if match.found else "its context"
        pairs.append(f"{flat(asked)} ~ {flat(found)} {match.similarity:.2f}")
    return f"matched: {', '.join(pairs)}"


def print_answer(console: Console, answer: Answer) -> None:
    """Print an answer and, numbered as in it, where each of its sentences comes from."""
    from rich.text import Text

    body = Text("\n".join(flat(line) for line in answer.text.splitlines()))
    body.highlight_regex(r"\[\d+\]", "bold cyan")
    write(console, body)
    seen: set[tuple[int, str]] = set()
    for citation in answer.citations:
        if (key := (citation.marker, citation.quote)) in seen:
            continue
        if not seen:
            console.print()
        seen.add(key)
        line = Text(cited_place(citation), "cyan").append(f"  {citation.passage.label}", "dim")
        write(console, line, indent=4, mark=f"[{citation.marker}] ")
        if citation.quote:
            write(console, lit(citation.quote, answer.question), indent=4)
    for citation in answer.conflicts:
        console.print()
        line = Text("Another passage says otherwise: ", "yellow")
        line.append(cited_place(citation), "cyan").append(f"  {citation.passage.label}", "dim")
        write(console, line)
        write(console, lit(citation.quote, answer.question), indent=4)
    if answer.unspoken:
        console.print()
        write(console, Text(f"No cited passage speaks of: {answer.unspoken}", "yellow"))


def cited_place(citation: Citation) -> str:
    """Return path, page and character span of a citation."""
    source = citation.passage.source
    parts = [short_path(source.uri)]
    if citation.page is not None and paged(source):
        parts.append(f"page {citation.page}")
    if citation.span is not None:
        parts.append(f"characters {citation.span[0]}-{citation.span[1]}")
    return ", ".join(parts)


def surroundings(
    text: str, span: tuple[int, int], around: int = AROUND_CHARS
) -> tuple[str, str, str]:
    """Return what stands before a span, the span itself and what follows, cut at spaces."""
    start, end = span
    low, high = max(0, start - around), min(len(text), end + around)
    if low and " " in text[low:start]:
        low = text.index(" ", low, start) + 1
    if high < len(text) and " " in text[end:high]:
        high = text.rindex(" ", end, high)
    return text[low:start], text[start:end], text[end:high]


def print_passage(console: Console, passage: Passage, parts: tuple[str, str, str]) -> None:
    """Print a span in its surroundings, keeping the source's lines."""
    from rich.text import Text

    head = Text(place(passage), "cyan").append(f"  {passage.label}", "dim")
    if passage.modality in ("image", "page") and (size := picture_size(passage)):
        head.append(f"  {passage.modality}, {size}", "magenta")
    if title := shown_title(passage):
        head = Text(title, "bold").append("  ").append_text(head)
    write(console, head)
    if passage.locator.row is not None:  # a record: its other columns belong to what it says
        fields = ", ".join(f"{k}: {v}" for k, v in passage.metadata.items())
        write(console, Text(flat(fields), "dim"))
    for box in passage.locator.boxes[:8]:
        corners = f"{box.x0:.3f} {box.y0:.3f} {box.x1:.3f} {box.y1:.3f}"
        write(console, Text(f"box {corners}", "dim"))
    body = Text()
    for part, style in zip(parts, ("dim", "bold yellow", "dim"), strict=True):
        lines = part.replace("\f", "\n").split("\n")
        body.append("\n".join(printable(line.expandtabs(4)) for line in lines), style)
    if body.plain.strip():
        console.print()
        console.print(body, soft_wrap=not console.is_terminal)


def note_line(path: str, notes: Sequence[Note], state: str) -> str:
    """Return one line that says what happened to a file and why."""
    reasons = [
        flat(note.message) + (f" (page {note.page})" if note.page is not None else "")
        for note in notes
    ]
    return f"{state}: {short_path(path)}: {'; '.join(reasons) or 'no reason was given'}"


@contextlib.contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Draw one bar a stage on standard error while the block runs; None when it is no terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<7}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=open_console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def contextual_progress(
    progress: bool | Progress,
) -> contextlib.AbstractContextManager[Progress | None]:
    """Return bars for True, nothing for False, and a callable as it is."""
    if progress is True:
        return progress_bars()
    return contextlib.nullcontext(progress or None)
