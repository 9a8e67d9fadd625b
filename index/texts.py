"""Cut pieces out of the canonical texts without unpacking more than they touch."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict

from foveate.index.records import CHUNK_CHARS, unpack_text


class TextCutter:
    """Reads texts in chunks and keeps the last ones, as neighbours are often cut together."""

    def __init__(self, max_chunks: int = 64) -> None:
        self._max_chunks = max_chunks
        self._kept: OrderedDict[tuple[int, int], str] = OrderedDict()

    def cut(self, db: sqlite3.Connection, source: int, start: int, stop: int) -> str:
        """Return code points [start, stop) of a source's text."""
        if start >= stop:
            return ""
        first, last = start // CHUNK_CHARS, (stop - 1) // CHUNK_CHARS
        text = "".join(self._chunk(db, source, n) for n in range(first, last + 1))
        return text[start - first * CHUNK_CHARS : stop - first * CHUNK_CHARS]

    def _chunk(self, db: sqlite3.Connection, source: int, number: int) -> str:
        key = (source, number)
        found = self._kept.get(key)
        if found is not None:
            return found
        row = db.execute("SELECT data FROM texts WHERE source = ? AND number = ?", key).fetchone()
        found = "" if row is None else unpack_text(row[0])
        self._kept[key] = found
        if len(self._kept) > self._max_chunks:
            self._kept.popitem(last=False)
        return found


def whole_text(db: sqlite3.Connection, source: int) -> str:
    """Return the whole canonical text of a source."""
    rows = db.execute("SELECT data FROM texts WHERE source = ? ORDER BY number", (source,))
    return "".join(unpack_text(r[0]) for r in rows)
