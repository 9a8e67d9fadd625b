"""Cost against size: building, searching, disk and memory of an index of synthetic vectors."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.evaluate.bench import BenchError, Options, Row, rows_of
from foveate.pipeline.evaluate.benches import made_up
from foveate.pipeline.evaluate.timing import interleave, resident_bytes

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

DIM = 384
GROUP = 2000
N_QUERIES = 20
MIB = 2**20


def size(options: Options) -> list[Row]:
    """Build an index of each size from clustered vectors and short texts, and search it."""
    rows = []
    for n in options.sizes:
        options.announce(f"  {n:,} passages")
        with tempfile.TemporaryDirectory() as folder:
            rows += one_size(n, Path(folder), options.rounds)
    return rows


def one_size(n: int, folder: Path, rounds: int) -> list[Row]:
    """Measure one size; the first hit must be the exact search's for 9 queries in 10."""
    import faiss

    from foveate.index.towers import Tower
    from foveate.pipeline import registry

    vectors, queries = clustered(n)
    texts = made_up(min(n, 5000), 40)
    before = resident_bytes()
    towers = {"text": Tower("text", "bench", f"bench/{DIM}", DIM)}
    index = registry.find("index", "disk").create(folder / "x.fov", towers=towers, settings={})
    started = time.perf_counter()
    write(index, vectors, texts)
    build_s = time.perf_counter() - started
    try:
        flat = faiss.IndexFlatIP(DIM)
        flat.add(vectors)
        want = flat.search(queries, 1)[1][:, 0]
        got = index.search_vectors("text", queries, 1)[1][:, 0]
        # passages are numbered from 1 in the order in which they were written
        same = float(np.mean(got == want + 1))
        if same < 0.9:
            raise BenchError(f"size {n}: the first hit is the exact one for only {same:.0%}")

        def ours() -> None:
            for i in range(N_QUERIES):
                index.search_vectors("text", queries[i : i + 1], 10)

        def exact() -> None:
            for i in range(N_QUERIES):
                flat.search(queries[i : i + 1], 10)

        asked = [" ".join(t.split()[:6]) for t in texts[:N_QUERIES]]

        def by_words() -> None:
            for text in asked:
                index.search_words(text, 10)

        timings = interleave({"foveate": ours, "faiss flat": exact}, rounds=rounds)
        words = interleave({"words": by_words}, rounds=rounds)["words"]
        status = index.status()
    finally:
        index.close()
    kind = status["towers"]["text"]["kind"]
    check = f"{kind}; first hit exact for {same:.0%}; {N_QUERIES} queries a call"
    rows = rows_of("size, dense", timings, n=n, items=N_QUERIES, check=check)
    rows[0] |= {
        "build_s": round(build_s, 3),
        "words_ms": 1e3 * words.median,
        "disk_mib": status["bytes"]["total"] / MIB,
        "memory_mib": (resident_bytes() - before) / MIB,
    }
    return rows


def write(index: Any, vectors: Floats, texts: list[str]) -> None:
    """Write a passage a source, in groups of a commit each."""
    from foveate.pipeline.types import Document, Draft, Locator

    with index.writer() as writer:
        for i in range(len(vectors)):
            text = texts[i % len(texts)]
            digest = f"{i:064x}"[::-1]
            document = Document(digest, "text/plain", "text", len(text), text)
            draft = Draft("text", text, Locator((0, len(text))))
            path = f"/corpus/{i // 1000}/{i}.txt"
            writer.begin(path, len(text), 10**18, digest)
            writer.add(path, document, [draft], {"text": (np.arange(1), vectors[i : i + 1])})
            writer.finish(path, "indexed", ())
            if i % GROUP == GROUP - 1:
                writer.commit()


def clustered(n: int) -> tuple[Floats, Floats]:
    """Return (n, d) vectors around n / 50 centres and (q, d) queries near some of them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(20, n // 50), DIM), dtype=np.float32)
    rows = centres[rng.integers(0, len(centres), n)]
    vectors = rows + rng.standard_normal((n, DIM), dtype=np.float32)
    near = vectors[rng.integers(0, n, N_QUERIES)]
    queries = near + 0.3 * rng.standard_normal((N_QUERIES, DIM), dtype=np.float32)
    for made in (vectors, queries):
        made /= np.linalg.norm(made, axis=1, keepdims=True)
    return vectors, queries.astype(np.float32)
