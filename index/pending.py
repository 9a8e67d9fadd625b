"""Vectors between `add` and `commit`, and how they become segments."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index import records
from foveate.index.catalog import Catalog
from foveate.index.storage import make_folder
from foveate.index.stores import folder_of, store_of
from foveate.index.towers import Tower
from foveate.pipeline.errors import ShapeError, SpaceMismatch
from foveate.pipeline.types import Draft

if TYPE_CHECKING:
    from foveate.pipeline.types import Ints

_MAX_SEGMENTS = 16


class PendingVectors:
    """What the writer will write as one segment a tower, and what it knows of those written."""

    def __init__(
        self, db: sqlite3.Connection, catalog: Catalog, root: Path, towers: Mapping[str, Tower]
    ) -> None:
        self.db = db
        self.towers = towers
        self._catalog = catalog
        self._root = root
        self._parts: dict[str, list[Any]] = {role: [] for role in towers}
        self._snapshots: dict[str, Any] = {}
        self._stale: set[str] = set()

    def folder(self, role: str) -> Path:
        return folder_of(self._root, self.towers[role])

    def marks(self) -> dict[str, int]:
        """Return how much is pending, to come back to with `cut`."""
        return {role: len(parts) for role, parts in self._parts.items()}

    def cut(self, marks: Mapping[str, int]) -> None:
        """Forget what came after a mark."""
        for role, n in marks.items():
            del self._parts[role][n:]

    def clear(self) -> None:
        for parts in self._parts.values():
            parts.clear()

    def refresh(self) -> None:
        """Note that a commit was made: snapshots that are asked for again are read anew."""
        self._stale.update(self._snapshots)

    def snapshot(self, role: str) -> Any:
        """Return the committed vectors of a tower: a `Snapshot` or a `TokenSnapshot`.

        Raises:
            SpaceMismatch: the index has no such role.
        """
        if role not in self.towers:
            raise SpaceMismatch(
                f"the index has no vectors for {role!r} (it has: {', '.join(self.towers)})"
            )
        if role not in self._snapshots or role in self._stale:
            tower = self.towers[role]
            folder = self.folder(role)
            with self._catalog.snapshot() as db:
                previous = self._snapshots.get(role)
                self._snapshots[role] = store_of(tower).load(db, folder, tower, previous)
            self._stale.discard(role)
        return self._snapshots[role]

    def check(self, role: str, rows: Any, array: Any, n_drafts: int) -> tuple[Ints, Any]:
        """Return rows (m,) int64 and the vectors of m drafts that fit. Raises ShapeError."""
        if role not in self.towers:
            raise SpaceMismatch(
                f"the index has no vectors for {role!r} (it has: {', '.join(self.towers)})"
            )
        tower = self.towers[role]
        places = np.asarray(rows, dtype=np.int64).reshape(-1)
        vectors = store_of(tower).check(tower, array, len(places))
        if len(places) and (places.min() < 0 or places.max() >= n_drafts):
            raise ShapeError(f"vectors of {role!r} name drafts outside 0..{n_drafts - 1}")
        if len(np.unique(places)) != len(places):
            raise ShapeError(f"two vectors of {role!r} name one draft")
        return places, vectors

    def put(
        self, role: str, source: int, ids: Ints, drafts: Sequence[Draft], places: Ints,
        array: Any,
    ) -> None:  # fmt: skip
        """Keep vectors of passages. ids: (m,) int64, those of drafts[places]."""
        if not len(ids):
            return
        order = np.argsort(ids)
        kinds = np.array([records.modality_code(drafts[p].modality) for p in places], np.uint8)
        owners = np.full(len(ids), source, dtype=np.int64)
        tower = self.towers[role]
        rows = store_of(tower).rows(tower, ids[order], owners, kinds[order], array, order)
        self._parts[role].append(rows)

    def has(self, source: int, checked: Mapping[str, tuple[Ints, Any]]) -> bool:
        """Tell whether every one of these vectors of a source is there already."""
        rows = self.db.execute(
            "SELECT id FROM passages WHERE source = ? ORDER BY number", (source,)
        ).fetchall()
        ids = np.array([r[0] for r in rows], dtype=np.int64)
        for role, (places, _) in checked.items():
            held = {int(i) for part in self._parts[role] for i in part.ids}
            wanted = ids[places]
            have = self.snapshot(role).rows_of(wanted) >= 0
            if not all(h or int(i) in held for i, h in zip(wanted, have, strict=True)):
                return False
        return True

    def write(self) -> bool:
        """Write what is pending and list it, in the open transaction.

        Returns True when older segments were taken into the new ones: their files may go.
        """
        n_replaced = 0
        for role, parts in self._parts.items():
            parts = [p for p in map(self._living, parts) if len(p)]
            if not parts:
                continue
            parts.sort(key=lambda p: int(p.ids[0]))
            tower = self.towers[role]
            folder = self.folder(role)
            listed = self.db.execute(
                "SELECT name, position, n FROM segments WHERE role = ? ORDER BY position", (role,)
            ).fetchall()
            parts, replaced = self._absorb(role, listed, parts)
            n_replaced += len(replaced)
            make_folder(folder)
            position = listed[-1][1] + 1 if listed else 0
            name = f"{position:08d}-{os.urandom(4).hex()}.seg"
            n, crc = store_of(tower).write(folder / name, parts, tower)
            self.db.executemany("DELETE FROM segments WHERE name = ?", [(r,) for r in replaced])
            self.db.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?)", (role, name, position, n, crc)
            )
        return n_replaced > 0

    def _living(self, part: Any) -> Any:
        gone = self.db.execute(
            "SELECT passage FROM removed WHERE generation < 0 AND passage BETWEEN ? AND ?",
            (int(part.ids[0]), int(part.ids[-1])),
        ).fetchall()
        keep = ~np.isin(part.ids, [g[0] for g in gone])
        if keep.all():
            return part
        return part.keep(np.flatnonzero(keep))

    def _absorb(
        self, role: str, listed: list[tuple[str, int, int]], parts: list[Any]
    ) -> tuple[list[Any], list[str]]:
        """Take the last segments into the new one while they are small, so that few remain."""
        if len(listed) < _MAX_SEGMENTS:
            return parts, []
        snapshot = self.snapshot(role)
        size = sum(map(len, parts))
        replaced: list[str] = []
        before: list[Any] = []
        for name, _, n in reversed(listed):
            if n > 2 * size and len(listed) - len(replaced) < _MAX_SEGMENTS:
                break
            if n > 2 * size and replaced:
                break
            before.append(next(s.rows for s in snapshot.segments if s.name == name))
            replaced.append(name)
            size += n
        return [*reversed(before), *parts], replaced
