"""Whose rows a tower's segments hold, as one commit left them, and which may be found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from foveate.index.towers import Tower

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """What a filter lets through: passages, or all passages of some sources.

    members: (top + 1,) bool, indexed by passage id or by source row. n: how many are true.
    """

    members: NDArray[np.bool_]
    by_source: bool
    n: int

    @classmethod
    def of(cls, found: Ints, *, by_source: bool) -> Allowed:
        members = np.zeros(int(found.max()) + 1 if len(found) else 1, dtype=np.bool_)
        members[found] = True
        return cls(members, by_source, len(found))

    def mask(self, values: Ints) -> NDArray[np.bool_]:
        """values: (n,) int64, passage ids or source rows. Returns (n,) bool."""
        inside = values < len(self.members)
        if inside.all():
            return self.members[values]
        found = np.zeros(len(values), dtype=np.bool_)
        found[inside] = self.members[values[inside]]
        return found


class Held(Protocol):
    """What a segment says of its rows: ids (n,) ascending, sources (n,), modalities (n,)."""

    @property
    def ids(self) -> Ints: ...
    @property
    def sources(self) -> Ints: ...
    @property
    def modalities(self) -> NDArray[np.uint8]: ...

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Held)


@dataclass(frozen=True, slots=True)
class Segment(Generic[R]):
    name: str
    rows: R


class Members(Generic[R]):
    """The rows of a tower. They are numbered across segments.

    alive: (n,) bool, False where the passage was removed; None when all live.
    """

    def __init__(self, tower: Tower, layout: int, segments: list[Segment[R]], dead: Ints) -> None:
        self.tower = tower
        self.layout = layout
        self.segments = segments
        self.offsets = np.cumsum([0, *(len(s.rows) for s in segments)])
        self.n = int(self.offsets[-1])
        self.ids = _joined([s.rows.ids for s in segments], np.int64)
        self.sources = _joined([s.rows.sources for s in segments], np.int64)
        self.modalities = _joined([s.rows.modalities for s in segments], np.uint8)
        self.alive: NDArray[np.bool_] | None = None
        gone = self.rows_of(dead)
        gone = gone[gone >= 0]
        if len(gone):
            self.alive = np.ones(self.n, dtype=np.bool_)
            self.alive[gone] = False
        self.n_alive = self.n - len(gone)
        self._masks: dict[frozenset[int] | None, NDArray[np.bool_] | None] = {}

    def rows_of(self, ids: Ints) -> Ints:
        """Return (n,) int64 row numbers of passages, -1 where a passage has no row here."""
        if not self.n:
            return np.full(len(ids), -1, dtype=np.int64)
        places = np.searchsorted(self.ids, ids).clip(max=self.n - 1)
        return np.where(self.ids[places] == ids, places, -1)

    def living(self, ids: Ints) -> Ints:
        """Return what `rows_of` does, -1 also where a passage was removed."""
        rows = self.rows_of(ids)
        if self.alive is not None:
            rows = np.where((rows >= 0) & self.alive[rows], rows, -1)
        return rows

    def mask(
        self, modalities: frozenset[int] | None, allowed: Allowed | None
    ) -> NDArray[np.bool_] | None:
        """Return (n,) bool of the rows that may be found, None when all may."""
        if modalities not in self._masks:
            mask = self.alive
            if modalities is not None:
                kinds = np.isin(self.modalities, list(modalities))
                mask = kinds if mask is None else mask & kinds
            if mask is not None and mask.all():
                mask = None
            self._masks[modalities] = mask
        mask = self._masks[modalities]
        if allowed is not None:
            passing = allowed.mask(self.sources if allowed.by_source else self.ids)
            mask = passing if mask is None else mask & passing
        return mask


def read_members(
    db: sqlite3.Connection,
    folder: Path,
    tower: Tower,
    previous: Members[R] | None,
    open_segment: Callable[[Path, int, int, int], R],
) -> tuple[int, list[Segment[R]], Ints]:
    """Return layout, segments and removed passages as the connection's transaction sees them.

    Segments that `previous` has open are used again.
    """
    (layout,) = db.execute("SELECT layout FROM towers WHERE role = ?", (tower.role,)).fetchone()
    known = {s.name: s for s in previous.segments} if previous else {}
    segments = []
    listed = db.execute(
        "SELECT name, n, crc FROM segments WHERE role = ? ORDER BY position", (tower.role,)
    ).fetchall()
    for name, n, crc in listed:
        rows = known.get(name) or Segment(name, open_segment(folder / name, n, tower.dim, crc))
        segments.append(rows)
    dead = np.fromiter((r[0] for r in db.execute("SELECT passage FROM removed")), dtype=np.int64)
    return layout, segments, dead


def _joined(parts: list[Any], kind: type) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)
