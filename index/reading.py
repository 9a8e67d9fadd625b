"""Read passages, sources and files out of the catalogue."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from foveate.index import records
from foveate.index.texts import TextCutter, whole_text
from foveate.pipeline.errors import QueryError
from foveate.pipeline.types import MODALITIES, FileRecord, Locator, Note, Passage, Source

_PASSAGE = (
    "p.id, p.number, p.source, p.modality, p.start, p.stop, p.page, p.line, p.boxes, p.context"
)
_SOURCE = "row, id, media_type, type, size, modified, title, language, encoding, n_pages, metadata"
FILE_COLUMNS = "f.path, f.raw, f.size, f.mtime_ns, f.digest, f.state, f.notes, f.complete, f.row"
NEXT_FIELD = (
    "SELECT name FROM fields WHERE name {sign} ? AND {column} IS NOT NULL ORDER BY name LIMIT 1"
)
_LABEL = re.compile(r"^([0-9a-f]{4,32}):(\d+)$")
_BATCH = 500
_MAX_SOURCES = 2_000


class PassageReader:
    """Makes passages of rows; keeps sources and pieces of text that were read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = -1
        self._sources: OrderedDict[int, Source] = OrderedDict()
        self._cutter = TextCutter()

    def passages(self, db: sqlite3.Connection, now: int, ids: Sequence[int]) -> list[Passage]:
        """Return the passages of these ids in this order; those that are gone are left out."""
        rows: dict[int, Any] = {}
        for start in range(0, len(ids), _BATCH):
            some = [int(i) for i in ids[start : start + _BATCH]]
            marks = ",".join("?" * len(some))
            for row in db.execute(f"SELECT {_PASSAGE} FROM passages p WHERE id IN ({marks})", some):
                rows[row[0]] = row
        found = [rows[int(i)] for i in ids if int(i) in rows]
        with self._lock:
            if self._generation != now:
                # a source's places may change with a commit, and a replaced source its text
                self._generation = now
                self._sources.clear()
                self._cutter = TextCutter()
            self._load(db, [r[2] for r in found])
            self._cutter.load(db, [(r[2], r[4], r[5]) for r in found if r[4] is not None])
            return [self._passage(db, row) for row in found]

    def _load(self, db: sqlite3.Connection, rows: Sequence[int]) -> None:
        missing = [r for r in dict.fromkeys(rows) if r not in self._sources]
        while len(self._sources) + len(missing) > _MAX_SOURCES and self._sources:
            gone, _ = self._sources.popitem(last=False)
            if gone in rows:
                missing.append(gone)
        for start in range(0, len(missing), _BATCH):
            for source in sources_of(db, missing[start : start + _BATCH]).items():
                self._sources[source[0]] = source[1]

    def _passage(self, db: sqlite3.Connection, row: Any) -> Passage:
        id_, number, source, modality, start, stop, page, line, boxes, context = row
        text = "" if start is None else self._cutter.cut(db, source, start, stop)
        span = None if start is None else (start, stop)
        owner = self._sources[source]
        _, mark, row_now = owner.uri.rpartition("#row=")
        if line is not None and mark:
            # a record keeps its passages when it moves to another row of its file
            line = int(row_now)
        place = Locator(span, page, records.unpack_boxes(boxes), line)
        return Passage(id_, number, owner, MODALITIES[modality], text, place, context)


def sources_of(db: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Source]:
    """Return sources by their row. rows: at most a few hundred."""
    marks = ",".join("?" * len(rows))
    uris: dict[int, list[str]] = {}
    for source, raw, line in db.execute(
        "SELECT h.source, f.raw, h.line FROM holdings h JOIN files f ON f.row = h.file "
        f"WHERE h.source IN ({marks}) ORDER BY f.complete DESC, h.file, h.line",
        rows,
    ):
        path = os.fsdecode(raw)
        uris.setdefault(source, []).append(path if line < 0 else f"{path}#row={line}")
    found = {}
    for row in db.execute(f"SELECT {_SOURCE} FROM sources WHERE row IN ({marks})", rows):
        values = (row[1], tuple(uris.get(row[0], ("",))), *row[2:10], json.loads(row[10]))
        found[row[0]] = Source(*values)
    return found


def all_sources(db: sqlite3.Connection) -> Iterator[Source]:
    """Yield every source in the order in which they came."""
    last = 0
    while rows := [
        r[0]
        for r in db.execute("SELECT row FROM sources WHERE row > ? ORDER BY row LIMIT 200", (last,))
    ]:
        last = rows[-1]
        found = sources_of(db, rows)
        yield from (found[r] for r in rows if r in found)


def source_row(db: sqlite3.Connection, source_id: str) -> int:
    """Return the row of a source.

    Raises:
        QueryError: no source has this id.
    """
    row = db.execute("SELECT row FROM sources WHERE id = ?", (source_id,)).fetchone()
    if row is None:
        raise QueryError(f"the index has no source {source_id!r}")
    return int(row[0])


def unknown_fields(db: sqlite3.Connection, names: Sequence[str]) -> list[str]:
    """Return those of the names that no source has a metadata field of, by one look-up each."""
    return [n for n in names if _next_field(db, n, strict=False) != n]


def field_names(db: sqlite3.Connection, most: int) -> list[str]:
    """Return at most so many names of metadata fields, in order, by one look-up each."""
    found: list[str] = []
    name = _next_field(db, "", strict=False)
    while name is not None and len(found) < most:
        found.append(name)
        name = _next_field(db, name, strict=True)
    return found


def _next_field(db: sqlite3.Connection, name: str, *, strict: bool) -> str | None:
    """Return the first field's name at or after a name, or after it."""
    sign = ">" if strict else ">="
    # one half for each of the two indexes
    rows = [
        db.execute(NEXT_FIELD.format(sign=sign, column=column), (name,)).fetchone()
        for column in ("text", "number")
    ]
    return min((str(row[0]) for row in rows if row is not None), default=None)


def source_text(db: sqlite3.Connection, source_id: str) -> str:
    return whole_text(db, source_row(db, source_id))


def find_passage(db: sqlite3.Connection, name: str) -> int:
    """Return the id of the passage that a label (`<12 digits>:<number>`) or an id names.

    Raises:
        QueryError: nothing, or more than one source, has that name.
    """
    name = name.strip()
    if name.isascii() and name.isdigit() and len(name) < 19:
        row = db.execute("SELECT id FROM passages WHERE id = ?", (int(name),)).fetchone()
        if row is None:
            raise QueryError(f"the index has no passage {name}")
        return int(row[0])
    match = _LABEL.match(name.lower())
    if match is None:
        raise QueryError(
            f"{name!r} names no passage: give the label that search prints, such as "
            "'0123456789ab:4', or a passage's number"
        )
    prefix, number = match[1], int(match[2])
    rows = db.execute(
        "SELECT p.id FROM sources s JOIN passages p ON p.source = s.row "
        "WHERE s.id >= ? AND s.id < ? AND p.number = ? LIMIT 2",
        (prefix, prefix + "g", min(number, 2**62)),
    ).fetchall()
    if not rows:
        raise QueryError(f"the index has no passage {name!r}: its file may have changed since")
    if len(rows) > 1:
        raise QueryError(f"{name!r} names passages of several sources: give more digits")
    return int(rows[0][0])


def first_label(db: sqlite3.Connection, path: str) -> str | None:
    """Return the label of a file's first passage, None where the file has none."""
    row = db.execute(
        "SELECT s.id, p.number FROM files f JOIN holdings h ON h.file = f.row "
        "JOIN sources s ON s.row = h.source JOIN passages p ON p.source = s.row "
        "WHERE f.raw = ? ORDER BY h.line, p.number LIMIT 1",
        (records.path_bytes(path),),
    ).fetchone()
    return None if row is None else f"{row[0][:12]}:{row[1]}"


def neighbour_ids(db: sqlite3.Connection, passage: Passage, before: int, after: int) -> list[int]:
    """Return ids of the passages of the same source with numbers around this one's."""
    rows = db.execute(
        "SELECT p.id FROM passages p JOIN sources s ON s.row = p.source "
        "WHERE s.id = ? AND p.number BETWEEN ? AND ? ORDER BY p.number",
        (passage.source.id, passage.number - before, passage.number + after),
    )
    return [r[0] for r in rows]


def file_record(db: sqlite3.Connection, row: Sequence[Any]) -> FileRecord:
    """Make a `FileRecord` of the columns `FILE_COLUMNS`."""
    n_sources, n_passages = db.execute(
        "SELECT count(DISTINCT source), (SELECT count(*) FROM passages WHERE source IN "
        "(SELECT source FROM holdings WHERE file = ?1)) FROM holdings WHERE file = ?1",
        (row[8],),
    ).fetchone()
    state, notes = row[5], records.unpack_notes(row[6])
    if not row[7]:
        state = "partial"
        notes = (*notes, Note("info", "not yet wholly indexed: the next run resumes it"))
    return FileRecord(
        os.fsdecode(row[1]), row[2], row[3], row[4], state, notes, n_sources, n_passages
    )


def all_files(db: sqlite3.Connection, state: str | None) -> Iterator[FileRecord]:
    """Yield files in the order of their names' bytes; state 'partial' = begun, not finished."""
    where, bound = "", []
    if state == "partial":
        where = "AND NOT f.complete"
    elif state is not None:
        where, bound = "AND f.complete AND f.state = ?", [state]
    last = b""
    while rows := db.execute(
        f"SELECT {FILE_COLUMNS} FROM files f WHERE f.raw > ? {where} ORDER BY f.raw LIMIT 500",
        [last, *bound],
    ).fetchall():
        last = rows[-1][1]
        for row in rows:
            yield file_record(db, row)


def languages(db: sqlite3.Connection) -> tuple[str | None, ...]:
    """Return the languages of the sources, without looking at each."""
    rows = db.execute(
        "WITH RECURSIVE l(v) AS (SELECT min(language) FROM sources UNION ALL SELECT "
        "(SELECT min(language) FROM sources WHERE language > v) FROM l WHERE v IS NOT NULL) "
        "SELECT v FROM l WHERE v IS NOT NULL"
    )
    found: list[str | None] = [r[0] for r in rows]
    if db.execute("SELECT 1 FROM sources WHERE language IS NULL LIMIT 1").fetchone() or not found:
        found.append(None)
    return tuple(found)


def counts_by_modality(db: sqlite3.Connection) -> dict[int, int]:
    rows = db.execute("SELECT modality, count(*) FROM passages GROUP BY modality")
    return {r[0]: r[1] for r in rows}


def modalities(db: sqlite3.Connection) -> list[int]:
    """Return the codes of the modalities that some passage has."""
    codes = range(len(MODALITIES))
    sql = "SELECT 1 FROM passages WHERE modality = ? LIMIT 1"
    return [c for c in codes if db.execute(sql, (c,)).fetchone()]
