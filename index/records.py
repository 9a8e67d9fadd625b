"""Turn the shared types into rows of the catalogue and back."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.types import MODALITIES, Box, Document, Draft, Note, WordBoxes

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_CHARS = 32_768
"""A text is compressed in pieces of this many code points, so that a passage of a long book is
cut without unpacking the book."""
_MAX_DEPTH = 8
_ISO_DATE = re.compile(r"^(\d{4})-\d{2}(-\d{2}|$)")
_YEAR = re.compile(r"^\s*(\d{4})\b")


def tidy(text: str) -> str:
    """Replace what SQLite and UTF-8 cannot hold: lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def path_bytes(path: str) -> bytes:
    """Return a path's own bytes: the key of a file, whatever its name holds."""
    return os.fsencode(path)


def path_text(path: str) -> str:
    """Return a path as filters and people see it."""
    return os.fsencode(path).decode("utf-8", "replace")


def pack_text(text: str) -> list[bytes]:
    """Compress a text in pieces of `CHUNK_CHARS` code points."""
    return [
        zlib.compress(text[i : i + CHUNK_CHARS].encode("utf-8"), 6)
        for i in range(0, len(text), CHUNK_CHARS)
    ]


def unpack_text(data: bytes) -> str:
    return zlib.decompress(data).decode("utf-8")


def pack_boxes(boxes: Sequence[Box]) -> bytes | None:
    """Four little-endian doubles a box, so that what comes back is what went in."""
    if not boxes:
        return None
    flat = [v for b in boxes for v in (b.x0, b.y0, b.x1, b.y1)]
    return struct.pack(f"<{len(flat)}d", *flat)


def unpack_boxes(data: bytes | None) -> tuple[Box, ...]:
    if not data:
        return ()
    return tuple(Box(*four) for four in struct.iter_unpack("<4d", data))


def pack_words(words: WordBoxes | None) -> bytes | None:
    """A count, then spans, pages and boxes as little-endian arrays, compressed."""
    if words is None:
        return None
    arrays = (
        np.ascontiguousarray(words.spans, "<i4").tobytes(),
        np.ascontiguousarray(words.pages, "<i4").tobytes(),
        np.ascontiguousarray(words.boxes, "<f4").tobytes(),
    )
    return zlib.compress(struct.pack("<Q", len(words.spans)) + b"".join(arrays), 6)


def unpack_words(data: bytes | None) -> WordBoxes | None:
    if data is None:
        return None
    raw = zlib.decompress(data)
    (n,) = struct.unpack_from("<Q", raw)
    spans: NDArray[np.int32] = np.frombuffer(raw, "<i4", 2 * n, 8).reshape(n, 2)
    pages: NDArray[np.int32] = np.frombuffer(raw, "<i4", n, 8 + 8 * n)
    boxes: NDArray[np.float32] = np.frombuffer(raw, "<f4", 4 * n, 8 + 12 * n).reshape(n, 4)
    return WordBoxes(spans, pages, boxes)


def pack_key(key: str | None) -> bytes | None:
    """A hexadecimal digest takes half the room as bytes; any other key is kept as it is."""
    if key is None:
        return None
    if len(key) == 64:
        try:
            return bytes.fromhex(key)
        except ValueError:
            pass
    return b"t" + key.encode("utf-8", "surrogateescape")


def pack_notes(notes: Iterable[Note]) -> str:
    return json.dumps([[n.kind, n.message, n.page] for n in notes])


def unpack_notes(text: str) -> tuple[Note, ...]:
    return tuple(Note(kind, message, page) for kind, message, page in json.loads(text))


def pack_metadata(metadata: Mapping[str, Any]) -> str:
    """Write metadata as JSON; what JSON has no type for (a date) becomes its text."""
    return json.dumps(dict(metadata), default=str)


def field_rows(metadata: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield (name, kind, element, text, number, folded) for each value that a filter can reach.

    kind: 's' text, 'n' number, 'b' truth. Nested names are joined by dots; each element of a list
    is a row with element = 1. folded: the case-folded text where it differs.
    """
    for name, value in json.loads(pack_metadata(metadata)).items():
        yield from _field(tidy(str(name)), value, False, 0)


def _field(name: str, value: Any, element: bool, depth: int) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, bool):
        yield name, "b", int(element), None, float(value), None
    elif isinstance(value, int | float):
        number = float(value) if abs(value) < 1e300 else math.copysign(math.inf, value)
        if not math.isnan(number):
            yield name, "n", int(element), None, number, None
    elif isinstance(value, str):
        text = tidy(value)
        folded = text.casefold()
        yield name, "s", int(element), text, None, None if folded == text else folded
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value:
            yield from _field(name, item, True, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, item in value.items():
            yield from _field(f"{name}.{tidy(str(key))}", item, element, depth + 1)


def year_of(metadata: Mapping[str, Any], modified: float) -> int | None:
    """Return the year that the metadata states (year, then any date), else that of the file."""
    stated = metadata.get("year")
    if isinstance(stated, int) and not isinstance(stated, bool) and 0 < stated < 10_000:
        return stated
    names = ("year", "date", "published", "publication_date", "created", "taken", "modified")
    for name in names:
        value = metadata.get(name)
        if isinstance(value, datetime):
            return value.year
        if isinstance(value, str) and (match := _ISO_DATE.match(value) or _YEAR.match(value)):
            return int(match[1])
    try:
        return datetime.fromtimestamp(modified, UTC).year
    except (OverflowError, ValueError, OSError):
        return None


def fingerprint(document: Document, drafts: Sequence[Draft], keys: Sequence[str | None]) -> bytes:
    """Return 16 bytes that change when anything that is kept of a source changes."""
    digest = hashlib.blake2b(digest_size=16)
    facts = (
        document.media_type, document.type, document.title, document.language, document.encoding,
        document.size, len(document.page_starts), pack_metadata(document.metadata),
    )  # fmt: skip
    digest.update(repr(facts).encode("utf-8", "surrogatepass"))
    digest.update(document.text.encode("utf-8", "surrogatepass"))
    digest.update(pack_words(document.words) or b"")
    for draft, key in zip(drafts, keys, strict=True):
        place = (draft.modality, draft.locator, draft.context, key)
        digest.update(repr(place).encode("utf-8", "surrogatepass"))
    return digest.digest()


def modality_code(name: str) -> int:
    return MODALITIES.index(name)
