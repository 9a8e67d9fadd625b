"""Texts encoded per second by `minilm` beside sentence-transformers' own `encode`.

Both read the same weights and the same texts, in turns in one process, after the vectors have been
compared. The library runs with its default settings (batches of 32) and torch's threads.

    python tests/bench/encode_text.py --texts 2000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a BEIR corpus.jsonl; default: scifact's")
    parser.add_argument("--texts", type=int, default=2000, help="how many of its texts")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turns")
    parser.add_argument("--threads", type=int, help="default: OMP_NUM_THREADS or all cores")
    parser.add_argument("--dtype", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--skip-short", action="store_true", help="abstracts only")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def read_texts(path: Path | None, n: int) -> list[str]:
    """Return the first n abstracts of a BEIR corpus as 'title text'."""
    if path is None:
        beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
        folder = Path(os.environ.get("FOVEATE_EVAL_DATA", beside))
        path = folder / "scifact" / "corpus.jsonl"
    with path.open(encoding="utf-8") as file:
        records = [json.loads(line) for line, _ in zip(file, range(n), strict=False)]
    return [f"{record.get('title', '')} {record['text']}".strip() for record in records]


def describe_machine() -> dict[str, object]:
    import torch

    from foveate.encoders.devices import has_fast_bf16

    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split("\t: ", 1) for line in text.splitlines() if "\t: " in line)
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return {
        "cpu": next((v for k, v in lines.items() if k.strip() == "model name"), "unknown"),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "fast_bf16": has_fast_bf16(torch.device("cpu")),
    }


def measure(run: Callable[[], object]) -> tuple[float, float]:
    """Return (seconds of the clock, seconds of the processor)."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(
    name: str, texts: list[str], rounds: int, runs: dict[str, Callable[[list[str]], object]]
) -> dict[str, object]:
    """Run each in turns; the order alternates, so that a drift of the machine favours none."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in runs}
    for number in range(rounds):
        for kind in list(runs)[:: 1 if number % 2 == 0 else -1]:
            times[kind].append(measure(lambda kind=kind: runs[kind](texts)))
    ours, library = times["foveate"], times["library"]
    walls = [b[0] / a[0] for a, b in zip(ours, library, strict=True)]
    result: dict[str, object] = {"texts": name, "n": len(texts), "rounds": rounds}
    for kind, measured in times.items():
        rates = sorted(len(texts) / wall for wall, _ in measured)
        result[f"{kind}_per_s"] = round(statistics.median(rates), 2)
        result[f"{kind}_range"] = [round(rates[0], 2), round(rates[-1], 2)]
    result["ratio_clock"] = round(statistics.median(walls), 3)
    result["ratio_clock_range"] = [round(min(walls), 3), round(max(walls), 3)]
    cpu = [b[1] / a[1] for a, b in zip(ours, library, strict=True)]
    result["ratio_processor_time"] = round(statistics.median(cpu), 3)
    return result


def main() -> int:
    options = read_options()
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from foveate.encoders.minilm import PACKAGE, MiniLM
    from foveate.encoders.packages import find_package
    from foveate.encoders.threads import set_threads

    set_threads(options.threads)
    encoder = MiniLM(dtype=options.dtype, batch_tokens=options.batch_tokens)
    model = SentenceTransformer(
        str(find_package(PACKAGE, "minilm") / "model"), device="cpu", local_files_only=True
    )
    abstracts = read_texts(options.data, options.texts)
    sets = {"abstracts": abstracts}
    if not options.skip_short:
        sets["titles"] = [text.split(". ")[0][:80] for text in abstracts]

    def run_library(texts: list[str]) -> object:
        return model.encode(texts, show_progress_bar=False)

    sample = [text for texts in sets.values() for text in texts[:64]]
    want = np.asarray(model.encode(sample, normalize_embeddings=True, show_progress_bar=False))
    least = float((encoder.encode(sample) * want).sum(axis=1).min())
    report: dict[str, object] = {"machine": describe_machine(), "least_cosine": round(least, 7)}
    if least < 0.999:
        print(json.dumps({**report, "error": "vectors differ: cosine below 0.999"}))
        return 1
    runs = {"library": run_library, "foveate": encoder.encode}
    report["results"] = [compare(name, texts, options.rounds, runs) for name, texts in sets.items()]
    query = ["what limits the aspect ratio of a wing?"]
    for kind, ask in (("library", run_library), ("foveate", encoder.encode_queries)):
        ask(query)
        seconds = sorted(measure(lambda ask=ask: ask(query))[0] for _ in range(40))
        report[f"{kind}_query_ms"] = [round(seconds[i] * 1e3, 2) for i in (8, 20, 32)]
    print(json.dumps(report, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
