"""Many requests leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import httpx
import pytest

N = 10_000
WARM = 2_000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_memory_is_flat_over_ten_thousand_requests(shared):
    """Searches, answers, places, pictures, refusals; the application itself, without sockets."""
    guard = shared.server.guard
    labels = [
        hit.passage.label
        for hit in shared.server.service.engine.search("lemons red wing loop", k=6)
    ]

    async def one(client: httpx.AsyncClient, n: int) -> None:
        label = labels[n % len(labels)]
        kind = n % 10
        if kind == 0:
            answer = await client.post("/api/ask", json={"text": f"lemons {n}?"})
        elif kind == 1:
            answer = await client.get(f"/api/passages/{label}", params={"q": "lemons"})
        elif kind == 2:
            answer = await client.get(f"/api/passages/{label}/picture?width={100 + n % 50}")
        elif kind == 3:
            answer = await client.post("/api/search", content=b"{")
        elif kind == 4:
            answer = await client.get(f"/api/passages/{n:012x}:0")
        else:
            answer = await client.post("/api/search", json={"text": f"wing number {n}", "k": 3})
        assert answer.status_code < 500 or kind == 2, answer.text

    async def many(low: int, high: int) -> None:
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for start in range(low, high, 4):
                await asyncio.gather(*(one(client, n) for n in range(start, min(start + 4, high))))

    asyncio.run(many(0, WARM))
    gc.collect()
    before = resident_bytes()
    asyncio.run(many(WARM, N))
    gc.collect()
    grown = resident_bytes() - before
    # some allocator noise; a leak of one kilobyte a request would be 8 MB
    assert grown < 6_000_000, f"{grown / 1e6:.1f} MB more after {N - WARM} requests"
