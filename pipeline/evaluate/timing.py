"""Interleaved timing: medians, spread, ratios by round, and a CSV that remembers the machine."""

from __future__ import annotations

import csv
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "foveate",
    "torch",
    "numpy",
    "transformers",
    "sentence-transformers",
    "faiss-cpu",
    "faiss-gpu",
    "tantivy",
    "bm25s",
    "txtai",
    "langchain-core",
    "maxsim-cpu",
    "pylate",
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each round of one contender, in the rounds' order."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def quantile(self, share: float) -> float:
        """Return the seconds below which this share of the rounds lies, interpolated."""
        ordered = sorted(self.seconds)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    @property
    def spread(self) -> tuple[float, float]:
        """The 20th and the 80th percentile."""
        return self.quantile(0.2), self.quantile(0.8)


def interleave(
    contenders: Mapping[str, Callable[[], Any]], *, rounds: int = 7, warmup: int = 1
) -> dict[str, Timing]:
    """Run each contender once a round, in turn, so that all meet the same disturbances.

    The order is reversed every other round. warmup: untimed rounds that go first.
    """
    names = list(contenders)
    for _ in range(warmup):
        for name in names:
            contenders[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            started = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - started)
    return {name: Timing(name, tuple(seconds[name])) for name in names}


def ratio(slow: Timing, fast: Timing) -> tuple[float, float, float]:
    """Return (median, p20, p80) of slow / fast, round by round."""
    pairs = Timing("", tuple(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True)))
    return pairs.median, *pairs.spread


def resident_bytes() -> int:
    """Return the memory this process holds now; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the most memory this process has held; Linux and macOS count differently."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def hardware() -> dict[str, str]:
    """Describe this machine: processor, cores, memory, what the processor multiplies in."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
    }
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        return found
    for line in facts.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            found["processor"] = value.strip()
        elif name.strip() == "flags":
            known = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")
            found["flags"] = " ".join(f for f in known if f in value.split())
            break
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found["memory_gib"] = f"{total / 2**30:.1f}"
    return found


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the version of each package that is installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def append_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV; columns that the file lacks are added, its rows are kept."""
    place = Path(path)
    before: list[dict[str, Any]] = []
    if place.exists():
        with place.open(newline="", encoding="utf-8") as handle:
            before = list(csv.DictReader(handle))
    columns = list(dict.fromkeys(key for row in (*before, *rows) for key in row))
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(place.name + ".part")
    with aside.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns)
        writer.writeheader()
        writer.writerows([*before, *rows])
    aside.replace(place)
