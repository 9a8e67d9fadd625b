"""CSV and TSV: one Document a row, streamed; columns become typed metadata."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foveate.pipeline.ingest import records
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.decode import SAMPLE_BYTES, decode_as, detect
from foveate.pipeline.ingest.lines import line_encoding, raw_lines
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.records import Record
from foveate.pipeline.types import Document, Note

_DELIMITERS = ",;\t|"
# columns get their types from so many rows
_TYPED_ROWS = 500
# a quoted cell over more lines than this is an opening quote that was never closed
_CELL_LINES = 1000
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?\Z")
_BOOLEANS = {"true": True, "false": False}


@dataclass(slots=True)
class _Row:
    raw: bytes
    cells: list[str]
    bad: str | None = None


@dataclass(slots=True)
class _Columns:
    """names, and each column's type: what all of the first rows agree on."""

    names: list[str]
    types: list[type] = field(default_factory=list)

    def text_columns(self) -> tuple[str, ...]:
        return tuple(n for n, kind in zip(self.names, self.types, strict=True) if kind is str)


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield a Document for each data row. Memory holds the rows that columns are typed from."""
    with file.open() as handle:
        sample = handle.read(SAMPLE_BYTES)
        encoding, notes = detect(sample, override=options.encoding)
        if encoding == "ascii":
            # later lines may hold more than the sample does
            encoding = "utf-8"
        handle.seek(0)
        text = clean(decode_as(sample, encoding).text)[0].lstrip("\ufeff")
        delimiter = find_delimiter(text, "\t" if file.type == "tsv" else None)
        lines = raw_lines(handle, encoding, options.max_record_bytes)
        rows = _read_rows(lines, line_encoding(encoding), delimiter)
        head = _first_row(rows)
        if head is None:
            return
        first: list[_Row] = []
        for row in rows:
            first.append(row)
            if len(first) == _TYPED_ROWS:
                break
        named = _is_header(head.cells, [row.cells for row in first])
        if not named:
            first.insert(0, head)
            notes = (*notes, Note("info", "no header row; columns are numbered"))
        columns = _Columns(_names(head.cells if named else [""] * len(head.cells)))
        _type_columns(columns, (row.cells for row in first))
        salt = head.raw + b"\n" if named else b""
        found = _records(_chain(first, rows), columns, salt)
        yield from records.load(
            file,
            options,
            found,
            encoding=encoding,
            notes=notes,
            text_columns=columns.text_columns,
        )


def find_delimiter(sample: str, usual: str | None = None) -> str:
    """Return the delimiter that cuts the first lines into the most equal cells."""
    lines = [line for line in sample.split("\n")[:40] if line.strip()]
    if lines and (match := re.fullmatch(r"sep=(.)", lines[0].strip())):
        return match.group(1)
    best, best_score = usual or ",", 0.0
    for delimiter in _DELIMITERS:
        widths = [len(row) for row in _parse(lines, delimiter)]
        if not widths or max(widths) < 2:
            continue
        usual_width = max(set(widths), key=lambda width: (widths.count(width), width))
        if usual_width < 2:
            continue
        score = widths.count(usual_width) / len(widths) + 0.01 * min(usual_width, 20)
        score += 0.5 if delimiter == usual else 0.0
        if score > best_score:
            best, best_score = delimiter, score
    return best


def looks_like_table(sample: str) -> bool:
    """Whether a text of unknown kind is surely a table: 4 lines or more, all of one width."""
    lines = [line for line in sample.split("\n")[:-1][:40] if line.strip()]
    if len(lines) < 4:
        return False
    delimiter = find_delimiter(sample)
    widths = {len(row) for row in _parse(lines, delimiter)}
    return len(widths) == 1 and widths.pop() >= 3


def _parse(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return []


class _Unclosed(Exception):
    """A quoted cell went on for too many lines."""


class _Feed:
    """Hands lines to csv.reader one by one and keeps the bytes of those it took for a row."""

    def __init__(self, lines: Iterator[tuple[bytes, bool]], encoding: str) -> None:
        self.lines = lines
        self.encoding = encoding
        self.again: deque[bytes] = deque()
        self.taken: list[bytes] = []
        self.dropped = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self.taken) > _CELL_LINES:
            raise _Unclosed
        raw = self.again.popleft() if self.again else self._next_line()
        text = decode_as(raw, self.encoding).text
        self.taken.append(raw)
        # csv.reader wants no NUL and no lone CR inside a line
        return text.lstrip("\ufeff").replace("\x00", "")

    def _next_line(self) -> bytes:
        raw, whole = next(self.lines)
        self.dropped = self.dropped or not whole
        return raw

    def take(self) -> bytes:
        raw = b"".join(self.taken).rstrip(b"\r\n")
        self.taken = []
        return raw


def _read_rows(
    lines: Iterator[tuple[bytes, bool]], encoding: str, delimiter: str
) -> Iterator[_Row]:
    """Yield the rows that are not empty; a line that cannot be parsed is a bad row."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 27))
    feed = _Feed(lines, encoding)
    reader = csv.reader(feed, delimiter=delimiter)
    while True:
        bad = None
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except _Unclosed:
            head, *rest = feed.taken
            feed.taken = [head]
            feed.again.extendleft(reversed(rest))
            cells = decode_as(head, encoding).text.strip("\r\n").split(delimiter)
            reader = csv.reader(feed, delimiter=delimiter)
        except csv.Error as error:
            bad = str(error)
            reader = csv.reader(feed, delimiter=delimiter)
        if feed.dropped:
            bad, feed.dropped = "longer than ingest.max_record_bytes", False
        raw = feed.take()
        if bad or any(cell.strip() for cell in cells):
            yield _Row(raw, cells, bad)


def _first_row(rows: Iterator[_Row]) -> _Row | None:
    for row in rows:
        if row.bad is None and not (len(row.cells) <= 2 and row.raw[:4].lower() == b"sep="):
            return row
    return None


def _is_header(head: list[str], below: list[list[str]]) -> bool:
    """A header has a word in every cell it uses, no number, none twice."""
    names = [cell.strip() for cell in head if cell.strip()]
    if not below or not names or len(set(names)) < len(names):
        return False
    return not any(_NUMBER.match(name) for name in names) and max(map(len, names)) <= 200


def _names(head: list[str]) -> list[str]:
    names: list[str] = []
    for i, cell in enumerate(head):
        name = " ".join(clean(cell)[0].split()) or f"column_{i + 1}"
        names.append(name if name not in names else f"{name}_{i + 1}")
    return names


def _type_columns(columns: _Columns, rows: Iterable[list[str]]) -> None:
    """Settle each column's type: '007' anywhere keeps the whole column text."""
    values: list[list[str]] = [[] for _ in columns.names]
    for cells in rows:
        for column, cell in zip(values, cells, strict=False):
            if cell.strip():
                column.append(cell.strip())
    columns.types = [_type_of(column) for column in values]


def _type_of(values: list[str]) -> type:
    if not values:
        return str
    if all(_INTEGER.match(value) for value in values):
        return int
    if all(_NUMBER.match(value) for value in values):
        return float
    if all(value.lower() in _BOOLEANS for value in values):
        return bool
    return str


def _typed(cell: str, kind: type) -> Any:
    value = cell.strip()
    if kind is int and _INTEGER.match(value):
        return int(value)
    if kind is float and _NUMBER.match(value):
        return float(value)
    if kind is bool and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    return value


def _records(rows: Iterable[_Row], columns: _Columns, salt: bytes) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        fields: dict[str, Any] = {}
        for i, cell in enumerate(row.cells):
            if not cell.strip():
                continue
            if i < len(columns.names):
                fields[columns.names[i]] = _typed(cell, columns.types[i])
            else:
                fields[f"column_{i + 1}"] = cell.strip()
        yield Record(number, row.raw, fields, row.bad, salt)


def _chain(first: list[_Row], rows: Iterator[_Row]) -> Iterator[_Row]:
    while first:
        yield first.pop(0)
    yield from rows
