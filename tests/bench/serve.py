"""How a server holds up: many clients who search while files are indexed, and 10,000 requests.

    python tests/bench/serve.py --clients 50

The server is a process of its own with the offline encoders. First the answers are checked against
the engine's own; then one client and many take turns for some rounds, each a closed loop (a client
asks again when it has its answer) while another file is indexed all the time. Last, requests are
counted against the server's resident memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

import foveate
from foveate.pipeline.evaluate.benches import made_up
from foveate.pipeline.evaluate.timing import hardware

WARM = 2000  # requests before memory is compared: caches fill, arenas settle


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def searching(url: str, queries: list[str], clients: int, seconds: float) -> list[float]:
    """Return the time of each search, in seconds. Raises if any fails."""
    times: list[float] = []
    ends = time.perf_counter() + seconds

    async def one(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            turn = number
            while time.perf_counter() < ends:
                body = {"text": queries[turn % len(queries)], "k": 10}
                began = time.perf_counter()
                answer = await client.post("/api/search", json=body)
                answer.raise_for_status()
                assert answer.json()["hits"]
                times.append(time.perf_counter() - began)
                turn += clients

    await asyncio.gather(*(one(number) for number in range(clients)))
    return times


async def indexing(url: str, stop: asyncio.Event) -> int:
    """Upload and index files until it is told to stop; return how many."""
    n = 0
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        while not stop.is_set():
            text = "\n\n".join(made_up(20, 60))
            text = f"Note {n} {time.time_ns()}.\n\n{text}"
            params = {"name": f"note-{n}.txt", "wait_s": 60}
            answer = await client.post("/api/files", params=params, content=text.encode())
            answer.raise_for_status()
            assert answer.json()["job"]["state"] == "done"
            n += 1
    return n


async def round_of(url: str, queries: list[str], clients: int, seconds: float) -> tuple:
    stop = asyncio.Event()
    writer = asyncio.create_task(indexing(url, stop))
    times = await searching(url, queries, clients, seconds)
    stop.set()
    return times, await writer


def resident(url: str) -> int:
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        if line.startswith("process_resident_memory_bytes "):
            return int(float(line.split()[1]))
    raise RuntimeError("the server tells no memory")


async def hammer(url: str, queries: list[str], n: int) -> list[int]:
    """Send n requests of several kinds; return the memory after each thousand."""
    told = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one(number: int) -> None:
            query = queries[number % len(queries)]
            if number % 10 == 9:
                answer = await client.get("/api/status")
            else:
                answer = await client.post("/api/search", json={"text": query, "k": 5})
            answer.raise_for_status()

        for start in range(0, n, 1000):
            for low in range(start, min(start + 1000, n), 8):
                await asyncio.gather(*(one(i) for i in range(low, min(low + 8, start + 1000))))
            told.append(await asyncio.to_thread(resident, url))
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="0 for memory alone")
    parser.add_argument("--passages", type=int, default=500)
    parser.add_argument("--requests", type=int, default=10_000, help="for memory; 0 for none")
    options = parser.parse_args()
    texts = made_up(options.passages, 60)
    queries = [" ".join(text.split()[3:11]) for text in texts[:: max(1, len(texts) // 40)]]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        corpus.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        place = str(Path(folder) / "bench.fov")
        with foveate.open(place, create=True) as engine:
            engine.add(corpus)
            wanted = [[h.passage.label for h in engine.search(q, k=10)] for q in queries[:10]]
        command = ["-m", "foveate.cli", "serve", "--index", place, "--port", "0"]
        server = subprocess.Popen(
            [sys.executable, "-P", *command], stderr=subprocess.PIPE, text=True
        )
        try:
            url = server.stderr.readline().split("listening on ")[1].split()[0]
            for query, labels in zip(queries, wanted, strict=False):
                hits = httpx.post(
                    f"{url}/api/search", json={"text": query, "k": 10}, timeout=60
                ).json()["hits"]
                assert [hit["label"] for hit in hits] == labels
            report = measure(url, queries, options)
        finally:
            server.terminate()
            server.wait(timeout=60)
    print(json.dumps(report, indent=1))
    return 0


def measure(url: str, queries: list[str], options: argparse.Namespace) -> dict:
    """Take the rounds in turns, then count requests against memory."""
    report = {"hardware": hardware()}
    if options.rounds:
        report |= latency(url, queries, options)
    if options.requests:
        told = asyncio.run(hammer(url, queries, options.requests))
        settled = told[min(len(told) - 1, WARM // 1000 - 1) :]
        report["requests"] = options.requests
        report["resident_mb"] = [round(n / 1e6, 1) for n in told]
        report["growth_after_warm_up"] = round(settled[-1] / settled[0] - 1, 4)
    return report


def latency(url: str, queries: list[str], options: argparse.Namespace) -> dict:
    one, many, files = [], [], 0
    for _ in range(options.rounds):
        for clients, found in ((1, one), (options.clients, many)):
            times, n = asyncio.run(round_of(url, queries, clients, options.seconds))
            found.append(times)
            files += n
    p95 = {name: [quantile(t, 0.95) for t in found] for name, found in (("1", one), ("n", many))}
    ratios = [b / a for a, b in zip(p95["1"], p95["n"], strict=True)]
    return {
        "clients": options.clients,
        "searches": sum(map(len, one)) + sum(map(len, many)),
        "files_indexed_meanwhile": files,
        "errors": 0,
        "p50_ms": round(1e3 * statistics.median(quantile(t, 0.5) for t in many), 1),
        "p95_ms": round(1e3 * statistics.median(p95["n"]), 1),
        "p95_ms_one_client": round(1e3 * statistics.median(p95["1"]), 1),
        "p95_ratio": round(statistics.median(ratios), 2),
        "searches_per_s": round(sum(map(len, many)) / options.seconds / options.rounds, 1),
        "searches_per_s_one_client": round(
            sum(map(len, one)) / options.seconds / options.rounds, 1
        ),
    }


if __name__ == "__main__":
    raise SystemExit(main())
