"""Put another encoder's vectors in the place of a tower's, all of them in one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index.catalog import generation, set_meta
from foveate.index.segments import Rows
from foveate.index.storage import make_folder, writing
from foveate.index.stores import folder_of, store_of
from foveate.index.upkeep import sweep

if TYPE_CHECKING:
    from foveate.index.disk import DiskIndex
    from foveate.index.towers import Tower
    from foveate.pipeline.types import Floats, Passage

_BLOCK = 1024


def replace_tower(
    index: DiskIndex,
    new: Tower,
    encode: Callable[[Sequence[Passage]], Floats],
    settings: Mapping[str, Any],
    *,
    timeout_s: float = 0.0,
) -> int:
    """Encode every passage of a role anew; return how many there were.

    Where the tower's fingerprint is what it was, nothing is encoded and only the settings change.
    Until the commit at the end the index is as it was, whatever happens; afterwards open it anew.

    Args:
        index: open, and not used by anybody else in this process.
        new: the tower to be; its role has one vector a passage.
        encode: passages -> (n, new.dim) float32, L2-normalised.
        settings: what the index keeps from now on.
        timeout_s: how long to wait for another writer.

    Raises:
        IndexLocked: another writer is at work.
    """
    old = index.towers[new.role]
    with index._locked(timeout_s), closing(index._catalog.writer()) as db:
        parts: list[Rows] = []
        if (old.tower, old.dim) != (new.tower, new.dim):
            snapshot = store_of(old).load(db, folder_of(index.path, old), old, None)
            for segment, offset in zip(snapshot.segments, snapshot.offsets[:-1], strict=True):
                rows = segment.rows
                if snapshot.alive is not None:
                    alive = snapshot.alive[offset : offset + len(rows)]
                    rows = rows.keep(np.flatnonzero(alive))
                parts += [_encoded(index, rows, low, encode) for low in range(0, len(rows), _BLOCK)]
        with writing(index.path):
            try:
                db.execute("BEGIN IMMEDIATE")
                if (old.tower, old.dim) != (new.tower, new.dim):
                    db.execute("DELETE FROM segments WHERE role = ?", (new.role,))
                    db.execute(
                        "UPDATE towers SET tower = ?, space = ?, dim = ?, layout = layout + 1 "
                        "WHERE role = ?",
                        (new.tower, new.space, new.dim, new.role),
                    )
                    if parts:
                        folder = folder_of(index.path, new)
                        make_folder(folder)
                        name = f"{0:08d}-{os.urandom(4).hex()}.seg"
                        n, crc = store_of(new).write(folder / name, parts, new)
                        row = (new.role, name, n, crc)
                        db.execute("INSERT INTO segments VALUES (?, ?, 0, ?, ?)", row)
                set_meta(db, "settings", dict(settings))
                set_meta(db, "generation", generation(db) + 1)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                sweep(index.path, db)
                raise
            sweep(index.path, db)
    return sum(map(len, parts))


def _encoded(
    index: DiskIndex, rows: Rows, low: int, encode: Callable[[Sequence[Passage]], Floats]
) -> Rows:
    """Return a block of rows with new vectors."""
    ids = rows.ids[low : low + _BLOCK]
    vectors = np.ascontiguousarray(encode(index.passages(ids)), dtype=np.float32)
    part = slice(low, low + _BLOCK)
    return Rows(ids, rows.sources[part], rows.modalities[part], vectors)
