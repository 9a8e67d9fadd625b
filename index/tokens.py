"""Search the token vectors of one tower: candidates by their centroids, then exact MaxSim."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foveate.index import centroids
from foveate.index.centroids import Centroids
from foveate.index.members import Members, Segment, read_members
from foveate.index.token_segments import TokenRows, decode, open_segment
from foveate.index.towers import Tower
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.kernels.documents import Documents
    from foveate.pipeline.types import Floats, Ints

LEAST_TOKENS = 50_000  # fewer are all scored
TAIL_SHARE = 0.1  # of the tokens, how many may have no centroid before a writer gives them one
_SCAN_TOKENS = 1 << 20  # tokens that are scored together
_BLOCK_ROWS = 512


class TokenSnapshot(Members[TokenRows]):
    """The token vectors of a tower as one commit left them. A row is a passage."""

    def __init__(
        self, tower: Tower, layout: int, segments: list[Segment[TokenRows]], dead: Ints
    ) -> None:
        super().__init__(tower, layout, segments, dead)
        lengths = [s.rows.lengths for s in segments]
        self.lengths: Ints = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        self.n_tokens = int(self.lengths.sum())
        self.centroids: Centroids | None = None

    def documents(self, rows: Ints) -> Documents:
        """Copy rows out of the segments, in their order, coded. rows: (m,) int64."""
        import torch

        from foveate.kernels.documents import Documents

        offsets = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        codes, scales = self._gather(rows, offsets)
        return Documents(
            torch.from_numpy(codes), torch.from_numpy(offsets),
            torch.from_numpy(scales.astype(np.float32)),
        )  # fmt: skip

    def take(self, rows: Ints) -> MultiVectors:
        """Return rows decoded: (t, dim) float32."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        codes, scales = self._gather(rows, offsets)
        return MultiVectors(decode(codes, scales, self.tower.dim), offsets)

    def _gather(self, rows: Ints, offsets: Ints) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
        homes = np.searchsorted(self.offsets, rows, side="right") - 1
        used = np.unique(homes)
        if len(used) == 1:
            codes, scales, _ = self.segments[used[0]].rows.take(rows - self.offsets[used[0]])
            return codes, scales
        width = self.segments[0].rows.codes.shape[1] if self.segments else 0
        kind = self.segments[0].rows.codes.dtype if self.segments else np.uint8
        codes = np.empty((int(offsets[-1]), width), dtype=kind)
        scales = np.empty(int(offsets[-1]), dtype=np.float16)
        for home in used:
            here = np.flatnonzero(homes == home)
            some, sizes, edges = self.segments[home].rows.take(rows[here] - self.offsets[home])
            at = np.repeat(offsets[here] - edges[:-1], np.diff(edges)) + np.arange(edges[-1])
            codes[at], scales[at] = some, sizes
        return codes, scales

    def score(self, queries: Floats, rows: Ints) -> Floats:
        """Return (m,) float32: MaxSim of one query (s, dim) with rows (m,), -inf without tokens."""
        import torch

        from foveate.kernels.maxsim import maxsim

        asked = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
        out = np.empty(len(rows), dtype=np.float32)
        ends = np.cumsum(self.lengths[rows])
        start = 0
        while start < len(rows):
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + _SCAN_TOKENS, side="right")))
            with torch.no_grad():
                out[start:stop] = maxsim(asked, self.documents(rows[start:stop]))[0].numpy()
            start = stop
        return out

    def candidates(self, queries: Floats, n: int, mask: NDArray[np.bool_] | None) -> Ints:
        """Return rows that may be found, those whose tokens' centroids are nearest; about n.

        All of them where there are no centroids yet, and all that came after those were made.
        """
        free = np.arange(self.n) if mask is None else np.flatnonzero(mask)
        if self.centroids is None or len(free) <= n:
            return free
        known = self.centroids.n
        rough = self.centroids.estimate(queries)
        if mask is not None:
            rough = np.where(mask[:known], rough, -np.inf)
        best = np.argpartition(-rough, min(n, known) - 1)[:n]
        return np.concatenate([np.sort(best[np.isfinite(rough[best])]), free[free >= known]])

    def search(self, queries: Floats, k: int, rows: Ints) -> tuple[Floats, Ints]:
        """Return the k best of these rows: scores (k',) descending, ids (k',); ties by id."""
        scores = self.score(queries, rows)
        real = np.flatnonzero(np.isfinite(scores))
        order = real[np.lexsort((rows[real], -scores[real]))][:k]
        return scores[order], self.ids[rows[order]]


def load_snapshot(
    db: sqlite3.Connection, folder: Path, tower: Tower, previous: TokenSnapshot | None
) -> TokenSnapshot:
    """Open the tower as the connection's transaction sees it; known segments are used again."""
    layout, segments, dead = read_members(db, folder, tower, previous, open_segment)
    snapshot = TokenSnapshot(tower, layout, segments, dead)
    if previous and previous.centroids and previous.layout == layout:
        snapshot.centroids = previous.centroids
    return snapshot


def attach(snapshot: TokenSnapshot, folder: Path) -> None:
    """Give a snapshot the centroids that fit it best, if there are any."""
    if snapshot.centroids is None or snapshot.centroids.n < snapshot.n:
        found = centroids.load(folder, snapshot.layout, snapshot.n)
        snapshot.centroids = found or snapshot.centroids


def refresh_centroids(snapshot: TokenSnapshot, folder: Path) -> None:
    """Find, extend or drop the centroids, as the number of tokens calls for. Writers only."""
    if snapshot.n_tokens < LEAST_TOKENS:
        centroids.remove_others(folder, None)
        snapshot.centroids = None
        return
    attach(snapshot, folder)
    made = snapshot.centroids
    if made is not None and snapshot.n_tokens <= 4 * made.n_trained:
        tail = int(snapshot.lengths[made.n :].sum())
        if tail <= TAIL_SHARE * snapshot.n_tokens:
            return
        snapshot.centroids = centroids.extend(made, _blocks(snapshot, made.n))
    else:
        wanted = centroids.n_sampled(snapshot.n_tokens)
        sample = _sample(snapshot, wanted)
        snapshot.centroids = centroids.build(_blocks(snapshot, 0), sample, snapshot.n_tokens)
    centroids.save(folder, snapshot.layout, snapshot.centroids)


def _blocks(snapshot: TokenSnapshot, start: int) -> Iterator[MultiVectors]:
    for low in range(start, snapshot.n, _BLOCK_ROWS):
        yield snapshot.take(np.arange(low, min(low + _BLOCK_ROWS, snapshot.n)))


def _sample(snapshot: TokenSnapshot, n: int) -> Floats:
    """Return about n tokens (t, dim), of passages all over the tower."""
    order = np.random.default_rng(0).permutation(snapshot.n)
    enough = int(np.searchsorted(np.cumsum(snapshot.lengths[order]), 4 * n)) + 1
    found = snapshot.take(np.sort(order[:enough])).vectors
    step = max(1, len(found) // max(n, 1))
    return found[::step]
