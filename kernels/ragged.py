"""Ragged sequences: flat rows and the offsets at which each sequence begins and ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from foveate.pipeline.errors import ShapeError


def check_offsets(offsets: Tensor, n_rows: int, name: str = "offsets") -> list[int]:
    """Return the offsets as a list, or raise ShapeError: (n+1,) int64, 0 to n_rows, rising."""
    if offsets.ndim != 1 or offsets.dtype != torch.int64 or len(offsets) == 0:
        raise ShapeError(
            f"expected {name} (n+1,) int64, got {tuple(offsets.shape)} {offsets.dtype}"
        )
    places: list[int] = offsets.tolist()
    if places[0] != 0 or places[-1] != n_rows or any(a > b for a, b in pairwise(places)):
        raise ShapeError(f"expected {name} that rise from 0 to {n_rows}, got {places[:5]}...")
    return places


def owners(offsets: Tensor) -> Tensor:
    """Return (n_rows,) int64: the sequence that each row is of."""
    n = len(offsets) - 1
    return torch.repeat_interleave(torch.arange(n, device=offsets.device), offsets.diff())


def blocks(places: list[int], n_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) runs of sequences that hold about n_rows rows, one at the least."""
    begin, n = 0, len(places) - 1
    while begin < n:
        end = max(begin + 1, bisect_right(places, places[begin] + n_rows) - 1)
        yield begin, min(end, n)
        begin = end


def groups(lengths: list[int], waste: float = 1.25) -> Iterator[tuple[list[int], int]]:
    """Yield (sequences, longest) of alike length, so that padding costs at most `waste`.

    Empty sequences are in no group.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ranked = [lengths[i] for i in order]
    at = bisect_right(ranked, 0)
    while at < len(order):
        end = bisect_right(ranked, int(ranked[at] * waste) + 1)
        yield order[at:end], ranked[end - 1]
        at = end


def padded_rows(starts: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Return (g, longest) int64 row numbers; a sequence that ends early repeats its last row."""
    steps = torch.arange(longest, device=starts.device)
    return starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)
