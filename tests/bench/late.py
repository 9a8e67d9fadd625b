"""Late interaction over a retrieval set: quality, bytes a token, time, and a run that is killed.

    FOVEATE_EVAL_DATA=... python tests/bench/late.py scifact --cache FOLDER
    FOVEATE_EVAL_DATA=... python tests/bench/late.py cranfield --documents 500 --kill

Printed: nDCG@10 of single vectors, of token vectors as they are kept, with all passages compared
and with candidates only, and of token vectors in float32; bytes of a token in all; medians of a
query's time, dense and late calls in turn. --kill stops a second build at a random moment with
SIGKILL, resumes it, and compares every query's results.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foveate
from foveate.kernels.documents import Documents
from foveate.kernels.maxsim import maxsim
from foveate.pipeline import config
from foveate.pipeline.evaluate import datasets, metrics
from foveate.pipeline.evaluate.corpora import write_corpus
from foveate.pipeline.evaluate.timing import hardware, interleave, ratio
from foveate.pipeline.opening import make_encoders


def settings(code: str) -> config.Config:
    return config.load(
        overrides={
            "encoders.image.use": "none",
            "encoders.tokens.use": "late-minilm",
            "encoders.tokens.code": code,
        }
    )


class Recorder:
    """A token encoder that keeps what it made, so that it can be compared without codes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.kept: dict[str, np.ndarray] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, inputs: Any, *, progress: Any = None) -> Any:
        found = self.inner.encode(inputs, progress=progress)
        for i, text in enumerate(inputs):
            self.kept[text] = found[i].astype(np.float16)
        return found


def run(engine: Any, queries: dict[str, str], mode: str, k: int = 100) -> dict[str, list[str]]:
    found = {}
    for key, text in queries.items():
        hits = engine.search(text, k=k, mode=mode, group="source", collapse=False)
        found[key] = [str(h.passage.metadata["_id"]) for h in hits]
    return found


def exact(engine: Any, queries: dict[str, str], recorder: Recorder) -> dict[str, list[str]]:
    """Rank every passage by MaxSim of the float vectors."""
    # a fresh index: ids run from 1 on
    passages = engine.index.passages(list(range(1, engine.index.count() + 1)))
    parts = [recorder.kept[f"{p.context}\n{p.text}" if p.context else p.text] for p in passages]
    offsets = torch.tensor(np.cumsum([0, *map(len, parts)]))
    documents = Documents(torch.from_numpy(np.concatenate(parts)), offsets)
    names = [str(p.metadata["_id"]) for p in passages]
    found = {}
    for key, text in queries.items():
        asked = recorder.encode_queries([text]).vectors
        with torch.inference_mode():
            scores = maxsim(torch.from_numpy(asked), documents)[0].numpy()
        ranked = dict.fromkeys(names[i] for i in np.argsort(-scores, kind="stable"))
        found[key] = list(ranked)[:100]
    return found


def ndcg(dataset: Any, found: dict[str, list[str]]) -> float:
    return metrics.means(metrics.ranking(dataset.qrels, found))["nDCG@10"]


def kill_and_resume(folder: Path, paths: list[Path], code: str, queries: dict[str, str]) -> bool:
    """Build once undisturbed and once with a SIGKILL in between; compare the results."""
    command = [
        sys.executable, "-P", "-m", "foveate.cli", "index", *map(str, paths),
        "--set", "encoders.image.use=none", "--set", "encoders.tokens.use=late-minilm",
        "--set", f"encoders.tokens.code={code}",
    ]  # fmt: skip
    started = time.perf_counter()
    subprocess.run([*command, "--index", str(folder / "calm.fov")], check=True, capture_output=True)
    whole = time.perf_counter() - started
    child = subprocess.Popen(
        [*command, "--index", str(folder / "shaken.fov")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(whole * random.Random(0).uniform(0.4, 0.8))
    child.send_signal(signal.SIGKILL)
    child.wait()
    with foveate.open(folder / "shaken.fov") as engine:
        print(f"killed with {engine.index.count()} passages committed")
    subprocess.run(
        [*command, "--index", str(folder / "shaken.fov")], check=True, capture_output=True
    )
    runs = []
    for name in ("calm", "shaken"):
        with foveate.open(folder / f"{name}.fov") as engine:
            runs.append(run(engine, queries, "late", k=10))
    return runs[0] == runs[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("dataset")
    options.add_argument("--code", default="onebit", choices=["onebit", "int8"])
    options.add_argument("--documents", type=int, help="only so many, those judged among them")
    options.add_argument("--queries", type=int)
    options.add_argument("--cache", type=Path)
    options.add_argument("--kill", action="store_true")
    chosen = options.parse_args()
    (dataset,) = datasets.load(chosen.dataset)
    if chosen.queries or chosen.documents:
        dataset = cut(dataset, chosen.documents, chosen.queries)
    queries = dict(dataset.queries)
    folder = chosen.cache or Path(tempfile.mkdtemp())
    paths = write_corpus(dataset, folder / "corpus")
    print(", ".join(f"{k} {v}" for k, v in hardware().items()))
    encoders = make_encoders(settings(chosen.code))
    recorder = Recorder(encoders["tokens"])
    made: dict[str, Any] = {**encoders, "tokens": recorder}
    place = folder / f"late-{chosen.code}.fov"
    started = time.perf_counter()
    with foveate.open(place, create=True, config=settings(chosen.code), encoders=made) as engine:
        engine.add(*paths)
        print(f"indexed {engine.index.count()} passages in {time.perf_counter() - started:.0f} s")
        status = engine.status()
        tower, size = status["towers"]["tokens"], status["bytes"]
        a_token = size["tokens"] / tower["tokens"]
        cache = size["centroids"] / tower["tokens"]
        print(f"{tower['tokens']} tokens: {a_token:.1f} bytes each on disk, centroids {cache:.1f}")
        late = run(engine, queries, "late")
        for name, found in {
            "dense": run(engine, queries, "dense"), f"late, {chosen.code}": late,
        }.items():  # fmt: skip
            print(f"nDCG@10 {ndcg(dataset, found):.4f}  {name}", flush=True)
        if recorder.kept:
            want = ndcg(dataset, exact(engine, queries, recorder))
            print(f"nDCG@10 {want:.4f}  late, float vectors, every passage compared")
        some = list(queries.values())[:20]
        calls = {
            mode: lambda mode=mode: [engine.search(t, k=10, mode=mode) for t in some]
            for mode in ("dense", "late")
        }
        timed = interleave(calls, rounds=5)
        times, low, high = ratio(timed["late"], timed["dense"])
        for mode, timing in timed.items():
            print(f"{1e3 * statistics.median(timing.seconds) / len(some):.1f} ms a query  {mode}")
        print(f"late takes {times:.2f} times as long as dense ({low:.2f}-{high:.2f})")
    if chosen.kill:
        with tempfile.TemporaryDirectory() as apart:
            same = kill_and_resume(Path(apart), paths, chosen.code, queries)
        print("killed and resumed: " + ("the same results" if same else "OTHER RESULTS"))
        if not same:
            raise SystemExit(1)


def cut(dataset: Any, n_documents: int | None, n_queries: int | None) -> Any:
    """Return the set with fewer queries, and documents: all that are judged, then the first."""
    import dataclasses

    queries = dict(list(dataset.queries.items())[:n_queries])
    qrels = {q: dataset.qrels[q] for q in queries}
    judged = {d for row in qrels.values() for d in row}
    order = sorted(dataset.corpus, key=lambda record: record.id not in judged)
    return dataclasses.replace(
        dataset, corpus=tuple(order[:n_documents]), queries=queries, qrels=qrels
    )


if __name__ == "__main__":
    main()
