"""JSON lines, and a JSON array of objects: one Document a record; other JSON is kept as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest import records
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.decode import SAMPLE_BYTES, decode, decode_as, detect
from foveate.pipeline.ingest.lines import line_encoding, raw_lines
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.records import Record
from foveate.pipeline.types import Block, Document

# NaN and Infinity are not JSON; they become null rather than spoil a filter
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_SPACE = re.compile(r"[ \t\r\n]*")


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield a Document for each line; the file is streamed, memory holds one line."""
    with file.open() as handle:
        sample = handle.read(SAMPLE_BYTES)
        encoding, notes = detect(sample, override=options.encoding)
        if encoding == "ascii":
            # later lines may hold more than the sample does
            encoding = "utf-8"
        handle.seek(0)
        rows = _read_lines(
            raw_lines(handle, encoding, options.max_record_bytes), line_encoding(encoding)
        )
        yield from records.load(file, options, rows, encoding=encoding, notes=notes)


def _read_lines(lines: Iterator[tuple[bytes, bool]], encoding: str) -> Iterator[Record]:
    row = 0
    for raw, whole in lines:
        stripped = raw.strip()
        if whole and not stripped:
            continue
        text = decode_as(raw, encoding).text.strip("\ufeff \t\r\n")
        if whole and not text.strip():
            continue
        row += 1
        if whole:
            yield _record(row, stripped, text)
        else:
            yield Record(row, b"", {}, "longer than ingest.max_record_bytes")


def _record(row: int, raw: bytes, text: str) -> Record:
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {error}"
        return Record(row, raw, {}, reason)
    return _checked(row, raw, value)


def _checked(row: int, raw: bytes, value: Any) -> Record:
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        return Record(row, raw, {}, f"expected an object, got {type(value).__name__}")
    return Record(row, raw, value)


def load_json(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield a Document for each object of an array; one Document for any other JSON."""
    decoded = decode(file.data, override=options.encoding)
    text = decoded.text.lstrip("\ufeff")
    start = _skip(text, 0)
    if text[start : start + 1] == "[" and text[_skip(text, start + 1) :][:1] == "{":
        rows = _read_array(text, start + 1)
        yield from records.load(file, options, rows, encoding=decoded.encoding, notes=decoded.notes)
        return
    cleaned = clean(decoded.text)[0]
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        cleaned,
        encoding=decoded.encoding,
        blocks=(Block("code", 0, len(cleaned)),) if cleaned.strip() else (),
        notes=decoded.notes,
    )


def _read_array(text: str, position: int) -> Iterator[Record]:
    row = 0
    while True:
        position = _skip(text, position)
        if text[position : position + 1] in {"]", ""}:
            return
        row += 1
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield Record(row, b"", {}, f"not JSON, the rest of the array is lost: {error}")
            return
        yield _checked(row, text[position:end].encode("utf-8", "surrogatepass"), value)
        position = _skip(text, end)
        if text[position : position + 1] == ",":
            position += 1


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def looks_like_lines(head: str) -> bool:
    """Whether the first lines of a text are JSON objects."""
    lines = [line for line in head.split("\n")[:-1] if line.strip()][:3]
    if not lines:
        return False
    try:
        return all(isinstance(_DECODER.decode(line.strip()), dict) for line in lines)
    except (ValueError, RecursionError, LoadError):
        return False
