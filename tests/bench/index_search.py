"""How much the index adds to the raw calls of FAISS and tantivy, and what it costs to build.

    python tests/bench/index_search.py --n 100000

Vectors come from random clusters, texts from words with Zipf's frequencies. Correctness is checked
first; then calls are interleaved and medians compared, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import tantivy

from foveate.index.disk import DiskIndex, Tower
from foveate.index.neighbours import find_facts, load
from foveate.pipeline.types import Document, Draft, Locator


def rss_mb() -> dict[str, float]:
    """Resident memory, in all and without the mapped files."""
    values = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "RssAnon", "VmHWM"):
            values[name] = round(int(rest.split()[0]) / 1024, 1)
    return values


def make_vectors(rng: np.random.Generator, n: int, dim: int, centres: np.ndarray) -> np.ndarray:
    x = centres[rng.integers(0, len(centres), n)]
    x = x + rng.standard_normal((n, dim), dtype=np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def make_texts(rng: np.random.Generator, n: int, n_words: int) -> list[str]:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(w) for w in letters[rng.integers(0, 26, (30_000, 6))]])
    ranks = np.minimum(rng.zipf(1.2, (n, n_words)) - 1, len(words) - 1)
    return [" ".join(row) for row in words[ranks]]


def build(
    index: DiskIndex, texts: list[str], vectors: np.ndarray, group: int, per_source: int
) -> float:
    """Index sources of `per_source` passages, committed in groups of `group` passages."""
    start = time.perf_counter()
    with index.writer() as w:
        for low in range(0, len(texts), per_source):
            some = texts[low : low + per_source]
            text = "\n".join(some)
            title = f"title {low % 1000}"
            document = Document(
                f"{low:064x}"[::-1], "text/plain", "text", len(text), text,
                title=title, metadata={"n": low},
            )  # fmt: skip
            drafts, at = [], 0
            for one in some:
                drafts.append(Draft("text", one, Locator((at, at + len(one))), title))
                at += len(one) + 1
            path = f"/corpus/{low // 1000}/{low}.txt"
            w.begin(path, len(text), 10**18, document.digest)
            part = vectors[low : low + len(some)]
            w.add(path, document, drafts, {"text": (np.arange(len(some)), part)})
            w.finish(path, "indexed", ())
            if low % group == 0:
                w.commit()
    return time.perf_counter() - start


def compare(name: str, ours: Callable[[int], object], raw: Callable[[int], object], n: int) -> dict:
    """Interleave and return medians in milliseconds and their ratio."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(n + 5):
        for which, call in enumerate((ours, raw) if i % 2 else (raw, ours)):
            side = which if i % 2 else 1 - which
            start = time.perf_counter()
            call(i)
            if i >= 5:
                times[side].append((time.perf_counter() - start) * 1e3)
    a, b = (statistics.median(t) for t in times)
    row = {"ours_ms": round(a, 3), "raw_ms": round(b, 3), "ratio": round(a / b, 3)}
    print(f"{name:34} ours {a:8.3f} ms   raw {b:8.3f} ms   ratio {a / b:6.3f}", flush=True)
    return row


def time_of(name: str, call: Callable[[int], object], n: int) -> float:
    times = []
    for i in range(n):
        start = time.perf_counter()
        call(i)
        times.append((time.perf_counter() - start) * 1e3)
    print(f"{name:34} {statistics.median(times):8.3f} ms", flush=True)
    return round(statistics.median(times), 3)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, default=100_000)
    options.add_argument("--dim", type=int, default=384)
    options.add_argument("--words", type=int, default=60)
    options.add_argument("--queries", type=int, default=60)
    options.add_argument("--per-source", type=int, default=5)
    options.add_argument("--group", type=int, default=2000)
    options.add_argument("--kind", default="auto")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    rng = np.random.default_rng(0)
    n, dim = chosen.n, chosen.dim
    centres = rng.standard_normal((max(50, n // 50), dim), dtype=np.float32)
    vectors = make_vectors(rng, n, dim, centres)
    texts = make_texts(rng, n, chosen.words)
    queries = make_vectors(rng, chosen.queries + 5, dim, centres)
    folder = Path(tempfile.mkdtemp())
    print(f"{platform.platform()}, {os.cpu_count()} cores, python {sys.version.split()[0]}, "
          f"faiss {faiss.__version__}, tantivy {tantivy.__version__}, n {n} x {dim}")  # fmt: skip
    try:
        towers = {"text": Tower("text", "bench", f"bench/{dim}", dim)}
        index = DiskIndex.create(folder / "x.fov", towers=towers, settings={}, kind=chosen.kind)
        seconds = build(index, texts, vectors, chosen.group, chosen.per_source)
        status = index.status()
        size = {k: round(v / 1e6, 1) for k, v in status["bytes"].items()}
        print(f"built in {seconds:.1f} s = {n / seconds:.0f} passages/s; disk MB {size}")
        print(f"MB: vectors {vectors.nbytes / 1e6:.1f}, text {sum(map(len, texts)) / 1e6:.1f}")
        print("tower", {k: status["towers"]["text"][k] for k in ("kind", "recall_at_10", "note")})
        result = {"seconds": seconds, "disk_mb": size, "rss_mb": rss_mb()}
        result |= measure(index, texts, vectors, queries, folder)
        print("memory MB", rss_mb())
        if chosen.json:
            chosen.json.write_text(json.dumps(result, indent=1))
        index.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    index: DiskIndex, texts: list[str], vectors: np.ndarray, queries: np.ndarray, folder: Path
) -> dict[str, object]:
    n_queries = len(queries) - 5
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    scores, ids = index.search_vectors("text", queries, 10)
    want_scores, want = flat.search(queries, 10)
    recall = np.mean([len(set(a) & set(b + 1)) / 10 for a, b in zip(ids, want, strict=True)])
    exact = index.status()["towers"]["text"]["kind"] == "flat"
    if exact and not np.allclose(scores, want_scores, atol=1e-5):
        raise SystemExit("the exact search differs from IndexFlatIP")
    print(f"recall@10 against IndexFlatIP on fresh queries: {recall:.4f}")
    raw = flat
    facts = find_facts(index.vectors_folder("text"), 1, len(vectors))
    if not exact and facts is not None:
        loaded = load(index.vectors_folder("text"), 1, len(vectors))
        raw = loaded.index
        if facts.kind == "hnsw":
            raw.hnsw.efSearch = facts.effort
        else:
            raw.nprobe = facts.effort
    found: dict[str, object] = {"recall": float(recall)}
    texts_only = ("text", "table")
    found["dense"] = compare(
        f"dense, {index.status()['towers']['text']['kind']}, k=10",
        lambda i: index.search_vectors("text", queries[i : i + 1], 10, modalities=texts_only),
        lambda i: raw.search(queries[i : i + 1], 10), n_queries)  # fmt: skip
    words = [" ".join(t.split()[:8]) for t in texts[: len(queries)]]
    bare = tantivy_of(texts, folder / "raw")
    searcher = bare.searcher()

    def raw_words(i: int) -> object:
        query = bare.parse_query(words[i], ["body"])
        hits = searcher.search(query, 10, count=False).hits
        return searcher.fast_field_values("id", [h[1] for h in hits])

    found["words"] = compare("words, 8 terms, k=10", lambda i: index.search_words(words[i], 10),
                             raw_words, n_queries)  # fmt: skip
    half, few = len(texts) // 2, max(10, len(texts) // 100)
    for name, limit in (("half", half), ("1 in 100", few)):
        where = f"n < {limit}"

        found |= time_filters(index, name, where, limit, queries, words)
    rng = np.random.default_rng(1)
    for k in (10, 100, 200):
        chosen = [rng.integers(1, len(texts), k) for _ in range(20)]
        found[f"passages {k}"] = time_of(f"read {k} passages", read_call(index, chosen), 20)
    found["generation"] = time_of("look at the generation", lambda i: index.generation, 200)
    return found


def read_call(index: DiskIndex, chosen: list[np.ndarray]) -> Callable[[int], object]:
    return lambda i: index.passages(chosen[i])


def time_filters(
    index: DiskIndex, name: str, where: str, limit: int, queries: np.ndarray, words: list[str]
) -> dict[str, object]:
    """Time a filter that was not asked before, then one that was."""

    def dense(i: int, text: str) -> None:
        index.search_vectors("text", queries[i : i + 1], 10, where=text)

    calls: list[tuple[str, Callable[[int], object], int]] = [
        ("dense, first", lambda i: dense(i, f"n < {limit}.{i:03}"), 10),
        ("dense, again", lambda i: dense(i, where), 20),
        ("words, again", lambda i: index.search_words(words[i], 10, where=where), 20),
    ]
    return {f"{k}, {name}": time_of(f"{k}, filter {name}", call, n) for k, call, n in calls}


def tantivy_of(texts: list[str], folder: Path) -> tantivy.Index:
    folder.mkdir()
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("id", fast=True)
    builder.add_text_field("body", tokenizer_name="en_stem", index_option="freq")
    bare = tantivy.Index(builder.build(), path=str(folder))
    writer = bare.writer(heap_size=128_000_000, num_threads=1)
    start = time.perf_counter()
    for i, text in enumerate(texts):
        document = tantivy.Document()
        document.add_unsigned("id", i)
        document.add_text("body", text)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    bare.reload()
    print(f"raw tantivy alone was built in {time.perf_counter() - start:.1f} s")
    return bare


if __name__ == "__main__":
    main()
