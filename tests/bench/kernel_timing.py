"""What the benchmarks of kernels share: peaks of this machine, and a table of ratios."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from foveate.pipeline.evaluate.timing import append_csv, hardware, interleave, ratio, versions


def arguments(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--csv", type=Path)
    return options


def peaks(device: str, rounds: int = 5) -> tuple[float, float]:
    """Return measured (bytes per second read, fp32 operations per second)."""
    big = torch.randn(48 << 20, device=device)
    square = torch.randn(1024, 1024, device=device)
    calls = {"read": lambda: big.sum(), "multiply": lambda: square @ square}
    waited = {name: synchronised(call, device) for name, call in calls.items()}
    found = interleave(waited, rounds=rounds, warmup=2)
    return (
        big.numel() * 4 / min(found["read"].seconds),
        2 * 1024**3 / min(found["multiply"].seconds),
    )


def speed_of(kind: str, device: str, rounds: int = 5) -> float:
    """Return measured operations per second of products in 'bf16' or 'int8'."""
    if kind == "bf16":
        square = torch.randn(1024, 1024, device=device).bfloat16()
        found = interleave({kind: synchronised(lambda: square @ square, device)}, rounds=rounds)
    else:
        codes = torch.randint(-127, 128, (1024, 1024), dtype=torch.int8, device=device)
        multiply = synchronised(lambda: torch._int_mm(codes, codes), device)
        found = interleave({kind: multiply}, rounds=rounds)
    return 2 * 1024**3 / min(found[kind].seconds)


def synchronised(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Wait for the GPU, if there is one, before the clock is read."""

    def run() -> Any:
        result = call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return result

    return run


def gate(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    """Stop unless RMS(error) / RMS(wanted) is below the tolerance."""
    got, want = got.double().cpu(), want.double().cpu()
    error = float(((got - want).pow(2).mean() / want.pow(2).mean()).sqrt())
    if not error <= tolerance:
        raise SystemExit(f"{name}: RMS error {error:.2e} is above {tolerance:.0e}")
    print(f"correct: {name:32} RMS error {error:.1e} (at most {tolerance:.0e})", flush=True)


def report(
    title: str,
    contenders: Mapping[str, Callable[[], Any]],
    base: str,
    floors: Mapping[str, float],
    chosen: argparse.Namespace,
) -> None:
    """Time the contenders in turn; print medians, the ratio base / contender, and x the floor."""
    calls = {name: synchronised(call, chosen.device) for name, call in contenders.items()}
    found = interleave(calls, rounds=chosen.rounds)
    print(f"\n{title}  ({chosen.device}, {chosen.threads} threads, {chosen.rounds} rounds)")
    print(f"{'':34}{'p20':>9}{'p50':>9}{'p80':>9} ms {base[:18] + ' / it':>24}{'x floor':>9}")
    rows = []
    for name, timing in found.items():
        low, high = (1e3 * t for t in timing.spread)
        times, slow, fast = ratio(found[base], timing)
        above = timing.median / floors[name] if name in floors else float("nan")
        print(
            f"{name:34}{low:9.2f}{1e3 * timing.median:9.2f}{high:9.2f}    "
            f"{times:8.2f} ({slow:.2f}-{fast:.2f}){above:9.2f}", flush=True)  # fmt: skip
        rows.append({"title": title, "name": name, "p50_ms": 1e3 * timing.median,
                     "ratio": times, "x_floor": above, **hardware(), **versions()})  # fmt: skip
    if chosen.csv:
        append_csv(chosen.csv, rows)


def start(chosen: argparse.Namespace) -> tuple[float, float]:
    """Set the threads, print the machine and its peaks, and return the peaks."""
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    facts = hardware() | versions(("torch", "triton"))
    print(", ".join(f"{k} {v}" for k, v in facts.items()))
    bandwidth, speed = peaks(chosen.device)
    print(f"measured: read {bandwidth / 1e9:.1f} GB/s, fp32 {speed / 1e9:.0f} GFLOP/s")
    if not chosen.device.startswith("cuda"):
        print("no GPU: the triton paths are not timed, the interpreter's tests prove them")
    return bandwidth, speed
