"""One set of compute threads for all CPU text encoders of a process.

Batches are independent, so each thread takes whole batches and runs them on one core: no barrier
between operations, each batch stays in its core's cache, and a core that is busy elsewhere holds
up only its own batch. One batch alone (a query) goes to threads of its own, so that it does not
wait behind a corpus; on two cores it takes as long there as on all cores, and far less when they
are busy.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

_lock = threading.Lock()
_pools: dict[str, ThreadPoolExecutor] = {}
_n_threads: int | None = None
_forked = False


def _count_cores() -> int:
    """Return OMP_NUM_THREADS, else the number of cores this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(n_threads: int | None = None) -> int:
    """Settle the number of compute threads, once for the process, and return it.

    The first caller decides; n_threads=None means OMP_NUM_THREADS, else the cores of this process.
    """
    global _n_threads
    with _lock:
        if _n_threads is None:
            import torch

            _n_threads = n_threads or _count_cores()
            # OpenMP's threads do not survive a fork: more than one in the child would hang
            torch.set_num_threads(1 if _forked else _n_threads)
        return _n_threads


def compute_pool(lane: Literal["corpus", "query"] = "corpus") -> ThreadPoolExecutor:
    """Return the pool of a lane, whose threads each run torch on one core."""
    n_threads = set_threads()
    with _lock:
        if lane not in _pools:
            _pools[lane] = _start(n_threads, f"foveate-{lane}")
        return _pools[lane]


def _start(n_threads: int, name: str) -> ThreadPoolExecutor:
    import torch

    all_up = threading.Barrier(n_threads + 1)

    def settle() -> None:
        # torch keeps this number by thread, but a thread started later inherits the last one set
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)

    pool = ThreadPoolExecutor(n_threads, name, initializer=settle)
    for _ in range(n_threads):
        pool.submit(all_up.wait)
    all_up.wait()
    torch.set_num_threads(1 if _forked else n_threads)
    return pool


def _after_fork() -> None:
    global _pools, _n_threads, _lock, _forked
    _pools, _n_threads, _lock, _forked = {}, None, threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
