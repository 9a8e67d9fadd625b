"""Keep what follows from the catalogue in step with it: words, leftovers, erasure."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from foveate.index.catalog import generation, get_meta, set_meta
from foveate.index.lexical import WordDocument, Words, WordsWriter, pending
from foveate.index.storage import make_folder, sync_folder
from foveate.index.stores import folder_of, store_of
from foveate.index.texts import TextCutter
from foveate.index.towers import Tower
from foveate.pipeline.errors import CorruptIndex, IndexWriteError

_LOG = logging.getLogger(__name__)


def words_folder(root: Path, db: sqlite3.Connection) -> Path:
    """Return the folder of the words that the catalogue names."""
    return root / "words" / str(get_meta(db, "words", 1))


class WordsKeeper:
    """Brings the words to the catalogue's newest commit. One per writer."""

    def __init__(self, root: Path, title_repeats: int) -> None:
        self.root = root
        self._title_repeats = title_repeats
        self._writer: WordsWriter | None = None
        self._state: tuple[int, int] | None = None

    def catch_up(self, db: sqlite3.Connection) -> None:
        """Apply what was committed since; build anew when the words contradict the catalogue.

        Raises:
            IndexWriteError: the words could not be written. The catalogue is not touched.
        """
        now = generation(db)
        if self._state is None:
            self._state = self._inspect(db, now)
            if self._state is None:
                self.rebuild(db)
                return
        done, last = self._state
        if done == now:
            return
        removed, rows = pending(db, done, last)
        top = top_passage(db)
        self._state = None
        try:
            if self._writer is None:
                self._writer = WordsWriter(words_folder(self.root, db), self._title_repeats)
            self._writer.update(_documents(db, rows), removed, now, top)
        except IndexWriteError as error:
            # what a killed writer left may be in tantivy's way: begin afresh beside it
            _LOG.warning("the words are built anew: %s", error)
            self._writer = None
            self.rebuild(db)
            return
        except BaseException:
            # a writer that took a part of it would write that part twice
            self._writer = None
            raise
        self._state = (now, top)

    def rebuild(self, db: sqlite3.Connection) -> None:
        """Build the words anew, beside the old ones, and let the catalogue name them."""
        self.close()
        now, top = generation(db), top_passage(db)
        parent = self.root / "words"
        taken = [int(p.name) for p in parent.iterdir() if p.name.isdigit()]
        number = max([*taken, int(get_meta(db, "words", 1))]) + 1
        make_folder(parent / str(number))
        writer = WordsWriter(parent / str(number), self._title_repeats)
        _, rows = pending(db, now, 0)
        writer.update(_documents(db, rows), (), now, top)
        set_meta(db, "words", number)
        self._writer, self._state = writer, (now, top)
        sweep(self.root, db)

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._state = None
            writer.close()

    def _inspect(self, db: sqlite3.Connection, now: int) -> tuple[int, int] | None:
        try:
            words = Words(words_folder(self.root, db))
        except CorruptIndex:
            return None
        if not 0 <= words.generation <= now:
            return None
        if words.generation == now:
            (n,) = db.execute("SELECT count(*) FROM passages").fetchone()
            if n != words.n:
                return None
        return words.generation, words.last


def top_passage(db: sqlite3.Connection) -> int:
    """Return the largest passage id ever given."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'passages'").fetchone()
    return 0 if row is None else int(row[0])


def _documents(
    db: sqlite3.Connection, rows: Iterator[tuple[object, ...]]
) -> Iterator[WordDocument]:
    cutter = TextCutter()
    for id_, source, modality, context, start, stop, language in rows:
        text = cutter.cut(db, source, start, stop) if start is not None else ""  # type: ignore[arg-type]
        yield WordDocument(id_, source, modality, context, text, language)  # type: ignore[arg-type]


def sweep(root: Path, db: sqlite3.Connection) -> None:
    """Delete what no commit names: segments and words of writers that were stopped."""
    listed = {r[0] for r in db.execute("SELECT name FROM segments")}
    for path in (*root.glob("vectors/*/*.seg*"), *root.glob("tokens/*/*.seg*")):
        if path.name not in listed:
            path.unlink(missing_ok=True)
    for pattern in ("vectors/*/*.new", "tokens/*/*.new", "*.bak.new"):
        for path in root.glob(pattern):
            path.unlink(missing_ok=True)
    current = words_folder(root, db)
    for path in root.glob("words/*"):
        if path != current and path.name.isdigit():
            shutil.rmtree(path, ignore_errors=True)


def rewrite_segments(root: Path, db: sqlite3.Connection, towers: dict[str, Tower]) -> None:
    """Write the vectors of living passages as one segment a tower. In an open transaction."""
    for role, tower in towers.items():
        folder, store = folder_of(root, tower), store_of(tower)
        snapshot = store.load(db, folder, tower, None)
        if snapshot.alive is None and len(snapshot.segments) <= 1:
            continue
        parts = []
        for segment, offset in zip(snapshot.segments, snapshot.offsets[:-1], strict=True):
            rows = segment.rows
            if snapshot.alive is not None:
                keep = np.flatnonzero(snapshot.alive[offset : offset + len(rows)])
                rows = rows.keep(keep)
            if len(rows):
                parts.append(rows)
        db.execute("DELETE FROM segments WHERE role = ?", (role,))
        if parts:
            name = f"{0:08d}-{os.urandom(4).hex()}.seg"
            n, crc = store.write(folder / name, parts, tower)
            db.execute("INSERT INTO segments VALUES (?, ?, 0, ?, ?)", (role, name, n, crc))
        db.execute("UPDATE towers SET layout = layout + 1 WHERE role = ?", (role,))


def erase(root: Path, db: sqlite3.Connection) -> bool:
    """Leave no page of what was removed in the catalogue's files, nor in backups of it.

    Returns False when a reader kept the log from being emptied; the next writer empties it.
    """
    for path in root.glob("catalog.sqlite.v*.bak*"):
        path.unlink(missing_ok=True)
    sync_folder(root)
    db.execute("VACUUM")
    busy = True
    with suppress(sqlite3.OperationalError):
        busy = bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
    return not busy
