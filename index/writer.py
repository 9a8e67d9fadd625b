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
from foveate.index.entries import Entries, check_drafts
from foveate.index.pending import PendingVectors
from foveate.index.reading import FILE_COLUMNS, file_record
from foveate.index.storage import writing
from foveate.index.stores import store_of
from foveate.index.upkeep import WordsKeeper, erase, rewrite_segments, sweep
from foveate.pipeline.errors import IndexWriteError
from foveate.pipeline.types import Document, Draft, FileRecord, FileState, MultiVectors, Note

if TYPE_CHECKING:
    from foveate.index.disk import DiskIndex
    from foveate.pipeline.types import Floats, Ints

    Vectors = Mapping[str, tuple[Ints, Floats | MultiVectors]]


class Writer:
    """The one writer of an index, made by `DiskIndex.writer`. Used by one thread at a time."""

    def __init__(self, index: DiskIndex) -> None:
        self._index = index
        self._folder = index.path
        self.db = index._catalog.writer()
        self.entries = Entries(self.db)
        self.pending = PendingVectors(self.db, index._catalog, index.path, index.towers)
        self.keeper = WordsKeeper(index.path, index.plan.title_repeats)
        self._rounds: dict[bytes, tuple[int, int]] = {}
        self._thread = threading.RLock()
        self.in_change = False

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
        return self.entries.source_row(source_id) is not None

    def vectors_for(self, keys: Sequence[str], role: str) -> dict[str, Floats]:
        """Return the committed vectors of texts or pictures by key.

        Each is (dim,) float32, or (t, dim) where the role has one a token.
        """
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
            snapshot = self.pending.snapshot(role)
            names = {records.pack_key(k): k for k in some}
            places = snapshot.rows_of(np.array([r[1] for r in rows], dtype=np.int64))
            have = np.flatnonzero(places >= 0)
            vectors = snapshot.take(places[have])
            for number, place in enumerate(have):
                found[names[rows[place][0]]] = vectors[number]
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
        (m, dim) float32, L2-normalised, or m `MultiVectors` where the role has one a token).
        keys: one a draft, or none at all.

        A source that is there already is only linked when nothing of it differs, and replaced
        when something does.

        Raises:
            ShapeError: a draft isn't verbatim, or the vectors don't fit the drafts or the tower.
        """
        keys = list(keys) if keys else [None] * len(drafts)
        check_drafts(document, drafts, keys)
        checked = {r: self.pending.check(r, *v, len(drafts)) for r, v in vectors.items()}
        with self._change():
            mark = records.fingerprint(document, drafts, keys)
            known = self.entries.source_row(document.source_id)
            if known is not None:
                (old,) = self.db.execute(
                    "SELECT fingerprint FROM sources WHERE row = ?", (known,)
                ).fetchone()
                if old == mark and self.pending.has(known, checked):
                    self._hold(path, known, document.row)
                    return
                self.entries.drop_passages([known])
            row = self.entries.put_source(self._round(path)[0], document, mark, known)
            ids = self.entries.put_passages(row, drafts, keys)
            for role, (places, array) in checked.items():
                self.pending.put(role, row, ids[places], drafts, places, array)
            self._hold(path, row, document.row)

    def link(self, path: str, source_id: str, row: int | None) -> None:
        """Say that a file that was begun also holds a source that is there already."""
        known = self.entries.source_row(source_id)
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
            self.entries.drop_orphans([g[0] for g in gone])
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
            self.entries.drop_orphans([h[0] for h in held])
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
                replaced = self.pending.write()
                number = generation(self.db) + 1
                set_meta(self.db, "generation", number)
                self.db.execute("UPDATE removed SET generation = ? WHERE generation < 0", (number,))
                self.db.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        self.pending.clear()
        self.pending.refresh()
        if replaced:
            sweep(self._folder, self.db)
        self.keeper.catch_up(self.db)

    def rollback(self) -> None:
        """Forget all since the last commit."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.pending.clear()
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
            self.pending.refresh()
            self.keeper.rebuild(self.db)
            return erase(self._folder, self.db)

    def refresh_neighbours(self) -> None:
        """Bring FAISS files and centroids to the newest commit, where a size calls for them."""
        for role, tower in self._index.towers.items():
            folder = self._index.vectors_folder(role)
            snapshot = self.pending.snapshot(role)
            with writing(self._folder):
                store_of(tower).refresh(snapshot, folder, self._index.plan)

    # ---- parts

    def _change(self) -> _Change:
        return _Change(self)

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

    def _hold(self, path: str, source: int, line: int | None) -> None:
        row, number = self._round(path)
        self.db.execute(
            "INSERT INTO holdings VALUES (?, ?, ?, ?) ON CONFLICT (file, source, line) "
            "DO UPDATE SET round = excluded.round",
            (row, source, -1 if line is None else line, number),
        )


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
                if not self.writer.in_change:
                    db.execute("SAVEPOINT change")
                    self.outer = self.writer.in_change = True
                    self.marks = self.writer.pending.marks()
        except BaseException:
            self.writer._thread.release()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        writer, db = self.writer, self.writer.db
        try:
            if not self.outer:
                return
            writer.in_change = False
            if error is None:
                db.execute("RELEASE change")
                return
            writer.pending.cut(self.marks)
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
