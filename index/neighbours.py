"""Approximate nearest neighbours by FAISS: which kind suits the size, its file, and its recall.

A graph or a list covers the first n rows of a tower. It is a cache: what comes after row n is
searched exactly, and the file can be deleted at any time. Ids inside it are row numbers.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from foveate.index.storage import write_file
from foveate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Ints

KINDS = ("auto", "flat", "hnsw", "ivfpq")
_POINTS_PER_CENTROID = 39  # what faiss asks for, below which it warns
_PQ_CENTROIDS = 256
_EFFORTS = {"hnsw": (48, 96, 192, 384, 768), "ivfpq": (8, 16, 32, 64, 128, 256)}


@dataclass(frozen=True, slots=True)
class Plan:
    """How vectors are searched, from the `[index]` table.

    flat_max: up to this many rows every search is exact; a scan of 100,000 x 384 takes about
    20 ms on two cores. hnsw_max: above it a compressed kind saves memory. m, ef_construction: of
    the graph. n_lists: of the inverted file, 0 = 4 sqrt(n). pq_bytes: of a compressed vector,
    0 = dim / 4. refine: candidates per result that are scored again exactly. min_recall: the
    effort of a search is raised until recall@10 reaches this. exact_max: when a filter leaves at
    most this many rows they are compared one by one. tail_max: rows after the last one that the
    graph holds, before a writer extends it. title_repeats: how often
    titles and headings are said before their text in word search; changed by `compact`.
    """

    kind: str = "auto"
    flat_max: int = 100_000
    hnsw_max: int = 1_000_000
    m: int = 16
    ef_construction: int = 80
    n_lists: int = 0
    pq_bytes: int = 0
    refine: int = 10
    min_recall: float = 0.97
    exact_max: int = 20_000
    tail_max: int = 20_000
    title_repeats: int = 2

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Plan:
        """Check options by name.

        Raises:
            ConfigError: a name or the kind is unknown, or a value is of another type.
        """
        for name, value in options.items():
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise ConfigError(f"[index] has no option {name!r} (known: {known})")
            want = type(getattr(cls(), name))
            if isinstance(value, bool) or not isinstance(
                value, (int, float) if want is float else want
            ):
                raise ConfigError(f"[index] {name}: expected {want.__name__}, got {value!r}")
        plan = cls(**options)
        if plan.kind not in KINDS:
            raise ConfigError(
                f"[index] kind: expected one of {', '.join(KINDS)}, got {plan.kind!r}"
            )
        return plan

    def choose(self, n: int, dim: int) -> tuple[str, str | None]:
        """Return the kind for n rows, and why it isn't the one that was asked for."""
        want = self.kind
        if want == "auto":
            want = "flat" if n <= self.flat_max else "hnsw" if n <= self.hnsw_max else "ivfpq"
        if want == "ivfpq" and n < self.least_rows(n):
            return "flat" if n <= self.flat_max else "hnsw", (
                f"ivfpq needs at least {self.least_rows(n)} vectors to train on, got {n}"
            )
        if want == "ivfpq" and dim % self.code_bytes(dim):
            return "hnsw", f"ivfpq needs a dimension that {self.code_bytes(dim)} divides, got {dim}"
        return want, None

    def lists(self, n: int) -> int:
        return self.n_lists or max(16, int(4 * math.sqrt(n)))

    def code_bytes(self, dim: int) -> int:
        return self.pq_bytes or max(1, next(c for c in range(dim // 4 or 1, 0, -1) if dim % c == 0))

    def least_rows(self, n: int) -> int:
        return _POINTS_PER_CENTROID * max(_PQ_CENTROIDS, self.lists(n))


@dataclass(slots=True)
class Facts:
    """What stands beside a FAISS file. recall: recall@10 against the exact search."""

    kind: str
    layout: int
    n: int
    dim: int
    n_trained: int
    effort: int
    recall: float | None = None
    crc: int = 0
    build_s: float = 0.0
    params: dict[str, Any] = field(default_factory=dict)


def load_faiss() -> Any:
    """Import FAISS as an untyped module: its stubs lack most of what it has."""
    import faiss

    return faiss


class Neighbours:
    """A FAISS index over the first `facts.n` rows of a tower."""

    def __init__(self, index: Any, facts: Facts) -> None:
        self.index = index
        self.facts = facts

    def search(
        self, queries: Floats, k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[Floats, Ints]:
        """Find rows by FAISS. mask: (n,) bool, rows that may be found; None = all.

        Returns: scores (q, k) float32, rows (q, k) int64, -1 = empty.
        """
        faiss = load_faiss()
        options: dict[str, Any] = {}
        if mask is not None:
            bits = np.packbits(mask, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)
        if self.facts.kind == "hnsw":
            params = faiss.SearchParametersHNSW(efSearch=max(self.facts.effort, 2 * k), **options)
        else:
            params = faiss.SearchParametersIVF(nprobe=self.facts.effort, **options)
        found: tuple[Floats, Ints] = self.index.search(queries, k, params=params)
        return found


def build(blocks: Sequence[Floats], kind: str, plan: Plan, layout: int) -> Neighbours:
    """Build the kind over rows given in blocks (b, dim), in order."""
    faiss = load_faiss()
    start = time.perf_counter()
    n, dim = sum(map(len, blocks)), blocks[0].shape[1]
    if kind == "hnsw":
        index: Any = faiss.IndexHNSWFlat(dim, plan.m, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = plan.ef_construction
    else:
        lists = plan.lists(n)
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFPQ(
            quantizer, dim, lists, plan.code_bytes(dim), 8, faiss.METRIC_INNER_PRODUCT
        )
        index.train(_sample(blocks, 64 * max(_PQ_CENTROIDS, lists)))
    facts = Facts(
        kind, layout, 0, dim, n, _EFFORTS[kind][0], params={"m": plan.m, "refine": plan.refine}
    )
    made = Neighbours(index, facts)
    extend(made, blocks)
    facts.build_s = round(time.perf_counter() - start, 3)
    return made


def extend(made: Neighbours, blocks: Sequence[Floats]) -> None:
    """Add rows that follow those already held."""
    for block in blocks:
        for start in range(0, len(block), 10_000):
            made.index.add(np.ascontiguousarray(block[start : start + 10_000]))
    made.facts.n = int(made.index.ntotal)


def _sample(blocks: Sequence[Floats], n: int) -> Floats:
    total = sum(map(len, blocks))
    chosen = np.sort(np.random.default_rng(0).permutation(total)[:n])
    parts, offset = [], 0
    for block in blocks:
        low, high = np.searchsorted(chosen, [offset, offset + len(block)])
        parts.append(block[chosen[low:high] - offset])
        offset += len(block)
    return np.ascontiguousarray(np.concatenate(parts))


def efforts(kind: str) -> tuple[int, ...]:
    """Return the search efforts to try, cheapest first: efSearch, or lists probed."""
    return _EFFORTS[kind]


def _file(folder: Path, facts: Facts) -> Path:
    return folder / f"{facts.kind}-{facts.layout}-{facts.n}.faiss"


def save(folder: Path, made: Neighbours) -> Path:
    """Write the FAISS file and its facts; the facts come last and carry the file's CRC."""
    faiss = load_faiss()
    path = _file(folder, made.facts)
    crc = 0

    def fill(file: BinaryIO) -> None:
        def put(data: bytes) -> int:
            nonlocal crc
            crc = zlib.crc32(data, crc)
            return file.write(data)

        faiss.write_index(made.index, faiss.PyCallbackIOWriter(put))

    write_file(path, fill)
    made.facts.crc = crc
    text = json.dumps(asdict(made.facts)).encode()

    def fill_facts(file: BinaryIO) -> None:
        file.write(text)

    write_file(path.with_suffix(".json"), fill_facts)
    return path


def load(folder: Path, layout: int, n_rows: int) -> Neighbours | None:
    """Load the newest FAISS file that fits, or None: it is a cache, and a bad one is ignored."""
    faiss = load_faiss()
    best = find_facts(folder, layout, n_rows)
    if best is None:
        return None
    try:
        data = np.fromfile(_file(folder, best), dtype=np.uint8)
        if zlib.crc32(data.data) != best.crc:
            return None
        index = faiss.deserialize_index(data)
    except (OSError, RuntimeError):
        return None
    if index.ntotal != best.n or index.d != best.dim:
        return None
    return Neighbours(index, best)


def find_facts(folder: Path, layout: int, n_rows: int) -> Facts | None:
    """Return the facts of the largest FAISS file of this layout."""
    best: Facts | None = None
    for path in folder.glob("*.json"):
        try:
            facts = Facts(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        fits = facts.layout == layout and facts.n <= n_rows and facts.kind in _EFFORTS
        if fits and (best is None or facts.n > best.n):
            best = facts
    return best


def remove_others(folder: Path, keep: Path | None) -> None:
    """Delete the FAISS files that a newer one replaces."""
    for path in (*folder.glob("*.faiss"), *folder.glob("*.json")):
        if keep is None or path.stem != keep.stem:
            path.unlink(missing_ok=True)
