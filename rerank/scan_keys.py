"""Keys of passages that a reader has read: kept in memory, and beside the index when asked for.

Where there is a file, a key becomes int8 with one scale a token and head before it is used for
the first time, so what is stored and what is fresh score the same. The file is a cache: it can be
deleted at any time, and one that cannot be read is begun anew. SQLite makes it safe to kill a
writer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

log = logging.getLogger(__name__)

FILE = "keys.sqlite"
FORMAT = 1
LIMIT_BYTES = 4 << 30  # of the file; the oldest keys make room
_BATCH = 400
_MOST = 127


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """One block's keys. codes: (g, t, d), float or int8. scales: (g, t) float16 of int8 codes."""

    codes: NDArray[np.int8] | NDArray[np.float32]
    scales: NDArray[np.float16] | None = None

    @classmethod
    def quantised(cls, wide: NDArray[np.float32]) -> Keys:
        """Make int8 codes of keys (g, t, d)."""
        scales = (np.abs(wide).max(-1) / _MOST).clip(6e-8).astype(np.float16)
        codes = np.rint(wide / scales[..., None].astype(np.float32)).clip(-_MOST, _MOST)
        return cls(codes.astype(np.int8), scales)

    def tensor(self, device: torch.device) -> Tensor:
        """Return (g, t, d) float32."""
        codes = torch.from_numpy(self.codes).to(device)
        if self.scales is None:
            return codes
        scales = torch.from_numpy(self.scales).to(device)
        return codes.float() * scales.float()[..., None]

    @property
    def n_bytes(self) -> int:
        return self.codes.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def pack(self) -> tuple[str, bytes]:
        """Return a row of the file: the shape, and int8 codes and scales behind each other."""
        shape = " ".join(map(str, self.codes.shape))
        scales = b"" if self.scales is None else self.scales.tobytes()
        return shape, self.codes.tobytes() + scales

    @classmethod
    def unpack(cls, shape: str, data: bytes) -> Keys | None:
        """Read a row, None if it does not hold what its shape says."""
        sizes = [int(part) for part in shape.split()]
        if len(sizes) != 3:
            return None
        g, t, d = sizes
        if len(data) != g * t * (d + 2):
            return None
        codes = np.frombuffer(data, dtype=np.int8, count=g * t * d).reshape(g, t, d)
        scales = np.frombuffer(data, dtype=np.float16, offset=g * t * d).reshape(g, t)
        return cls(codes.copy(), scales.copy())


class KeyCache:
    """Keys by name: the newest in memory, all in a file if a folder is given."""

    def __init__(self, folder: Path | None, keep_bytes: int, *, limit: int = LIMIT_BYTES) -> None:
        self._path = None if folder is None else folder / FILE
        self._keep, self._limit = keep_bytes, limit
        self._held: OrderedDict[bytes, Keys] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @staticmethod
    def name(mark: str, ids: NDArray[np.int64]) -> bytes:
        """Name a block. mark: all that its keys depend on beside its own tokens."""
        return hashlib.sha256(mark.encode() + b"\0" + ids.tobytes()).digest()[:20]

    def make(self, keys: Tensor) -> Keys:
        """Return keys (g, t, d) in the form in which they are kept."""
        wide = keys.detach().float().cpu().numpy()
        return Keys(wide.copy()) if self._path is None else Keys.quantised(wide)

    def get(self, names: Sequence[bytes]) -> dict[bytes, Keys]:
        """Return what is kept of these."""
        with self._lock:
            found = {name: self._held[name] for name in names if name in self._held}
            for name in found:
                self._held.move_to_end(name)
            missing = [name for name in dict.fromkeys(names) if name not in found]
            if self._path is None or not missing:
                return found
            stored = self._read(self._path, missing)
            self._hold(stored)
        return found | stored

    def put(self, keys: Mapping[bytes, Keys]) -> None:
        """Keep keys; a folder that cannot be written to keeps none."""
        with self._lock:
            self._hold(keys)
            if self._path is not None and keys:
                self._write(self._path, keys)

    def _hold(self, keys: Mapping[bytes, Keys]) -> None:
        for name, some in keys.items():
            if name not in self._held:
                self._held[name] = some
                self._size += some.n_bytes
        while self._size > self._keep and self._held:
            self._size -= self._held.popitem(last=False)[1].n_bytes

    def _read(self, path: Path, names: Sequence[bytes]) -> dict[bytes, Keys]:
        found: dict[bytes, Keys] = {}
        if not path.is_file():
            return found
        try:
            with closing(_connect(path)) as db:
                for start in range(0, len(names), _BATCH):
                    some = names[start : start + _BATCH]
                    marks = ",".join("?" * len(some))
                    sql = f"SELECT name, shape, data FROM keys WHERE name IN ({marks})"
                    for name, shape, data in db.execute(sql, list(some)):
                        keys = Keys.unpack(shape, data)
                        if keys is not None:
                            found[name] = keys
        except sqlite3.DatabaseError as error:
            log.info("the kept keys %s cannot be read: %s", path, error)
        return found

    def _write(self, path: Path, keys: Mapping[bytes, Keys]) -> None:
        rows = [(name, *some.pack()) for name, some in keys.items()]
        for attempt in range(2):
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with closing(_connect(path)) as db:
                    _prepare(db)
                    os.chmod(path, 0o600)
                    with db:
                        db.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?, ?)", rows)
                        self._make_room(db)
                return
            except sqlite3.OperationalError as error:
                # locked by another process, or a folder for reading only: the memory has them
                log.info("keys are not kept in %s: %s", path, error)
                return
            except (sqlite3.DatabaseError, OSError) as error:
                log.info("keys are not kept in %s: %s", path, error)
                if attempt or isinstance(error, OSError):
                    return
                for end in ("", "-wal", "-shm"):
                    Path(f"{path}{end}").unlink(missing_ok=True)

    def _make_room(self, db: sqlite3.Connection) -> None:
        (size,) = db.execute("SELECT coalesce(sum(length(data)), 0) FROM keys").fetchone()
        while size > self._limit:
            rows = db.execute(
                "SELECT rowid, length(data) FROM keys ORDER BY rowid LIMIT 64"
            ).fetchall()
            if not rows:
                return
            db.execute("DELETE FROM keys WHERE rowid <= ?", (rows[-1][0],))
            size -= sum(length for _, length in rows)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=2.0)


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, FORMAT):
        db.execute("DROP TABLE IF EXISTS keys")
    db.execute("CREATE TABLE IF NOT EXISTS keys (name BLOB PRIMARY KEY, shape TEXT, data BLOB)")
    db.execute(f"PRAGMA user_version = {FORMAT}")
