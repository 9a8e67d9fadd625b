"""The catalogue: one SQLite file that says what is in the index. All else follows from it."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from foveate.pipeline.errors import CorruptIndex, IndexVersionError

FORMAT = 1
APPLICATION_ID = 0x666F7665  # "fove"
BUSY_MS = 30_000

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE towers (
    role TEXT PRIMARY KEY, tower TEXT NOT NULL, space TEXT NOT NULL, dim INTEGER NOT NULL,
    number INTEGER NOT NULL, layout INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;
CREATE TABLE files (
    row INTEGER PRIMARY KEY, raw BLOB NOT NULL UNIQUE, path TEXT NOT NULL, name TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, digest TEXT, state TEXT NOT NULL,
    notes TEXT NOT NULL DEFAULT '[]', complete INTEGER NOT NULL, round INTEGER NOT NULL
);
CREATE INDEX files_digest ON files (digest);
CREATE INDEX files_path ON files (path);
CREATE INDEX files_name ON files (name);
CREATE TABLE sources (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, media_type TEXT NOT NULL,
    type TEXT NOT NULL, title TEXT, language TEXT, encoding TEXT, size INTEGER NOT NULL,
    modified REAL NOT NULL, year INTEGER, n_pages INTEGER, n_chars INTEGER NOT NULL,
    metadata TEXT NOT NULL, fingerprint BLOB NOT NULL, words BLOB
);
CREATE INDEX sources_type ON sources (type);
CREATE INDEX sources_language ON sources (language);
CREATE INDEX sources_modified ON sources (modified);
CREATE INDEX sources_year ON sources (year);
CREATE INDEX sources_size ON sources (size);
CREATE TABLE texts (
    source INTEGER NOT NULL REFERENCES sources ON DELETE CASCADE, number INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (source, number)
) WITHOUT ROWID;
CREATE TABLE holdings (
    file INTEGER NOT NULL REFERENCES files ON DELETE CASCADE, source INTEGER NOT NULL
    REFERENCES sources, line INTEGER NOT NULL, round INTEGER NOT NULL,
    PRIMARY KEY (file, source, line)
) WITHOUT ROWID;
CREATE INDEX holdings_source ON holdings (source);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL REFERENCES sources,
    number INTEGER NOT NULL, modality INTEGER NOT NULL, start INTEGER, stop INTEGER,
    page INTEGER, line INTEGER, boxes BLOB, context TEXT NOT NULL, key BLOB
);
CREATE UNIQUE INDEX passages_source ON passages (source, number);
CREATE INDEX passages_key ON passages (key) WHERE key IS NOT NULL;
CREATE INDEX passages_modality ON passages (modality);
CREATE INDEX passages_page ON passages (page) WHERE page IS NOT NULL;
CREATE TABLE fields (
    source INTEGER NOT NULL REFERENCES sources ON DELETE CASCADE, name TEXT NOT NULL,
    kind TEXT NOT NULL, element INTEGER NOT NULL, text TEXT, number REAL, folded TEXT
);
CREATE INDEX fields_text ON fields (name, text, kind, source) WHERE text IS NOT NULL;
CREATE INDEX fields_number ON fields (name, number, kind, source) WHERE number IS NOT NULL;
CREATE INDEX fields_source ON fields (source);
CREATE TABLE segments (
    role TEXT NOT NULL REFERENCES towers, name TEXT NOT NULL UNIQUE, position INTEGER NOT NULL,
    n INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (role, position)
) WITHOUT ROWID;
CREATE TABLE removed (passage INTEGER PRIMARY KEY, generation INTEGER NOT NULL);
CREATE INDEX removed_generation ON removed (generation);
"""

MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}
"""MIGRATIONS[n] turns a catalogue of format n into one of format n + 1."""

_abandoned: list[sqlite3.Connection] = []


def _fold(text: str | None) -> str | None:
    return None if text is None else text.casefold()


def _connect(path: Path, mode: str, *, write: bool = False) -> sqlite3.Connection:
    # a file name may hold ?, # and %, which mean something in a URI
    quoted = "".join(
        chr(b) if chr(b).isalnum() and b < 128 else "/" if b == 47 else f"%{b:02X}"
        for b in os.fsencode(path)
    )
    db = sqlite3.connect(
        f"file:{quoted}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        timeout=BUSY_MS / 1000,
    )
    db.create_function("fold", 1, _fold, deterministic=True)
    db.execute("PRAGMA foreign_keys = ON")
    if write:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA cache_size = -32000")
    else:
        db.execute("PRAGMA query_only = ON")
    return db


def create_catalog(path: Path) -> None:
    """Make an empty catalogue with the present format."""
    path.touch(mode=0o600)
    with closing(_connect(path, "mode=rw", write=True)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
        db.execute("INSERT INTO meta VALUES ('generation', '0'), ('rounds', '0')")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class Catalog:
    """The connections to one catalogue file: a pool to read with, and one to write with.

    A connection is used by one thread at a time. After a fork the child opens its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pool: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._check_format()

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection that only reads; it sees the newest commit at each statement."""
        db = self._take()
        try:
            yield db
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, zlib.error, struct.error, ValueError, KeyError) as error:
            # SQLite quotes what it could not decode, line ends and all
            why = " ".join(str(error).split())[:200]
            raise CorruptIndex(
                f"the catalogue {str(self.path)!r} cannot be read: {why}: restore the file, or "
                "index the folder anew"
            ) from error
        finally:
            if db.in_transaction:
                db.rollback()
            with self._lock:
                if self._closed:
                    db.close()
                else:
                    self._pool.append(db)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection whose statements all see the same commit."""
        with self.reader() as db:
            db.execute("BEGIN")
            yield db

    def writer(self) -> sqlite3.Connection:
        """Open a connection that may write. The caller holds the writer's lock and closes it."""
        return _connect(self.path, "mode=rw", write=True)

    @property
    def generation(self) -> int:
        """The number of the newest commit."""
        with self.reader() as db:
            return generation(db)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, []
        if self._pid == os.getpid():
            for db in pool:
                db.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._pid != os.getpid():
                # SQLite forbids a child even to close what its parent opened
                _abandoned.extend(self._pool)
                self._pool, self._pid = [], os.getpid()
            if self._pool:
                return self._pool.pop()
        try:
            return self._open()
        except sqlite3.OperationalError as error:
            raise CorruptIndex(f"cannot open the catalogue {str(self.path)!r}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK):
            return _connect(self.path, "mode=rw")
        db = _connect(self.path, "mode=ro")
        try:
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # nobody's log is left, and none can be made where we may not write: the file is all
            db.close()
            if self.path.with_name(self.path.name + "-wal").exists():
                raise
            db = _connect(self.path, "immutable=1")
        return db

    def _check_format(self) -> None:
        try:
            with self.reader() as db:
                found = db.execute("PRAGMA user_version").fetchone()[0]
                owner = db.execute("PRAGMA application_id").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise CorruptIndex(f"{str(self.path)!r} is not a catalogue: {error}") from error
        if owner != APPLICATION_ID:
            raise CorruptIndex(f"{str(self.path)!r} is not a catalogue of foveate")
        if found > FORMAT:
            raise IndexVersionError(
                f"the index {str(self.path.parent)!r} has format {found} and this foveate reads up "
                f"to {FORMAT}: upgrade foveate"
            )
        self.format = found


def migrate(catalog: Catalog) -> None:
    """Bring an older catalogue up to date; the old one stays beside it as `.v<format>.bak`.

    The caller holds the writer's lock.

    Raises:
        IndexVersionError: no way leads from that format to this one.
    """
    with closing(catalog.writer()) as db:
        found = db.execute("PRAGMA user_version").fetchone()[0]
        missing = [n for n in range(found, FORMAT) if n not in MIGRATIONS]
        if missing:
            raise IndexVersionError(
                f"the index {str(catalog.path.parent)!r} has format {found}, which this foveate "
                f"cannot bring to {FORMAT}: index the folder anew"
            )
        backup = catalog.path.with_name(f"{catalog.path.name}.v{found}.bak")
        aside = backup.with_name(backup.name + ".new")
        aside.unlink(missing_ok=True)
        aside.touch(mode=0o600)
        with closing(sqlite3.connect(aside)) as copy:
            db.backup(copy)
        os.replace(aside, backup)
        for n in range(found, FORMAT):
            db.execute("BEGIN IMMEDIATE")
            try:
                MIGRATIONS[n](db)
                db.execute(f"PRAGMA user_version = {n + 1}")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.rollback()
                raise
    catalog.format = FORMAT


def generation(db: sqlite3.Connection) -> int:
    """Return the number of the newest commit that this connection sees."""
    row = db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
    return int(row[0])


def get_meta(db: sqlite3.Connection, key: str, default: Any = None) -> Any:
    """Return a JSON value that was kept under a key."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else json.loads(row[0])


def set_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    """Keep a JSON value under a key."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))
