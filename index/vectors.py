"""Search the vectors of one tower: the newest snapshot of its segments, exact or by FAISS."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foveate.index import neighbours
from foveate.index.members import Members, Segment, read_members
from foveate.index.neighbours import Neighbours, Plan, load_faiss
from foveate.index.segments import Rows, open_segment
from foveate.index.towers import Tower

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Ints

_GATHER_SHARE = 0.2  # below this share, copying the rows out beats scanning all of them
_N_SELF_TEST = 100
_FEW = 4  # queries at once that are compared one by one


class Snapshot(Members[Rows]):
    """The vectors of a tower as one commit left them; FAISS may know some of them."""

    def __init__(
        self, tower: Tower, layout: int, segments: list[Segment[Rows]], dead: Ints
    ) -> None:
        super().__init__(tower, layout, segments, dead)
        self.near: Neighbours | None = None

    def take(self, rows: Ints) -> Floats:
        """Copy rows out of the segments. rows: (m,) int64, any order."""
        out = np.empty((len(rows), self.tower.dim), dtype=np.float32)
        homes = np.searchsorted(self.offsets, rows, side="right") - 1
        for home in np.unique(homes):
            here = homes == home
            out[here] = self.segments[home].rows.vectors[rows[here] - self.offsets[home]]
        return out

    def blocks(self, start: int = 0) -> list[Floats]:
        """Return the vectors from a row on, without copying."""
        found = []
        for segment, offset in zip(self.segments, self.offsets[:-1], strict=True):
            if offset + len(segment.rows) > start:
                found.append(segment.rows.vectors[max(0, start - int(offset)) :])
        return found

    def search(
        self, queries: Floats, k: int, mask: NDArray[np.bool_] | None, plan: Plan
    ) -> tuple[Floats, Ints]:
        """Find the k best rows that may be found.

        queries: (q, dim) float32. Returns: scores (q, k) float32 descending, -inf where empty;
        ids (q, k) int64 of passages, -1 = empty. Equal scores come in the order of ids.
        """
        n_free = self.n if mask is None else int(np.count_nonzero(mask))
        near = self.near
        if near is None or n_free <= k or (mask is not None and n_free <= plan.exact_max):
            return self.exact(queries, k, mask)
        n_near = near.facts.n
        head = None if mask is None else mask[:n_near]
        wide = k * plan.refine if near.facts.kind == "ivfpq" else k
        scores, rows = near.search(queries, min(wide, n_near), head)
        n_head = n_near if head is None else int(np.count_nonzero(head))
        if ((rows >= 0).sum(1) < min(k, n_head)).any():
            # the graph's walk missed what the filter lets through
            return self.exact(queries, k, mask)
        if near.facts.kind == "ivfpq":
            scores = self._rescore(queries, rows)
        tail = None
        if n_near < self.n:
            tail = self._scan(queries, k, mask, n_near)
        return self._best(len(queries), k, [(scores, rows)] + ([tail] if tail else []))

    def _rescore(self, queries: Floats, rows: Ints) -> Floats:
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        for i, found in enumerate(rows):
            real = found >= 0
            scores[i, real] = products(queries[i : i + 1], self.take(found[real]))[0]
        return scores

    def exact(self, queries: Floats, k: int, mask: NDArray[np.bool_] | None) -> tuple[Floats, Ints]:
        """Find the k best rows by comparing all that may be found; shapes as in `search`."""
        n_free = self.n if mask is None else int(np.count_nonzero(mask))
        if mask is None or n_free > _GATHER_SHARE * self.n:
            return self._best(len(queries), k, [self._scan(queries, k, mask, 0)])
        found: list[tuple[Floats, Ints]] = []
        chosen = np.flatnonzero(mask)
        for start in range(0, len(chosen), 16_384):
            rows = chosen[start : start + 16_384]
            scores, places = top(products(queries, self.take(rows)), k)
            found.append((scores, np.where(places >= 0, rows[places], -1)))
        return self._best(len(queries), k, found)

    def _scan(
        self, queries: Floats, k: int, mask: NDArray[np.bool_] | None, start: int
    ) -> tuple[Floats, Ints]:
        found: list[tuple[Floats, Ints]] = []
        row = start
        for block in self.blocks(start):
            # one product a segment for a few queries; pieces when the scores would be large
            step = len(block) if len(queries) <= _FEW else 16_384
            for low in range(0, len(block), step):
                piece = block[low : low + step]
                scores = products(queries, piece)
                if mask is not None:
                    scores = np.where(mask[row : row + len(piece)], scores, -np.inf)
                best, places = top(scores, k)
                found.append((best, np.where(places >= 0, places + row, -1)))
                row += len(piece)
        if not found:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        return (
            np.concatenate([f[0] for f in found], 1),
            np.concatenate([f[1] for f in found], 1),
        )

    def _best(
        self, n_queries: int, k: int, found: list[tuple[Floats, Ints]]
    ) -> tuple[Floats, Ints]:
        scores = np.full((n_queries, k), -np.inf, dtype=np.float32)
        ids = np.full((n_queries, k), -1, dtype=np.int64)
        if not found:
            return scores, ids
        all_scores = np.concatenate([f[0] for f in found], 1)
        rows = np.concatenate([f[1] for f in found], 1)
        for i in range(n_queries):
            real = np.flatnonzero(rows[i] >= 0)
            order = real[np.lexsort((rows[i, real], -all_scores[i, real]))][:k]
            scores[i, : len(order)] = all_scores[i, order]
            ids[i, : len(order)] = self.ids[rows[i, order]]
        return scores, ids


def products(queries: Floats, rows: Floats) -> Floats:
    """Return (q, n) float32 inner products. rows: (n, dim), C-contiguous, may be mapped.

    A few queries read the rows once each, on one thread: on a busy machine the threads of BLAS
    wait for each other many times longer than the work takes, and a scan is bound by memory.
    """
    if len(queries) > _FEW or not len(rows):
        return queries @ rows.T
    faiss = load_faiss()
    out = np.empty((len(queries), len(rows)), dtype=np.float32)
    for i in range(len(queries)):
        faiss.fvec_inner_products_ny(
            faiss.swig_ptr(out[i]),
            faiss.swig_ptr(queries[i]),
            faiss.swig_ptr(rows),
            rows.shape[1],
            len(rows),
        )
    return out


def top(scores: Floats, k: int) -> tuple[Floats, Ints]:
    """Return the k best of each row, unsorted; of equals, those that come first.

    scores: (q, n) float32, -inf where nothing may be found. Returns: scores (q, m) and places
    (q, m), m = min(k, n); place -1 where nothing is left.
    """
    q, n = scores.shape
    if k >= n:
        places = np.broadcast_to(np.arange(n), (q, n))
        return scores, np.where(np.isneginf(scores), -1, places)
    places = np.empty((q, k), dtype=np.int64)
    for i in range(q):
        row = scores[i]
        least = np.partition(row, n - k)[n - k]
        above = np.flatnonzero(row > least)
        equal = np.flatnonzero(row == least)[: k - len(above)]
        places[i] = np.concatenate((above, equal))
    best = np.take_along_axis(scores, places, 1)
    return best, np.where(np.isneginf(best), -1, places)


def load_snapshot(
    db: sqlite3.Connection, folder: Path, tower: Tower, previous: Snapshot | None
) -> Snapshot:
    """Open the tower as the connection's transaction sees it; known segments are used again."""
    layout, segments, dead = read_members(db, folder, tower, previous, open_segment)
    snapshot = Snapshot(tower, layout, segments, dead)
    if previous and previous.near and previous.layout == layout:
        snapshot.near = previous.near
    return snapshot


def attach(snapshot: Snapshot, folder: Path, plan: Plan) -> None:
    """Give a snapshot the FAISS file that fits it best, if its size calls for one."""
    kind, _ = plan.choose(snapshot.n, snapshot.tower.dim)
    if kind == "flat" or not snapshot.n:
        snapshot.near = None
        return
    facts = neighbours.find_facts(folder, snapshot.layout, snapshot.n)
    if facts is None or (snapshot.near and snapshot.near.facts.n >= facts.n):
        return
    loaded = neighbours.load(folder, snapshot.layout, snapshot.n)
    if loaded is not None:
        snapshot.near = loaded


def measure(snapshot: Snapshot, plan: Plan, *, tune: bool) -> float | None:
    """Return recall@10 of FAISS against the exact search, on vectors of the tower itself.

    tune: raise the effort of a search until `plan.min_recall` is reached.
    """
    near = snapshot.near
    if near is None or snapshot.n_alive < 20:
        return None
    mask = snapshot.mask(None, None)
    pool = np.arange(snapshot.n) if mask is None else np.flatnonzero(mask)
    random = np.random.default_rng(0)
    some = snapshot.take(random.choice(pool, min(_N_SELF_TEST, len(pool)), replace=False))
    # what is asked stands between what is stored: each is mixed with another, which is harder to
    # find than a stored vector that finds itself
    mixed = some + 0.8 * some[random.permutation(len(some))]
    queries = mixed / np.linalg.norm(mixed, axis=1, keepdims=True).clip(min=1e-6)
    truth = snapshot.exact(queries, 10, mask)[1].tolist()

    def recall() -> float:
        got = snapshot.search(queries, 10, mask, plan)[1].tolist()
        shares = [
            len({*a} & {*b} - {-1}) / len({*b} - {-1}) for a, b in zip(got, truth, strict=True)
        ]
        return float(np.mean(shares))

    value = recall()
    if tune:
        for effort in neighbours.efforts(near.facts.kind):
            near.facts.effort = effort
            value = recall()
            if value >= plan.min_recall:
                break
    near.facts.recall = round(value, 4)
    return near.facts.recall


def refresh_neighbours(
    snapshot: Snapshot, folder: Path, plan: Plan, progress: Callable[[str], None] | None = None
) -> None:
    """Build, extend or drop the FAISS file of a tower, as its size calls for. Writers only."""
    kind, _ = plan.choose(snapshot.n, snapshot.tower.dim)
    if kind == "flat" or not snapshot.n:
        neighbours.remove_others(folder, None)
        snapshot.near = None
        return
    attach(snapshot, folder, plan)
    near = snapshot.near
    stale = near is None or near.facts.kind != kind or snapshot.n > 4 * near.facts.n_trained
    if near is not None and not stale and snapshot.n - near.facts.n <= plan.tail_max:
        return
    if progress:
        progress(f"building {kind} over {snapshot.n} vectors of {snapshot.tower.role!r}")
    if near is None or (stale and (near.facts.kind != kind or kind == "ivfpq")):
        snapshot.near = neighbours.build(snapshot.blocks(), kind, plan, snapshot.layout)
    else:
        neighbours.extend(near, snapshot.blocks(near.facts.n))
    measure(snapshot, plan, tune=True)
    assert snapshot.near is not None
    neighbours.remove_others(folder, neighbours.save(folder, snapshot.near))
