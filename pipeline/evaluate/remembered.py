"""Encoders with a memory: the texts of one run for the next, the queries of one run together."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Floats

BLOCK = 500  # keys of one query to the file


class Remembered:
    """An encoder whose vectors of stored texts are kept in a file, by tower and text.

    One file serves all data sets: sets that share passages encode them once. Pictures and queries
    pass through.
    """

    def __init__(self, inner: Encoder, folder: Path) -> None:
        self._inner = inner
        self._folder = folder
        self._lock = threading.Lock()
        self.n_found = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(
        self, inputs: Sequence[Any], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Return (n, d) float32, L2-normalised, in the inputs' order."""
        if not inputs or not all(isinstance(text, str) for text in inputs):
            return self._inner.encode(inputs, progress=progress)
        keys = [hashlib.sha256(t.encode("utf-8", "surrogatepass")).digest() for t in inputs]
        with self._lock:
            known = self._read(set(keys))
        self.n_found += len(known)
        fresh = {k: t for k, t in zip(keys, inputs, strict=True) if k not in known}
        if fresh:
            made = self._inner.encode(list(fresh.values()), progress=progress)
            rows = dict(zip(fresh, made, strict=True))
            with self._lock:
                self._write(rows)
            known |= rows
        return np.stack([known[key] for key in keys])

    def _open(self) -> sqlite3.Connection:
        name = hashlib.sha256(self._inner.tower.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._folder / f"{name}.sqlite", timeout=60.0)
        connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, v BLOB)")
        return connection

    def _read(self, keys: Iterable[bytes]) -> dict[bytes, Floats]:
        wanted, found = list(keys), {}
        connection = self._open()
        try:
            for start in range(0, len(wanted), BLOCK):
                some = wanted[start : start + BLOCK]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, v FROM vectors WHERE key IN ({marks})"
                for key, raw in connection.execute(query, some):
                    found[bytes(key)] = np.frombuffer(raw, dtype="<f4").astype(np.float32)
        finally:
            connection.close()
        return found

    def _write(self, rows: dict[bytes, Floats]) -> None:
        connection = self._open()
        try:
            with connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
                    ((key, row.astype("<f4").tobytes()) for key, row in rows.items()),
                )
        finally:
            connection.close()


class Foreseen:
    """An encoder that knows the queries to come, and encodes them together when the first comes."""

    def __init__(self, inner: Any, queries: Sequence[str]) -> None:
        self._inner = inner
        self._queries = list(dict.fromkeys(queries))
        self._made: dict[str, Floats] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode_queries(self, queries: Sequence[Any]) -> Floats:
        """Return (q, d) float32, L2-normalised."""
        if not self._made and any(q in self._queries for q in queries if isinstance(q, str)):
            made = self._inner.encode_queries(self._queries)
            self._made = dict(zip(self._queries, made, strict=True))
        if all(isinstance(q, str) and q in self._made for q in queries) and queries:
            return np.stack([self._made[q] for q in queries])
        found: Floats = self._inner.encode_queries(queries)
        return found
