"""Cost against size: building, searching, disk and memory of an index of synthetic vectors."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.evaluate import peers
from foveate.pipeline.evaluate.bench import Options, Row, rows_of
from foveate.pipeline.evaluate.benches import (
    N_FOUND,
    Find,
    as_exact,
    ask_all,
    find_their_own,
    made_up,
)
from foveate.pipeline.evaluate.timing import interleave, resident_bytes

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

DIM = 384
GROUP = 2000
N_TEXTS = 5000  # different ones; more passages say them again
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
    """Measure one size: by vectors, by both lists fused, and by words; each is checked first."""
    from foveate.index.towers import Tower
    from foveate.pipeline import registry

    vectors, queries, origins = clustered(n)
    texts = made_up(min(n, N_TEXTS), 40)
    before = resident_bytes()
    towers = {"text": Tower("text", Given.tower, Given.space, DIM)}
    index = registry.find("index", "disk").create(folder / "x.fov", towers=towers, settings={})
    started = time.perf_counter()
    write(index, vectors, texts)
    build_s = time.perf_counter() - started
    own = {" ".join(texts[i].split()[:6]): i for i in origins}
    encoder = Given(dict(zip(own, queries, strict=True)))
    rows: list[Row] = []
    try:
        ours = finders(index, encoder)
        for find in ours.values():
            ask_all(find, list(own))
        cost: Row = {"build_s": round(build_s, 3), "memory_mib": (resident_bytes() - before) / MIB}
        for kind, others in rivals(vectors, texts, encoder, folder / "raw").items():
            name, contenders = f"size, {kind}", {"foveate": ours[kind], **others}
            if kind == "dense":
                check = as_exact(name, contenders, own, least=0.9)
            else:
                owners = [i % len(texts) for i in range(n)]
                check = find_their_own(name, contenders, own, owners)
            calls = {who: partial(ask_all, find, list(own)) for who, find in contenders.items()}
            timings = interleave(calls, rounds=rounds)
            told = f"{check}; {len(own)} queries a call"
            rows += rows_of(name, timings, n=n, items=len(own), check=told)
        status = index.status()
    finally:
        index.close()
    rows[0] |= {**cost, "disk_mib": status["bytes"]["total"] / MIB}
    rows[0]["check"] = f"{status['towers']['text']['kind']}; {rows[0]['check']}"
    return rows


class Given:
    """An encoder that knows the queries' vectors beforehand: what is timed is the search."""

    tower, space = "bench", f"bench/{DIM}"

    def __init__(self, vectors: Mapping[str, Floats]) -> None:
        self._vectors = vectors

    def encode_queries(self, queries: Sequence[str]) -> Floats:
        """Return (q, d) float32."""
        return np.stack([self._vectors[query] for query in queries])


def finders(index: Any, encoder: Given) -> dict[str, Find]:
    """Return how the index is asked: by vectors, by both lists fused, by words."""
    from foveate.pipeline import query, search

    options, encoders = search.SearchOptions(), {"text": encoder}

    def dense(text: str) -> list[int]:
        ids = index.search_vectors("text", encoder.encode_queries([text]), N_FOUND)[1][0]
        return [int(i) - 1 for i in ids if i > 0]

    def hybrid(text: str) -> list[int]:
        asked = query.parse(text, k=N_FOUND, modality="text", collapse=False)
        hits = search.search(index, encoders, asked, options)  # type: ignore[arg-type]
        return [hit.passage.id - 1 for hit in hits]

    def words(text: str) -> list[int]:
        return [int(i) - 1 for i in index.search_words(text, N_FOUND)[1] if i > 0]

    return {"dense": dense, "hybrid": hybrid, "words": words}


def rivals(
    vectors: Floats, texts: Sequence[str], encoder: Given, folder: Path
) -> dict[str, dict[str, Find]]:
    """Return the bare calls that each kind of search is made of, over the same passages."""
    import faiss

    flat = faiss.IndexFlatIP(DIM)
    flat.add(vectors)
    words = peers.build_tantivy([texts[i % len(texts)] for i in range(len(vectors))], folder)

    def nearest(text: str) -> list[int]:
        found: list[int] = flat.search(encoder.encode_queries([text]), N_FOUND)[1][0].tolist()
        return found

    return {
        "dense": {"faiss flat": nearest},
        "hybrid": {"faiss flat + tantivy": lambda t: [*nearest(t), *words(t, N_FOUND)]},
        "words": {"tantivy": lambda t: words(t, N_FOUND)},
    }


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


def clustered(n: int) -> tuple[Floats, Floats, list[int]]:
    """Return (n, d) vectors about n / 50 centres, (q, d) queries near some, and which those are."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(20, n // 50), DIM), dtype=np.float32)
    rows = centres[rng.integers(0, len(centres), n)]
    vectors = rows + rng.standard_normal((n, DIM), dtype=np.float32)
    # no two of one text, or a query would have two vectors
    origins = rng.choice(min(n, N_TEXTS), N_QUERIES, replace=False)
    noise = rng.standard_normal((N_QUERIES, DIM), dtype=np.float32)
    queries = vectors[origins] + 0.3 * noise
    for made in (vectors, queries):
        made /= np.linalg.norm(made, axis=1, keepdims=True)
    return vectors, queries.astype(np.float32), origins.tolist()
