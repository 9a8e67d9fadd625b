"""Records: each row of a CSV and each object of a JSON file becomes a Document of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.clean import clean, clean_value
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.types import Document, Note

# names that hold an identity and say nothing in words
_IDS = frozenset({"_id", "id", "uuid", "guid", "doc_id", "docid"})
_MAX_BAD_NOTES = 20


@dataclass(frozen=True, slots=True)
class Record:
    """A row: its number from 1, its bytes, its fields; or why it could not be read."""

    row: int
    raw: bytes
    fields: Mapping[str, Any]
    bad: str | None = None
    salt: bytes = b""


def load(
    file: OpenedFile,
    options: IngestOptions,
    records: Iterable[Record],
    *,
    encoding: str,
    notes: tuple[Note, ...] = (),
    text_columns: Callable[[], tuple[str, ...] | None] = lambda: None,
) -> Iterator[Document]:
    """Yield a Document for each good record; bad ones become notes of the one before them.

    text_columns: which columns hold text, where the file as a whole says so.

    Raises:
        LoadError: if no record of the file can be read.
    """
    waiting: Document | None = None
    pending = list(notes)
    n_bad = 0
    first_bad = ""
    for record in records:
        if record.bad is not None:
            n_bad += 1
            first_bad = first_bad or f"row {record.row}: {record.bad}"
            if n_bad <= _MAX_BAD_NOTES:
                pending.append(Note("failed", f"row {record.row} was not read: {record.bad}"))
            continue
        if waiting is not None:
            yield waiting
        waiting = _document(file, options, record, encoding, text_columns())
        if pending:
            waiting = replace(waiting, notes=(*pending, *waiting.notes))
            pending = []
    if n_bad > _MAX_BAD_NOTES:
        pending.append(Note("failed", f"{n_bad} rows were not read, {_MAX_BAD_NOTES} are listed"))
    if waiting is None:
        if n_bad:
            raise LoadError(f"no row could be read; {first_bad}")
        return
    yield replace(waiting, notes=(*waiting.notes, *pending))


def _document(
    file: OpenedFile,
    options: IngestOptions,
    record: Record,
    encoding: str,
    columns: tuple[str, ...] | None,
) -> Document:
    fields = record.fields
    title_value = fields.get(options.title_column)
    title = clean(_as_text(title_value))[0].strip() if title_value is not None else ""
    named = tuple(name for name in options.text_columns if name in fields)
    used: set[str] = {options.title_column} if title else set()
    if named:
        used.update(named)
        text = _as_text(fields[named[0]]) if len(named) == 1 else _as_lines(fields, named)
    elif "text" in fields and (title or _as_text(fields["text"]).strip()):
        used.add("text")
        text = _as_text(fields["text"])
    else:
        text = _as_lines(fields, _spoken(fields, columns, options.title_column))
    text = clean(text)[0]
    metadata = {k: v for k, v in fields.items() if k not in used and v not in (None, "")}
    if not text.strip():
        # a record that has only a title is found by it
        text = title
    return Document(
        hashlib.sha256(record.salt + record.raw).hexdigest(),
        file.media_type,
        file.type,
        len(record.raw),
        text,
        title=title or None,
        encoding=encoding,
        metadata=clean_value(metadata),
        row=record.row,
    )


def _spoken(
    fields: Mapping[str, Any], columns: tuple[str, ...] | None, title_column: str
) -> tuple[str, ...]:
    """The fields that hold words; all of them if none does."""
    if columns is None:
        columns = tuple(k for k, v in fields.items() if isinstance(v, str) and k not in _IDS)
    rest = tuple(name for name in columns if name != title_column and name not in _IDS)
    return rest or tuple(name for name in fields if name != title_column)


def _as_lines(fields: Mapping[str, Any], names: Iterable[str]) -> str:
    values = ((name, " ".join(_as_text(fields.get(name)).split())) for name in names)
    return "\n".join(f"{name}: {value}" for name, value in values if value)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_as_text(item) for item in value)
    if isinstance(value, dict):
        return "\n".join(f"{k}: {_as_text(v)}" for k, v in value.items())
    return str(value)
