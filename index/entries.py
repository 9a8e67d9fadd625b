"""Put sources and passages into the catalogue, and take them out."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foveate.index import records
from foveate.pipeline.errors import ShapeError
from foveate.pipeline.types import Document, Draft

if TYPE_CHECKING:
    from foveate.pipeline.types import Ints


class Entries:
    """The rows of sources and passages, through the writer's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def source_row(self, source_id: str) -> int | None:
        """Return the row of a source, None if there is none."""
        row = self.db.execute("SELECT row FROM sources WHERE id = ?", (source_id,)).fetchone()
        return None if row is None else int(row[0])

    def put_source(self, file: int, document: Document, mark: bytes, known: int | None) -> int:
        """Write a source of the file of this row, over the one known. Returns its row."""
        (mtime_ns,) = self.db.execute(
            "SELECT mtime_ns FROM files WHERE row = ?", (file,)
        ).fetchone()
        modified = mtime_ns / 1e9
        text = records.tidy(document.text)
        optional = [None if v is None else records.tidy(v) for v in (
            document.title, document.language, document.encoding)]  # fmt: skip
        values = (
            document.source_id, document.media_type, document.type, *optional, document.size,
            modified, records.year_of(document.metadata, modified),
            len(document.page_starts) or None, len(text),
            records.pack_metadata(document.metadata), mark, records.pack_words(document.words),
        )  # fmt: skip
        if known is None:
            cursor = self.db.execute(
                "INSERT INTO sources (id, media_type, type, title, language, encoding, size, "
                "modified, year, n_pages, n_chars, metadata, fingerprint, words) "
                f"VALUES ({','.join('?' * len(values))})",
                values,
            )
            known = int(cursor.lastrowid or 0)
        else:
            self.db.execute(
                "UPDATE sources SET id = ?, media_type = ?, type = ?, title = ?, language = ?, "
                "encoding = ?, size = ?, modified = ?, year = ?, n_pages = ?, n_chars = ?, "
                "metadata = ?, fingerprint = ?, words = ? WHERE row = ?",
                (*values, known),
            )
            self.db.execute("DELETE FROM texts WHERE source = ?", (known,))
            self.db.execute("DELETE FROM fields WHERE source = ?", (known,))
        self.db.executemany(
            "INSERT INTO texts VALUES (?, ?, ?)",
            [(known, i, data) for i, data in enumerate(records.pack_text(text))],
        )
        self.db.executemany(
            "INSERT INTO fields VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(known, *field) for field in records.field_rows(document.metadata)],
        )
        return known

    def put_passages(
        self, source: int, drafts: Sequence[Draft], keys: Sequence[str | None]
    ) -> Ints:
        """Write the passages of a source. Returns (n,) int64, their ids, ascending."""
        ids = np.empty(len(drafts), dtype=np.int64)
        for number, (draft, key) in enumerate(zip(drafts, keys, strict=True)):
            place = draft.locator
            start, stop = place.span if place.span else (None, None)
            cursor = self.db.execute(
                "INSERT INTO passages (source, number, modality, start, stop, page, line, boxes, "
                "context, key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    source, number, records.modality_code(draft.modality), start, stop, place.page,
                    place.row, records.pack_boxes(place.boxes), records.tidy(draft.context),
                    records.pack_key(key),
                ),
            )  # fmt: skip
            ids[number] = cursor.lastrowid or 0
        return ids

    def drop_orphans(self, candidates: Sequence[int]) -> None:
        """Delete those of these sources that no file holds any more."""
        orphans = [
            row
            for row in candidates
            if not self.db.execute("SELECT 1 FROM holdings WHERE source = ?", (row,)).fetchone()
        ]
        self.drop_passages(orphans)
        self.db.executemany("DELETE FROM sources WHERE row = ?", [(r,) for r in orphans])

    def drop_passages(self, sources: Sequence[int]) -> None:
        """Delete the passages of sources, and note their ids for what follows the catalogue."""
        for row in sources:
            self.db.execute(
                "INSERT INTO removed SELECT id, -1 FROM passages WHERE source = ?", (row,)
            )
            self.db.execute("DELETE FROM passages WHERE source = ?", (row,))


def check_drafts(document: Document, drafts: Sequence[Draft], keys: Sequence[str | None]) -> None:
    """Raise ShapeError unless each draft is what stands at its place in the text."""
    if len(keys) != len(drafts):
        raise ShapeError(f"expected {len(drafts)} keys, got {len(keys)}")
    for number, draft in enumerate(drafts):
        span = draft.locator.span
        cut = document.text[span[0] : span[1]] if span else ""
        if cut != draft.text or (span and span[1] > len(document.text)):
            raise ShapeError(
                f"passage {number} of {document.source_id} isn't verbatim: the text at {span} is "
                f"{cut[:40]!r}, got {draft.text[:40]!r}"
            )
