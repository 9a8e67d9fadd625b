"""Independent pieces of work on threads of their own, each with torch on a single thread.

Torch's own threads meet at a barrier after every operation: with many short operations, one thread
that the system has put aside holds up all. Pieces that share nothing need no barrier; the
operations release Python's lock, so they run side by side.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Found = TypeVar("Found")
_LOCK = threading.Lock()
_POOLS: dict[int, ThreadPoolExecutor] = {}


def each(
    work: Callable[[Piece], Found], pieces: Iterable[Piece], *, device: torch.device
) -> Iterator[Found]:
    """Yield work(piece) in the order of the pieces, on as many threads as torch may use.

    The work must not need a gradient. On a GPU, or with one thread, it is done in place.
    """
    held = list(pieces)
    n = torch.get_num_threads()
    if n == 1 or len(held) < 2 or device.type != "cpu":
        return map(work, held)
    return _pool(n).map(work, held)


def _pool(n: int) -> ThreadPoolExecutor:
    with _LOCK:
        if n not in _POOLS:
            pool = ThreadPoolExecutor(n, "foveate-kernels", initializer=_alone)
            started = threading.Barrier(n + 1)
            for _ in range(n):
                pool.submit(started.wait)
            started.wait()
            # what a thread sets is also what threads begin with: put that back
            torch.set_num_threads(n)
            _POOLS[n] = pool
        return _POOLS[n]


def _alone() -> None:
    # a thread's first question sets its number to the common one, so ask before setting it
    torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


if hasattr(os, "register_at_fork"):
    # threads do not survive a fork
    os.register_at_fork(after_in_child=_POOLS.clear)
