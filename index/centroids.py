"""Which passages have a token near a query's: token vectors by their nearest centroid.

    estimate(q, p) = sum_i max over the probed centroids c that p has a token of, of <q_i, c>

and for a query token none of whose probed centroids p has, the similarity of the best one that
was not probed: what is missing is bounded, as in XTR (arXiv 2304.01982) and WARP
(arXiv 2501.17788). Centroids as in PLAID (arXiv 2205.09707). It is a cache beside the segments:
it covers the first n rows, and can be deleted at any time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from foveate.index.neighbours import load_faiss
from foveate.index.storage import write_file
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Ints

SUFFIX = ".centres"
_POINTS = 48  # tokens that a centroid is trained on
_ROUNDS = 5
_PROBES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Centroids:
    """centres: (c, d) float32, of length 1. starts: (c+1,) int64; rows: (m,) int32, the rows that
    have a token of each centre, ascending. n: rows that are covered. n_trained: tokens there were.
    """

    centres: Floats
    starts: Ints
    rows: NDArray[np.int32]
    n: int
    n_trained: int

    def estimate(self, queries: Floats) -> Floats:
        """Return (n,) float32, an estimate of MaxSim with each row. queries: (s, d)."""
        near = queries @ self.centres.T
        n_probes = min(_PROBES, near.shape[1] - 1)
        order = np.argpartition(-near, n_probes, axis=1)[:, : n_probes + 1]
        total = np.zeros(self.n, dtype=np.float32)
        gain = np.zeros(self.n, dtype=np.float32)
        for similar, some in zip(near, order, strict=True):
            # the least first: where a row is in several lists the best is written last
            ranked = some[np.argsort(similar[some])]
            floor, probed = similar[ranked[0]], ranked[1:]
            lists = [self.rows[self.starts[c] : self.starts[c + 1]] for c in probed]
            touched = np.concatenate(lists)
            gain[touched] = np.repeat(similar[probed] - floor, [len(rows) for rows in lists])
            total += gain
            total += floor
            gain[touched] = 0
        return total


def build(blocks: Iterator[MultiVectors], sample: Floats, n_tokens: int) -> Centroids:
    """Find centres of a sample of tokens (t, d), and which rows have which.

    blocks: all rows' tokens, in order.
    """
    faiss = load_faiss()
    # a power of two near sqrt(t), so that a probe reads about sqrt(t) tokens' rows
    n_centres = 2 ** int(np.clip(np.round(np.log2(max(n_tokens, 1)) / 2), 4, 12))
    n_centres = min(n_centres, max(2, len(sample) // 4))
    means = faiss.Kmeans(
        sample.shape[1], n_centres, niter=_ROUNDS, seed=0, spherical=True,
        min_points_per_centroid=1, max_points_per_centroid=_POINTS,
    )  # fmt: skip
    means.train(np.ascontiguousarray(sample, dtype=np.float32))
    empty = Centroids(
        np.ascontiguousarray(means.centroids), np.zeros(n_centres + 1, np.int64),
        np.empty(0, np.int32), 0, n_tokens,
    )  # fmt: skip
    return extend(empty, blocks)


def n_sampled(n_tokens: int) -> int:
    """Return how many tokens `build` trains on."""
    return int(min(n_tokens, _POINTS * 4096, _POINTS * max(64, 2 * np.sqrt(n_tokens))))


def extend(made: Centroids, blocks: Iterator[MultiVectors]) -> Centroids:
    """Add rows that follow those already covered."""
    faiss = load_faiss()
    nearest = faiss.IndexFlatIP(made.centres.shape[1])
    nearest.add(made.centres)
    n_centres = len(made.centres)
    owners = np.repeat(np.arange(n_centres, dtype=np.int64), np.diff(made.starts))
    keys = [(owners << 32) | made.rows]
    n = made.n
    for block in blocks:
        rows = np.repeat(np.arange(n, n + len(block)), np.diff(block.offsets))
        n += len(block)
        if len(rows):
            found = nearest.search(np.ascontiguousarray(block.vectors), 1)[1][:, 0]
            keys.append(np.unique((found.astype(np.int64) << 32) | rows))
    every = np.sort(np.concatenate(keys))
    starts = np.searchsorted(every >> 32, np.arange(n_centres + 1))
    return Centroids(made.centres, starts, (every & 0xFFFFFFFF).astype(np.int32), n, made.n_trained)


def save(folder: Path, layout: int, made: Centroids) -> None:
    """Write the file of a layout, and delete those that it replaces."""
    from safetensors.numpy import save as pack

    path = folder / f"centroids-{layout}-{made.n}{SUFFIX}"
    held: dict[str, Any] = {
        "centres": made.centres.astype(np.float16),
        "starts": made.starts,
        "rows": made.rows,
        "counts": np.array([made.n, made.n_trained]),
    }
    data = pack(held)

    def fill(file: BinaryIO) -> None:
        file.write(zlib.crc32(data).to_bytes(4, "little"))
        file.write(data)

    write_file(path, fill)
    remove_others(folder, path)


def remove_others(folder: Path, keep: Path | None) -> None:
    """Delete the files that a newer one replaces."""
    for path in folder.glob(f"centroids-*{SUFFIX}"):
        if path != keep:
            path.unlink(missing_ok=True)


def load(folder: Path, layout: int, n_rows: int) -> Centroids | None:
    """Load the newest file that fits, or None: it is a cache, and a bad one is ignored."""
    from safetensors.numpy import load as unpack

    best: tuple[int, Path] | None = None
    for path in folder.glob(f"centroids-{layout}-*{SUFFIX}"):
        number = path.stem.rpartition("-")[2]
        if number.isdigit() and int(number) <= n_rows and (best is None or int(number) > best[0]):
            best = (int(number), path)
    if best is None:
        return None
    try:
        data = best[1].read_bytes()
    except OSError:
        return None
    if zlib.crc32(data[4:]).to_bytes(4, "little") != data[:4]:
        return None
    held = unpack(data[4:])
    n, n_trained = held["counts"].tolist()
    return Centroids(held["centres"].astype(np.float32), held["starts"], held["rows"], n, n_trained)
