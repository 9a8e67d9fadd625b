"""Encoding, indexing and searching, each beside what a person would use instead."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foveate.pipeline.evaluate import datasets, peers
from foveate.pipeline.evaluate.baselines import BM25
from foveate.pipeline.evaluate.bench import BenchError, Options, Row, rows_of
from foveate.pipeline.evaluate.timing import interleave

LEAST_COSINE = 0.999
N_QUERIES = 20


def encode(options: Options) -> list[Row]:
    """Encode texts; sentence-transformers reads the same weights."""
    from foveate.pipeline import registry

    texts = texts_of(options.n)
    encoder = registry.find("encoder", "minilm")()
    contenders: dict[str, Callable[[], Any]] = {"foveate": lambda: encoder.encode(texts)}
    check = "no peer"
    if options.peers and peers.installed("sentence-transformers"):
        model = peers.sentence_transformer()
        want = model.encode(texts[:64], normalize_embeddings=True, show_progress_bar=False)
        least = float((encoder.encode(texts[:64]) * np.asarray(want)).sum(axis=1).min())
        if least < LEAST_COSINE:
            raise BenchError(f"encode: cosine {least:.5f} with sentence-transformers, not 0.999")
        check = f"cosine at least {least:.5f}"
        contenders["sentence-transformers"] = lambda: model.encode(texts, show_progress_bar=False)
    timings = interleave(contenders, rounds=options.rounds)
    return rows_of("encode", timings, n=len(texts), items=len(texts), check=check)


def index(options: Options) -> list[Row]:
    """Index texts end to end, from the file to a search that works."""
    texts = texts_of(options.n)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(texts, Path(folder))
        count = iter(range(10_000))

        def ours() -> peers.Search:
            return build_ours(corpus, Path(folder) / f"{next(count)}.fov")

        contenders: dict[str, Callable[[], peers.Search]] = {"foveate": ours}
        if options.peers and peers.installed("txtai"):
            contenders["txtai"] = lambda: peers.build_txtai(texts)
        if options.peers and peers.installed("langchain + faiss"):
            contenders["langchain + faiss"] = lambda: peers.build_langchain(texts)
        for name, build in contenders.items():
            found = build()
            n_right = sum(i in found(texts[i][:200], 3) for i in range(0, len(texts), 50))
            if n_right < 0.9 * len(range(0, len(texts), 50)):
                raise BenchError(f"index: {name} does not find the texts that it indexed")
        timings = interleave(contenders, rounds=min(3, options.rounds), warmup=0)
    check = "each finds its own texts"
    return rows_of("index", timings, n=len(texts), items=len(texts), check=check)


def search(options: Options) -> list[Row]:
    """Search in a running process, beside the bare calls that it is made of."""
    import faiss

    import foveate

    texts = texts_of(options.n)
    queries = [" ".join(t.split()[3:13]) for t in texts[:: max(1, len(texts) // N_QUERIES)]]
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(texts, Path(folder))
        place = Path(folder) / "bench.fov"
        build_ours(corpus, place)
        with foveate.open(place) as engine:
            encoder = engine.encoders["text"]
            passages = engine.index.passages(list(range(1, engine.index.count() + 1)))
            vectors = engine.index.vectors([p.id for p in passages], "text")
            flat = faiss.IndexFlatIP(vectors.shape[1])
            flat.add(vectors)
            words = peers.build_tantivy([p.text for p in passages], Path(folder) / "raw")
            same = np.mean(
                [
                    engine.search(q, k=1, mode="dense", collapse=False)[0].passage.id
                    == passages[int(flat.search(encoder.encode_queries([q]), 1)[1][0, 0])].id
                    for q in queries
                ]
            )
            if same < 0.95:
                raise BenchError(f"search: the first hit equals FAISS's for only {same:.0%}")

            def ask(mode: str) -> Callable[[], Any]:
                chosen: dict[str, Any] = {"mode": mode, "modality": "text", "rerank": False}
                return lambda: [engine.search(q, k=10, **chosen) for q in queries]

            def raw_dense() -> None:
                for q in queries:
                    flat.search(encoder.encode_queries([q]), 10)

            def raw_hybrid() -> None:
                for q in queries:
                    flat.search(encoder.encode_queries([q]), 10)
                    words(q, 10)

            pairs: dict[str, dict[str, Callable[[], Any]]] = {
                "search, dense": {"foveate": ask("dense"), "encoder + faiss": raw_dense},
                "search, hybrid": {
                    "foveate": ask("hybrid"),
                    "encoder + faiss + tantivy": raw_hybrid,
                },
                "search, words": {
                    "foveate": ask("words"),
                    "tantivy": lambda: [words(q, 10) for q in queries],
                },
            }
            if options.peers and peers.installed("bm25s"):
                bm25 = BM25(texts)
                pairs["search, words"]["bm25s"] = lambda: [bm25.search([q], 10) for q in queries]
            rows: list[Row] = []
            for name, contenders in pairs.items():
                timings = interleave(contenders, rounds=options.rounds)
                check = f"first hit as FAISS's: {same:.0%}; {len(queries)} queries a call"
                rows += rows_of(name, timings, n=len(passages), items=len(queries), check=check)
    return rows


def build_ours(corpus: Path, place: Path) -> peers.Search:
    """Index a corpus with the offline preset; return a search over it."""
    import foveate
    from foveate.pipeline import config

    settings = config.load("offline", overrides={"encoders.image.use": "none"})
    with foveate.open(place, create=True, config=settings) as engine:
        engine.add(corpus)

    def find(query: str, k: int) -> list[int]:
        with foveate.open(place, config=settings) as opened:
            hits = opened.search(query, k=k, mode="dense", group="source", collapse=False)
        return [int(hit.passage.metadata["_id"]) for hit in hits]

    return find


def write_corpus(texts: Sequence[str], folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    rows = (json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def texts_of(n: int) -> list[str]:
    """Return n different texts: scifact's where FOVEATE_EVAL_DATA has it, else made-up ones."""
    if os.environ.get(datasets.DATA_VARIABLE):
        try:
            (found,) = datasets.load("scifact")
        except datasets.DatasetError:
            return made_up(n)
        if isinstance(found, datasets.Retrieval):
            real = [record.joined for record in found.corpus][:n]
            return real + made_up(n - len(real))
    return made_up(n)


def made_up(n: int, n_words: int = 120) -> list[str]:
    """Return texts of words with Zipf's frequencies, the same for the same n."""
    rng = random.Random(0)
    heads = [a + b for a in "bcdfghjklmnprstvw" for b in "aeiou"]
    words = sorted(
        {rng.choice(heads) + rng.choice(heads) + rng.choice("nrstl") for _ in range(9000)}
    )
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return [" ".join(rng.choices(words, weights, k=n_words)).capitalize() + "." for _ in range(n)]
