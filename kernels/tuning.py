"""Autotuning of Triton kernels on a GPU; fixed small tiles under Triton's interpreter."""
# mypy: disable-error-code="untyped-decorator,no-untyped-call"

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def tuned(tiles: Mapping[str, Sequence[int]], key: list[str]) -> Callable[[Any], Any]:
    """Decorate a kernel: every combination of tiles is timed once for each value of the key."""
    names = list(tiles)
    configs = [
        triton.Config(dict(zip(names, sizes, strict=True)), num_warps=warps, num_stages=2)
        for sizes in itertools.product(*tiles.values())
        for warps in (4, 8)
    ]

    def decorate(kernel: Any) -> Any:
        # the interpreter has no clock of a GPU to tune by
        return kernel if INTERPRETED else triton.autotune(configs, key=key)(kernel)

    return decorate


def meta(**tiles: int) -> dict[str, int]:
    """Return the tiles to launch with: none where they are tuned."""
    return tiles if INTERPRETED else {}
