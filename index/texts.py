"""Cut pieces out of the canonical texts without unpacking more than they touch."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable

from foveate.index.records import CHUNK_CHARS, unpack_text

_BATCH = 250


class TextCutter:
    """Reads texts in chunks and keeps the last ones, as neighbours are often cut together."""

    def __init__(self, max_chunks: int = 512) -> None:
        self._max_chunks = max_chunks
        self._kept: OrderedDict[tuple[int, int], str] = OrderedDict()

    def load(self, db: sqlite3.Connection, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Read at once what cutting these (source, start, stop) will need."""
        wanted = {
            (source, number)
            for source, start, stop in pieces
            if start < stop
            for number in range(start // CHUNK_CHARS, (stop - 1) // CHUNK_CHARS + 1)
        }
        missing = [key for key in wanted if key not in self._kept]
        if len(missing) > self._max_chunks:
            return
        for at in range(0, len(missing), _BATCH):
            some = missing[at : at + _BATCH]
            marks = ",".join(["(?, ?)"] * len(some))
            rows = db.execute(
                "SELECT t.source, t.number, t.data FROM "
                f"(VALUES {marks}) v CROSS JOIN texts t ON t.source = v.column1 "
                "AND t.number = v.column2",
                [value for key in some for value in key],
            )
            for source, number, data in rows:
                self._keep((source, number), unpack_text(data))

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
        self._keep(key, found)
        return found

    def _keep(self, key: tuple[int, int], text: str) -> None:
        self._kept[key] = text
        if len(self._kept) > self._max_chunks:
            self._kept.popitem(last=False)


def whole_text(db: sqlite3.Connection, source: int) -> str:
    """Return the whole canonical text of a source."""
    rows = db.execute("SELECT data FROM texts WHERE source = ? ORDER BY number", (source,))
    return "".join(unpack_text(r[0]) for r in rows)
