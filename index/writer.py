"""Write to an index: everything between two commits happens together or not at all."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index import records
from foveate.index.catalog import generation, set_meta
from foveate.index.reading import FILE_COLUMNS, file_record
from foveate.index.segments import Rows, write_segment
from foveate.index.storage import make_folder, writing
from foveate.index.upkeep import WordsKeeper, erase, rewrite_segments, sweep
from foveate.index.vectors import Snapshot, load_snapshot, refresh_neighbours
from foveate.pipeline.errors import IndexWriteError, ShapeError, SpaceMismatch
from foveate.pipeline.types import Document, Draft, FileRecord, FileState, Note

if TYPE_CHECKING:
    from foveate.index.disk import DiskIndex
    from foveate.pipeline.types import Floats, Ints

    Vectors = Mapping[str, tuple[Ints, Floats]]

_MAX_SEGMENTS = 16


class Writer:
    """The one writer of an index, made by `DiskIndex.writer`. Used by one thread at a time."""

    def __init__(self, index: DiskIndex) -> None:
        self._index = index
        self._folder = index.path
        self.db = index._catalog.writer()
        self._pending: dict[str, list[Rows]] = {role: [] for role in index.towers}
        self._snapshots: dict[str, Snapshot] = {}
        self._stale: set[str] = set()
        self.keeper = WordsKeeper(index.path)
        self._rounds: dict[bytes, tuple[int, int]] = {}
        self._thread = threading.RLock()

    # ---- what is known

    def file(self, path: str) -> FileRecord | None:
        """Return what the catalogue, with what was written since, knows of a file."""
        row = self.db.execute(
            f"SELECT {FILE_COLUMNS} FROM files f WHERE f.raw = ?", (records.path_bytes(path),)
        ).fetchone()
        return None if row is None else file_record(self.db, row)

    def files_under(self, root: str) -> Iterator[FileRecord]:
        """Yield the files in a folder and below, or the one file, in the order of their bytes."""
        key = records.path_bytes(root)
        below = key if key.endswith(b"/") else key + os.fsencode(os.sep)
        rows = self.db.execute(
            f"SELECT {FILE_COLUMNS} FROM files f WHERE f.raw = ? OR (f.raw >= ? AND f.raw < ?) "
            "ORDER BY f.raw",
            (key, below, below[:-1] + bytes([below[-1] + 1])),
        ).fetchall()
        for row in rows:
            yield file_record(self.db, row)

    def is_complete(self, path: str) -> bool:
        """Tell whether a file was finished: False while begun, or cut short by a crash."""
        row = self.db.execute(
            "SELECT complete FROM files WHERE raw = ?", (records.path_bytes(path),)
        ).fetchone()
        return row is not None and bool(row[0])

    def by_digest(self, digest: str) -> list[str]:
        """Return the paths of complete files with these bytes."""
        rows = self.db.execute(
            "SELECT raw FROM files WHERE digest = ? AND complete ORDER BY row", (digest,)
        )
        return [os.fsdecode(r[0]) for r in rows]

    def has_source(self, source_id: str) -> bool:
        return self._source_row(source_id) is not None

    def vectors_for(self, keys: Sequence[str], role: str) -> dict[str, Floats]:
        """Return the committed vectors of texts or pictures by key. Each is (dim,) float32."""
        found: dict[str, Floats] = {}
        for start in range(0, len(keys), 500):
            some = list(dict.fromkeys(keys[start : start + 500]))
            marks = ",".join("?" * len(some))
            rows = self.db.execute(
                f"SELECT key, id FROM passages WHERE key IN ({marks})",
                [records.pack_key(k) for k in some],
            ).fetchall()
            if not rows:
                continue
            snapshot = self._snapshot(role)
            names = {records.pack_key(k): k for k in some}
            places = snapshot.rows_of(np.array([r[1] for r in rows], dtype=np.int64))
            have = np.flatnonzero(places >= 0)
            vectors = snapshot.take(places[have])
            for place, vector in zip(have, vectors, strict=True):
                found[names[rows[place][0]]] = vector
        return found

    # ---- what is written

    def begin(self, path: str, size: int, mtime_ns: int, digest: str) -> None:
        """Start, or start again, the record of a file. Its old sources stay until `finish`."""
        with self._change():
            number = int(
                self.db.execute("SELECT value FROM meta WHERE key = 'rounds'").fetchone()[0]
            )
            set_meta(self.db, "rounds", number + 1)
            raw = records.path_bytes(path)
            self.db.execute(
                "INSERT INTO files (raw, path, name, size, mtime_ns, digest, state, complete, "
                "round) VALUES (?, ?, ?, ?, ?, ?, 'indexed', 0, ?) ON CONFLICT (raw) DO UPDATE SET "
                "size = excluded.size, mtime_ns = excluded.mtime_ns, digest = excluded.digest, "
                "state = 'indexed', notes = '[]', complete = 0, round = excluded.round",
                (raw, *_names(path), size, mtime_ns, digest, number + 1),
            )
            row = self.db.execute("SELECT row FROM files WHERE raw = ?", (raw,)).fetchone()[0]
            self._rounds[raw] = (row, number + 1)

    def add(
        self,
        path: str,
        document: Document,
        drafts: Sequence[Draft],
        vectors: Vectors,
        keys: Sequence[str | None] = (),
    ) -> None:
        """Add a source to a file that was begun.

        vectors: role -> (rows (m,) int that index into drafts, ascending or not, each once;
        (m, dim) float32, L2-normalised). keys: one a draft, or none at all.

        A source that is there already is only linked when nothing of it differs, and replaced
        when something does.

        Raises:
            ShapeError: a draft isn't verbatim, or the vectors don't fit the drafts or the tower.
        """
        keys = list(keys) if keys else [None] * len(drafts)
        _check_drafts(document, drafts, keys)
        checked = {r: self._check_vectors(r, *v, len(drafts)) for r, v in vectors.items()}
        with self._change():
            mark = records.fingerprint(document, drafts, keys)
            known = self._source_row(document.source_id)
            if known is not None:
                (old,) = self.db.execute(
                    "SELECT fingerprint FROM sources WHERE row = ?", (known,)
                ).fetchone()
                if old == mark and self._has_vectors(known, checked):
                    self._hold(path, known, document.row)
                    return
                self._drop_passages([known])
            row = self._put_source(path, document, mark, known)
            ids = self._put_passages(row, drafts, keys)
            for role, (places, array) in checked.items():
                self._put_vectors(role, row, ids[places], drafts, places, array)
            self._hold(path, row, document.row)

    def link(self, path: str, source_id: str, row: int | None) -> None:
        """Say that a file that was begun also holds a source that is there already."""
        known = self._source_row(source_id)
        if known is None:
            raise IndexWriteError(f"cannot link {source_id!r}: the index has no such source")
        with self._change():
            self._hold(path, known, row)

    def finish(self, path: str, state: FileState, notes: Sequence[Note]) -> None:
        """Close the record of a file: what it no longer holds goes, if no other file holds it."""
        with self._change():
            row, number = self._round(path)
            gone = self.db.execute(
                "SELECT DISTINCT source FROM holdings WHERE file = ? AND round <> ?", (row, number)
            ).fetchall()
            self.db.execute("DELETE FROM holdings WHERE file = ? AND round <> ?", (row, number))
            self.db.execute(
                "UPDATE files SET state = ?, notes = ?, complete = 1 WHERE row = ?",
                (state, records.pack_notes(notes), row),
            )
            self._drop_orphans([g[0] for g in gone])
            self._rounds.pop(records.path_bytes(path), None)

    def skip(
        self, path: str, size: int, mtime_ns: int, notes: Sequence[Note], state: FileState,
        digest: str | None = None,
    ) -> None:  # fmt: skip
        """Record a file that holds nothing: skipped, failed or empty. What it held goes."""
        with self._change():
            self.begin(path, size, mtime_ns, digest or "")
            if digest is None:
                self.db.execute(
                    "UPDATE files SET digest = NULL WHERE raw = ?", (records.path_bytes(path),)
                )
            self.finish(path, state, notes)

    def touch(self, path: str, size: int, mtime_ns: int) -> None:
        """Note a new size and time of a file whose bytes are as they were."""
        with self._change():
            self.db.execute(
                "UPDATE files SET size = ?, mtime_ns = ? WHERE raw = ?",
                (size, mtime_ns, records.path_bytes(path)),
            )

    def copy_file(self, path: str, size: int, mtime_ns: int, from_path: str) -> None:
        """Record a file with the same bytes as another: it holds the same sources."""
        raw = records.path_bytes(from_path)
        old = self.db.execute(
            "SELECT row, digest, state, notes FROM files WHERE raw = ? AND complete", (raw,)
        ).fetchone()
        if old is None:
            raise IndexWriteError(f"cannot copy {from_path!r}: the index has no such file")
        if records.path_bytes(path) == raw:
            self.touch(path, size, mtime_ns)
            return
        with self._change():
            self.begin(path, size, mtime_ns, old[1] or "")
            row, number = self._round(path)
            self.db.execute(
                "INSERT INTO holdings (file, source, line, round) SELECT ?, source, line, ? "
                "FROM holdings WHERE file = ? "
                "ON CONFLICT (file, source, line) DO UPDATE SET round = excluded.round",
                (row, number, old[0]),
            )
            self.finish(path, old[2], records.unpack_notes(old[3]))

    def remove(self, path: str) -> bool:
        """Forget a file; its sources go with it where no other file holds them."""
        with self._change():
            raw = records.path_bytes(path)
            row = self.db.execute("SELECT row FROM files WHERE raw = ?", (raw,)).fetchone()
            if row is None:
                return False
            held = self.db.execute(
                "SELECT DISTINCT source FROM holdings WHERE file = ?", row
            ).fetchall()
            self.db.execute("DELETE FROM files WHERE row = ?", row)
            self._rounds.pop(raw, None)
            self._drop_orphans([h[0] for h in held])
            return True

    # ---- commit

    def commit(self) -> None:
        """Make all since the last commit durable, and let the words catch up.

        Raises:
            IndexWriteError: it could not be written; the index is as at the last commit.
        """
        if not self.db.in_transaction:
            return
        try:
            with writing(self._folder):
                written = self._write_segments()
                number = generation(self.db) + 1
                set_meta(self.db, "generation", number)
                self.db.execute("UPDATE removed SET generation = ? WHERE generation < 0", (number,))
                self.db.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        for role in written:
            self._pending[role] = []
        self._stale.update(self._snapshots)
        self.keeper.catch_up(self.db)

    def rollback(self) -> None:
        """Forget all since the last commit."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        for role in self._pending:
            self._pending[role] = []
        self._rounds.clear()
        sweep(self._index.path, self.db)

    def close(self) -> None:
        """Roll back what is not committed, and let go of the files."""
        if self.db.in_transaction:
            self.rollback()
        try:
            self.keeper.close()
        finally:
            self.db.close()

    def compact(self) -> bool:
        """Erase what was removed from every file. Returns False if a reader held up the end."""
        self.commit()
        with writing(self._folder):
            try:
                self.db.execute("BEGIN IMMEDIATE")
                rewrite_segments(self._folder, self.db, dict(self._index.towers))
                self.db.execute("DELETE FROM removed")
                set_meta(self.db, "generation", generation(self.db) + 1)
                self.db.execute("COMMIT")
            except BaseException:
                self.rollback()
                raise
            self._snapshots.clear()
            self.keeper.rebuild(self.db)
            return erase(self._folder, self.db)

    def refresh_neighbours(self) -> None:
        """Bring the FAISS files to the newest commit, where a size calls for one."""
        for role in self._index.towers:
            folder = self._index.vectors_folder(role)
            snapshot = self._snapshot(role)
            with writing(self._folder):
                refresh_neighbours(snapshot, folder, self._index.plan)

    # ---- parts

    def _change(self) -> _Change:
        return _Change(self)

    def _snapshot(self, role: str) -> Snapshot:
        if role not in self._index.towers:
            raise SpaceMismatch(
                f"the index has no vectors for {role!r} (it has: {', '.join(self._index.towers)})"
            )
        if role not in self._snapshots or role in self._stale:
            tower = self._index.towers[role]
            folder = self._index.vectors_folder(role)
            with self._index._catalog.snapshot() as db:
                self._snapshots[role] = load_snapshot(db, folder, tower, self._snapshots.get(role))
            self._stale.discard(role)
        return self._snapshots[role]

    def _round(self, path: str) -> tuple[int, int]:
        raw = records.path_bytes(path)
        if raw not in self._rounds:
            # begun before a commit or by a writer that was killed: go on where it stopped
            found = self.db.execute(
                "SELECT row, round FROM files WHERE raw = ? AND NOT complete", (raw,)
            ).fetchone()
            if found is None:
                raise IndexWriteError(f"{path!r} was not begun")
            self._rounds[raw] = (found[0], found[1])
        return self._rounds[raw]

    def _source_row(self, source_id: str) -> int | None:
        row = self.db.execute("SELECT row FROM sources WHERE id = ?", (source_id,)).fetchone()
        return None if row is None else int(row[0])

    def _hold(self, path: str, source: int, line: int | None) -> None:
        row, number = self._round(path)
        self.db.execute(
            "INSERT INTO holdings VALUES (?, ?, ?, ?) ON CONFLICT (file, source, line) "
            "DO UPDATE SET round = excluded.round",
            (row, source, -1 if line is None else line, number),
        )

    def _put_source(self, path: str, document: Document, mark: bytes, known: int | None) -> int:
        (mtime_ns,) = self.db.execute(
            "SELECT mtime_ns FROM files WHERE row = ?", (self._round(path)[0],)
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

    def _put_passages(
        self, source: int, drafts: Sequence[Draft], keys: Sequence[str | None]
    ) -> Ints:
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

    def _put_vectors(
        self, role: str, source: int, ids: Ints, drafts: Sequence[Draft], places: Ints,
        array: Floats,
    ) -> None:  # fmt: skip
        if not len(ids):
            return
        order = np.argsort(ids)
        kinds = np.array([records.modality_code(drafts[p].modality) for p in places], np.uint8)
        owners = np.full(len(ids), source, dtype=np.int64)
        self._pending[role].append(Rows(ids[order], owners, kinds[order], array[order]))

    def _has_vectors(self, source: int, checked: Mapping[str, tuple[Ints, Floats]]) -> bool:
        rows = self.db.execute(
            "SELECT id FROM passages WHERE source = ? ORDER BY number", (source,)
        ).fetchall()
        ids = np.array([r[0] for r in rows], dtype=np.int64)
        for role, (places, _) in checked.items():
            held = {int(i) for part in self._pending[role] for i in part.ids}
            wanted = ids[places]
            have = self._snapshot(role).rows_of(wanted) >= 0
            if not all(h or int(i) in held for i, h in zip(wanted, have, strict=True)):
                return False
        return True

    def _check_vectors(
        self, role: str, rows: Any, array: Any, n_drafts: int
    ) -> tuple[Ints, Floats]:
        if role not in self._index.towers:
            raise SpaceMismatch(
                f"the index has no vectors for {role!r} (it has: {', '.join(self._index.towers)})"
            )
        dim = self._index.towers[role].dim
        places = np.asarray(rows, dtype=np.int64).reshape(-1)
        vectors: Floats = np.ascontiguousarray(array, dtype=np.float32)
        if vectors.shape != (len(places), dim):
            raise ShapeError(
                f"expected ({len(places)}, {dim}) float32 for {role!r}, got {vectors.shape}"
            )
        if len(places) and (places.min() < 0 or places.max() >= n_drafts):
            raise ShapeError(f"vectors of {role!r} name drafts outside 0..{n_drafts - 1}")
        if len(np.unique(places)) != len(places):
            raise ShapeError(f"two vectors of {role!r} name one draft")
        norms = np.linalg.norm(vectors, axis=1)
        if not (np.isfinite(norms).all() and (abs(norms - 1) <= 1e-2).all()):
            raise ShapeError(f"expected finite vectors of length 1 for {role!r}")
        return places, vectors

    def _drop_orphans(self, candidates: Sequence[int]) -> None:
        orphans = [
            row
            for row in candidates
            if not self.db.execute("SELECT 1 FROM holdings WHERE source = ?", (row,)).fetchone()
        ]
        self._drop_passages(orphans)
        self.db.executemany("DELETE FROM sources WHERE row = ?", [(r,) for r in orphans])

    def _drop_passages(self, sources: Sequence[int]) -> None:
        for row in sources:
            self.db.execute(
                "INSERT INTO removed SELECT id, -1 FROM passages WHERE source = ?", (row,)
            )
            self.db.execute("DELETE FROM passages WHERE source = ?", (row,))

    def _write_segments(self) -> list[str]:
        written = []
        for role, parts in self._pending.items():
            parts = [p for p in map(self._living, parts) if len(p)]
            if not parts:
                continue
            parts.sort(key=lambda p: int(p.ids[0]))
            tower = self._index.towers[role]
            folder = self._index.vectors_folder(role)
            listed = self.db.execute(
                "SELECT name, position, n FROM segments WHERE role = ? ORDER BY position", (role,)
            ).fetchall()
            parts, replaced = self._absorb(role, listed, parts)
            make_folder(folder)
            position = listed[-1][1] + 1 if listed else 0
            name = f"{position:08d}-{os.urandom(4).hex()}.seg"
            n, crc = write_segment(folder / name, parts, tower.dim)
            self.db.executemany("DELETE FROM segments WHERE name = ?", [(r,) for r in replaced])
            self.db.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?)", (role, name, position, n, crc)
            )
            written.append(role)
        return written

    def _living(self, part: Rows) -> Rows:
        gone = self.db.execute(
            "SELECT passage FROM removed WHERE generation < 0 AND passage BETWEEN ? AND ?",
            (int(part.ids[0]), int(part.ids[-1])),
        ).fetchall()
        keep = ~np.isin(part.ids, [g[0] for g in gone])
        if keep.all():
            return part
        return part.keep(np.flatnonzero(keep))

    def _absorb(
        self, role: str, listed: list[tuple[str, int, int]], parts: list[Rows]
    ) -> tuple[list[Rows], list[str]]:
        """Take the last segments into the new one while they are small, so that few remain."""
        if len(listed) < _MAX_SEGMENTS:
            return parts, []
        snapshot = self._snapshot(role)
        size = sum(map(len, parts))
        replaced: list[str] = []
        before: list[Rows] = []
        for name, _, n in reversed(listed):
            if n > 2 * size and len(listed) - len(replaced) < _MAX_SEGMENTS:
                break
            if n > 2 * size and replaced:
                break
            before.append(next(s.rows for s in snapshot.segments if s.name == name))
            replaced.append(name)
            size += n
        return [*reversed(before), *parts], replaced


class _Change:
    """A change: the first since a commit starts the transaction, a failed one undoes itself.

    Nested changes are one.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.outer = False

    def __enter__(self) -> None:
        self.writer._thread.acquire()
        db = self.writer.db
        try:
            with writing(self.writer._folder):
                if not db.in_transaction:
                    db.execute("BEGIN IMMEDIATE")
                if not self.writer.__dict__.get("_in_change"):
                    db.execute("SAVEPOINT change")
                    self.outer = True
                    self.writer.__dict__["_in_change"] = True
                    self.marks = {r: len(p) for r, p in self.writer._pending.items()}
        except BaseException:
            self.writer._thread.release()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        writer, db = self.writer, self.writer.db
        try:
            if not self.outer:
                return
            writer.__dict__["_in_change"] = False
            if error is None:
                db.execute("RELEASE change")
                return
            for role, n in self.marks.items():
                del writer._pending[role][n:]
            if db.in_transaction:
                db.execute("ROLLBACK TO change")
                db.execute("RELEASE change")
            else:
                # SQLite gave up the whole transaction, as it does when the disk is full
                writer.rollback()
            if isinstance(error, sqlite3.Error | OSError):
                with writing(writer._folder):
                    raise error
        finally:
            writer._thread.release()


def _names(path: str) -> tuple[str, str]:
    text = records.path_text(path)
    return text, os.path.basename(text)


def _check_drafts(document: Document, drafts: Sequence[Draft], keys: Sequence[str | None]) -> None:
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
