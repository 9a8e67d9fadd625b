"""How much a search adds to the calls it is made of: encoder, FAISS and tantivy.

    python tests/bench/search.py --n 100000

The queries are encoded by MiniLM. The stored vectors are drawn from random clusters, since
encoding 100,000 texts would take an hour and changes nothing in a search. The first hit is checked
against FAISS's, then the calls are interleaved and medians compared.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

import foveate
from foveate.encoders.minilm import MiniLM
from foveate.pipeline.evaluate import peers
from foveate.pipeline.evaluate.benches import made_up
from foveate.pipeline.evaluate.timing import hardware, interleave, ratio, resident_bytes

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

LIMITS = {"dense": 1.3, "hybrid": 1.5}


class Quick(MiniLM):
    """MiniLM for what is asked; for what is stored, a point of a random cluster."""

    centres = np.random.default_rng(0).standard_normal((256, 384)).astype(np.float32)

    def encode(
        self, inputs: Sequence[Any], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        vectors = np.empty((len(inputs), self.dim), dtype=np.float32)
        for row, text in enumerate(inputs):
            rng = np.random.default_rng(zlib.crc32(text.encode()))
            vectors[row] = self.centres[rng.integers(256)] + rng.standard_normal(self.dim)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000, help="passages")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--queries", type=int, default=20)
    options = parser.parse_args()
    encoder = Quick()
    texts = made_up(options.n, 60)
    queries = [" ".join(t.split()[3:11]) for t in texts[:: max(1, len(texts) // options.queries)]]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        with corpus.open("w", encoding="utf-8") as handle:
            handle.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        before = resident_bytes()
        with foveate.open(Path(folder) / "ix", create=True, encoders={"text": encoder}) as engine:
            report = engine.add(corpus)
            print(f"{report.n_passages} passages written in {report.seconds:.0f} s")
            failed = compare(engine, encoder, queries, Path(folder), options.rounds)
            print(
                f"memory of the process: {(resident_bytes() - before) / 2**20:.0f} MB more than "
                f"before, of which vectors {options.n * encoder.dim * 4 / 2**20:.0f} MB twice"
            )
    print(json.dumps(hardware()))
    return failed


def compare(
    engine: foveate.Engine, encoder: MiniLM, queries: list[str], folder: Path, rounds: int
) -> int:
    passages = engine.index.passages(list(range(1, engine.index.count() + 1)))
    vectors = engine.index.vectors([p.id for p in passages], "text")
    flat = faiss.IndexFlatIP(encoder.dim)
    flat.add(vectors)
    words = peers.build_tantivy([p.text for p in passages], folder / "raw")
    for query in queries:
        hit = engine.search(query, k=1, mode="dense", collapse=False)[0]
        score, place = flat.search(encoder.encode_queries([query]), 1)
        same = hit.passage.id == passages[int(place[0, 0])].id
        assert same or abs(hit.scores["dense"] - score[0, 0]) < 1e-5, query

    def ours(mode: str) -> Callable[[], Any]:
        return lambda: [engine.search(q, k=10, mode=mode, rerank=False) for q in queries]

    def raw(*, lexical: bool) -> Callable[[], Any]:
        def call() -> None:
            for query in queries:
                flat.search(encoder.encode_queries([query]), 10)
                if lexical:
                    words(query, 10)

        return call

    failed = 0
    for mode, limit in LIMITS.items():
        name = "encoder + FAISS" + (" + tantivy" if mode == "hybrid" else "")
        timings = interleave(
            {"foveate": ours(mode), name: raw(lexical=mode == "hybrid")}, rounds=rounds
        )
        mine, theirs = timings["foveate"], timings[name]
        middle, low, high = ratio(mine, theirs)
        failed |= middle > limit
        print(
            f"{mode}: foveate {1e3 * mine.median / len(queries):.1f} ms a query, {name} "
            f"{1e3 * theirs.median / len(queries):.1f} ms; ratio {middle:.2f} "
            f"({low:.2f} to {high:.2f}), at most {limit}"
        )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
