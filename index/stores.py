"""How the vectors of a tower are kept: one a passage, or one a token."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foveate.index import segments, token_segments, tokens, vectors
from foveate.index.members import Members
from foveate.index.neighbours import Plan
from foveate.index.towers import Tower
from foveate.pipeline.errors import ShapeError
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Ints

    Codes = NDArray[np.uint8]


class Store(Protocol):
    """What the writer, and who looks after an index, must do with a tower's vectors.

    Rows are `segments.Rows` or `token_segments.TokenRows`, arrays what an encoder makes.
    """

    folder: str

    def load(
        self, db: sqlite3.Connection, folder: Path, tower: Tower, previous: Any
    ) -> Members[Any]:
        """Open the tower as the connection's transaction sees it."""
        ...

    def check(self, tower: Tower, array: Any, n: int) -> Any:
        """Return what was given for n drafts, as it is kept. Raises ShapeError."""
        ...

    def rows(
        self, tower: Tower, ids: Ints, owners: Ints, kinds: Codes, array: Any, order: Ints
    ) -> Any:
        """Return rows of passages; order: which item of the array each is."""
        ...

    def write(self, path: Path, parts: Sequence[Any], tower: Tower) -> tuple[int, int]:
        """Write parts as one segment. Returns the number of rows and the CRC."""
        ...

    def attach(self, snapshot: Any, folder: Path, plan: Plan) -> None:
        """Give a snapshot the cache that speeds up its search, if there is one."""
        ...

    def refresh(self, snapshot: Any, folder: Path, plan: Plan) -> None:
        """Bring that cache to what the snapshot holds. Writers only."""
        ...


class VectorStore:
    """One vector a passage."""

    folder = "vectors"

    def load(
        self, db: sqlite3.Connection, folder: Path, tower: Tower, previous: Any
    ) -> Members[Any]:
        return vectors.load_snapshot(db, folder, tower, previous)

    def check(self, tower: Tower, array: Any, n: int) -> Any:
        found = np.ascontiguousarray(array, dtype=np.float32)
        if found.shape != (n, tower.dim):
            raise ShapeError(
                f"expected ({n}, {tower.dim}) float32 for {tower.role!r}, got {found.shape}"
            )
        _check_lengths(found, tower)
        return found

    def rows(
        self, tower: Tower, ids: Ints, owners: Ints, kinds: Codes, array: Any, order: Ints
    ) -> Any:
        return segments.Rows(ids, owners, kinds, array[order])

    def write(self, path: Path, parts: Sequence[Any], tower: Tower) -> tuple[int, int]:
        return segments.write_segment(path, list(parts), tower.dim)

    def attach(self, snapshot: Any, folder: Path, plan: Plan) -> None:
        vectors.attach(snapshot, folder, plan)

    def refresh(self, snapshot: Any, folder: Path, plan: Plan) -> None:
        vectors.refresh_neighbours(snapshot, folder, plan)


class TokenStore:
    """One vector a token, coded."""

    folder = "tokens"

    def load(
        self, db: sqlite3.Connection, folder: Path, tower: Tower, previous: Any
    ) -> Members[Any]:
        return tokens.load_snapshot(db, folder, tower, previous)

    def check(self, tower: Tower, array: Any, n: int) -> Any:
        fits = isinstance(array, MultiVectors) and len(array) == n
        if not fits or array.vectors.shape[1] != tower.dim:
            raise ShapeError(
                f"expected MultiVectors of {n} items, (t, {tower.dim}) each, for {tower.role!r}"
            )
        if tower.code == "onebit":
            # what was decoded and is kept again is shorter, never longer
            _check_lengths(array.vectors, tower, least=0.0)
        else:
            _check_lengths(array.vectors, tower)
        return array

    def rows(
        self, tower: Tower, ids: Ints, owners: Ints, kinds: Codes, array: Any, order: Ints
    ) -> Any:
        codes, scales = token_segments.encode(array, tower.code)
        every = np.arange(len(array))
        found = token_segments.TokenRows(every, every, kinds, array.offsets, scales, codes)
        picked = found.keep(order)
        return token_segments.TokenRows(
            ids, owners, kinds, picked.offsets, picked.scales, picked.codes, picked.pick
        )

    def write(self, path: Path, parts: Sequence[Any], tower: Tower) -> tuple[int, int]:
        width = token_segments.width_of(tower.code, tower.dim)
        return token_segments.write_segment(path, parts, width)

    def attach(self, snapshot: Any, folder: Path, plan: Plan) -> None:
        tokens.attach(snapshot, folder)

    def refresh(self, snapshot: Any, folder: Path, plan: Plan) -> None:
        tokens.refresh_centroids(snapshot, folder)


def _check_lengths(vectors_: Any, tower: Tower, *, least: float = 0.99) -> None:
    norms = np.linalg.norm(vectors_, axis=1)
    if not ((norms >= least) & (norms <= 1.01)).all():
        raise ShapeError(f"expected finite vectors of length 1 for {tower.role!r}")


_STORES: dict[bool, Store] = {False: VectorStore(), True: TokenStore()}


def store_of(tower: Tower) -> Store:
    """Return how a tower's vectors are kept."""
    return _STORES[bool(tower.code)]


def folder_of(root: Path, tower: Tower) -> Path:
    """Return the folder of a tower's segments."""
    return root / store_of(tower).folder / tower.folder
