"""Encoding, indexing and searching, each beside what a person would use instead."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.evaluate import datasets, peers
from foveate.pipeline.evaluate.baselines import BM25
from foveate.pipeline.evaluate.bench import BenchError, Options, Row, rows_of
from foveate.pipeline.evaluate.timing import interleave

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Passage

LEAST_COSINE = 0.999
N_QUERIES = 20
N_FOUND = 10

Find = Callable[[str], list[int]]
"""find(query) -> numbers of the passages, best first"""


def encode(options: Options) -> list[Row]:
    """Encode texts; sentence-transformers reads the same weights."""
    from foveate.pipeline import registry

    texts = texts_of(options.n)
    encoder = registry.find("encoder", "minilm")()
    contenders: dict[str, Callable[[], Any]] = {"foveate": lambda: encoder.encode(texts)}
    check = "no peer"
    if options.has("sentence-transformers"):
        model = peers.sentence_transformer()
        want = model.encode(texts[:64], normalize_embeddings=True, show_progress_bar=False)
        least = float((encoder.encode(texts[:64]) * np.asarray(want)).sum(axis=1).min())
        if least < LEAST_COSINE:
            raise BenchError(
                f"encode: cosine {least:.5f} with sentence-transformers, not {LEAST_COSINE}"
            )
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
        if options.has("txtai"):
            contenders["txtai"] = lambda: peers.build_txtai(texts)
        if options.has("langchain + faiss"):
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
    import foveate

    texts = texts_of(options.n)
    step = max(1, len(texts) // N_QUERIES)
    asked = {" ".join(texts[i].split()[3:13]): i for i in range(0, len(texts), step)}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(texts, Path(folder))
        place = Path(folder) / "bench.fov"
        build_ours(corpus, place)
        with foveate.open(place) as engine:
            passages = engine.index.passages(list(range(1, engine.index.count() + 1)))
            owners = [int(p.metadata["_id"]) for p in passages]
            raw = Path(folder) / "raw"
            for name, finders in contests(engine, passages, raw, options).items():
                if name == "search, dense":
                    check = as_exact(name, finders, asked)
                else:
                    check = find_their_own(name, finders, asked, owners)
                told = f"{check}; {len(asked)} queries a call"
                calls = {who: partial(ask_all, find, list(asked)) for who, find in finders.items()}
                timings = interleave(calls, rounds=options.rounds)
                rows += rows_of(name, timings, n=len(passages), items=len(asked), check=told)
    return rows


def contests(
    engine: Engine, passages: Sequence[Passage], folder: Path, options: Options
) -> dict[str, dict[str, Find]]:
    """Return what is timed side by side, ours first, by the kind of search."""
    import faiss

    encoder = engine.encoders["text"]
    places = {passage.id: i for i, passage in enumerate(passages)}
    vectors = engine.index.vectors([p.id for p in passages], "text")
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    words = peers.build_tantivy([p.text for p in passages], folder)

    def ours(mode: str) -> Find:
        chosen: dict[str, Any] = {"mode": mode, "modality": "text", "rerank": False}
        return lambda q: [places[h.passage.id] for h in engine.search(q, k=N_FOUND, **chosen)]

    def nearest(query: str) -> list[int]:
        found: list[int] = flat.search(encoder.encode_queries([query]), N_FOUND)[1][0].tolist()
        return found

    found: dict[str, dict[str, Find]] = {
        "search, dense": {"foveate": ours("dense"), "encoder + faiss": nearest},
        "search, hybrid": {
            "foveate": ours("hybrid"),
            "encoder + faiss + tantivy": lambda q: [*nearest(q), *words(q, N_FOUND)],
        },
        "search, words": {"foveate": ours("words"), "tantivy": lambda q: words(q, N_FOUND)},
    }
    if options.has("bm25s"):
        bm25 = BM25([p.text for p in passages])
        found["search, words"]["bm25s"] = lambda q: bm25.search([q], N_FOUND)[0]
    return found


def ask_all(find: Find, queries: Sequence[str]) -> list[list[int]]:
    return [find(query) for query in queries]


def as_exact(
    name: str, finders: Mapping[str, Find], queries: Iterable[str], *, least: float = 0.95
) -> str:
    """See that ours, the first, has the first hit of an exact search, the second; say how often.

    Raises:
        BenchError: if for fewer of the queries than the least share.
    """
    ours, exact = finders.values()
    agreed = [ours(q)[:1] == exact(q)[:1] for q in queries]
    same = sum(agreed) / len(agreed)
    if same < least:
        raise BenchError(f"{name}: the first hit is the exact one for only {same:.0%}")
    return f"first hit as FAISS's: {same:.0%}"


def find_their_own(
    name: str, finders: Mapping[str, Find], asked: Mapping[str, int], owners: Sequence[int]
) -> str:
    """See that each finds the text that a query was taken from; say for how many queries.

    asked: {query: its text}. owners: the text of each passage.

    Raises:
        BenchError: if one does not for 9 queries in 10.
    """
    shares = {
        who: sum(own in {owners[i] for i in find(q)} for q, own in asked.items()) / len(asked)
        for who, find in finders.items()
    }
    for who, share in shares.items():
        if share < 0.9:
            raise BenchError(f"{name}: {who} finds a query's own text for only {share:.0%}")
    told = ", ".join(f"{who} {share:.0%}" for who, share in shares.items())
    return f"own text among {N_FOUND}: {told}"


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
