"""Masks as intervals: which keys each query row sees, at most a few runs of them.

A mask is (t, j, 2) int64: row i sees the keys [begin, end) of each of its j runs, which do not
overlap; begin == end is an empty run. Full, causal, windowed, packed and BlockRank masks are of
this form, their intersections too, so every backend that reads intervals has them all. Memory is
O(t), never O(t u).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from foveate.kernels import ragged
from foveate.pipeline.errors import ShapeError


def full(n_rows: int, n_keys: int) -> Tensor:
    """Every row sees every key."""
    return torch.tensor([0, n_keys]).expand(n_rows, 1, 2)


def causal(n_rows: int, n_keys: int) -> Tensor:
    """Row i sees the keys up to its own; the last row is at the last key."""
    ends = torch.arange(1, n_rows + 1) + (n_keys - n_rows)
    return torch.stack([torch.zeros_like(ends), ends.clamp(min=0)], 1)[:, None]


def window(n_rows: int, before: int, after: int) -> Tensor:
    """Row i sees the keys i - before .. i + after of its own sequence."""
    rows = torch.arange(n_rows)
    begins, ends = (rows - before).clamp(min=0), (rows + after + 1).clamp(max=n_rows)
    return torch.stack([begins, torch.maximum(begins, ends)], 1)[:, None]


def packed(row_offsets: Tensor, key_offsets: Tensor) -> Tensor:
    """Rows see the keys of the sequence of the same number, and of no other.

    Args:
        row_offsets: (n+1,) int64.
        key_offsets: (n+1,) int64; the same tensor for self-attention.
    """
    own = ragged.owners(row_offsets)
    return torch.stack([key_offsets[own], key_offsets[own + 1]], 1)[:, None]


def block_rank(offsets: Tensor) -> Tensor:
    """BlockRank's mask (arXiv 2510.05396): a prefix, blocks blind to each other, a last block.

    The first sequence is the prefix and causal; every block sees the prefix and itself, causally;
    the last block sees all, causally.

    Args:
        offsets: (n+1,) int64: prefix, n-2 blocks, last block; at least the prefix.
    """
    if len(offsets) < 2:
        raise ShapeError("expected offsets of a prefix, blocks and a last block, got none")
    own = ragged.owners(offsets)
    n_rows, last = len(own), len(offsets) - 2
    ends = torch.arange(1, n_rows + 1, device=offsets.device)
    in_block = (own > 0) & (own < last)
    # prefix and last block see one causal run from the start on
    begins = torch.where(in_block, offsets[own], torch.zeros_like(own))
    prefix_end = torch.where(in_block, offsets[1], torch.zeros_like(own))
    prefix = torch.stack([torch.zeros_like(own), prefix_end], 1)
    return torch.stack([prefix, torch.stack([begins, ends], 1)], 1)


def both(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection of two masks."""
    begins = torch.maximum(a[:, :, None, 0], b[:, None, :, 0]).flatten(1)
    ends = torch.minimum(a[:, :, None, 1], b[:, None, :, 1]).flatten(1)
    return torch.stack([begins, torch.maximum(begins, ends)], 2)


def dense(mask: Tensor, n_keys: int) -> Tensor:
    """Return the mask as (t, n_keys) booleans."""
    keys = torch.arange(n_keys, device=mask.device)
    runs = (keys >= mask[:, :, None, 0]) & (keys < mask[:, :, None, 1])
    return runs.any(1)


def tiles(mask: Tensor, n_rows: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Cut the rows into tiles and say which runs of keys each tile needs.

    A tile ends after n_rows rows, or where a run begins more than one key from where it began in
    the row before: at the border of a document, so that no tile sees two.

    Returns:
        (first row, last row + 1, runs of keys, merged and in order) of each tile.
    """
    if not len(mask):
        return []
    jumps = ((mask[1:, :, 0] - mask[:-1, :, 0]).abs() > 1).any(1).nonzero()[:, 0] + 1
    edges = sorted({0, len(mask), *jumps.tolist()})
    cuts = [p for a, b in pairwise(edges) for p in range(a, b, n_rows)]
    found = []
    for low, high in zip(cuts, [*cuts[1:], len(mask)], strict=True):
        part = mask[low:high]
        shown = part[..., 0] < part[..., 1]
        begins = torch.where(shown, part[..., 0], torch.iinfo(torch.int64).max).amin(0).tolist()
        ends = torch.where(shown, part[..., 1], 0).amax(0).tolist()
        found.append((low, high, _merge(begins, ends)))
    return found


def _merge(begins: list[int], ends: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for begin, end in sorted(zip(begins, ends, strict=True)):
        if begin >= end:
            continue
        if runs and begin <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((begin, end))
    return runs
