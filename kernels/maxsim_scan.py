"""The CPU path of maxsim: similarities of a block of tokens, and their maximum in each document.

A block is small enough that its similarities stay in the last level of cache, and large enough that
the threads, which take turns at Python, spend their time in products. Blocks share nothing and go
to threads of their own. How products are made: `maxsim_products`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from foveate.kernels import ragged, threads
from foveate.kernels.documents import Documents
from foveate.kernels.maxsim_products import ROWS, Products, products

# similarities of one block, in numbers: 2 MB of float32
BLOCK = 512 << 10
# of many query tokens: fewer rows would be all overhead
LEAST_ROWS = 1024


def working(queries: Tensor) -> torch.dtype:
    """Return the type that sums are in."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def scan(
    queries: Tensor,
    documents: Documents,
    *,
    positions: bool = False,
    finish: Callable[[Tensor, int, int], Tensor] | None = None,
) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
    """Yield (begin, end, best (s, b), positions (s, b) or None) for blocks of documents.

    best: each query token's best similarity in each document, -inf where it is empty; positions:
    of the first token that gives it, within the document, -1 there. finish(best, begin, end) is
    done on the block's own thread, and yielded in the place of best.
    """
    places: list[int] = documents.offsets.tolist()
    detached = queries.detach().to(working(queries))
    made = products(detached, documents)
    # a buffer for each thread
    free = [Block(detached, documents, made.twin()) for _ in range(torch.get_num_threads())]

    def work(piece: tuple[int, int]) -> tuple[int, int, Tensor, Tensor | None]:
        begin, end = piece
        block = free.pop()
        sims = block.similarities(places[begin], places[end])
        edges = [place - places[begin] for place in places[begin : end + 1]]
        best, where = best_positions(sims, edges) if positions else (best_of(sims, edges), None)
        free.append(block)
        return begin, end, best if finish is None else finish(best, begin, end), where

    n_rows = max(LEAST_ROWS, BLOCK // max(1, len(queries)))
    yield from threads.each(work, ragged.blocks(places, n_rows), device=queries.device)


def best_of(sims: Tensor, edges: list[int]) -> Tensor:
    """Return (s, b): the maximum of sims (rows, s) between each two edges, -inf where none is."""
    starts, sizes = np.array(edges[:-1]), np.diff(edges)
    n, longest = len(sizes), int(sizes.max())
    if longest and longest == sizes.min():
        return sims.view(n, longest, sims.shape[1]).amax(1).T
    full = np.flatnonzero(sizes)
    best = sims.new_full((n, sims.shape[1]), -torch.inf)
    if len(full) and sims.device.type == "cpu":
        # torch has no maximum of segments that uses vector registers
        found = torch.from_numpy(np.maximum.reduceat(sims.numpy(), starts[full], axis=0))
        best[torch.from_numpy(full)] = found
    elif len(full):
        parts = torch.split(sims[: edges[-1]], sizes[full].tolist())
        best[torch.from_numpy(full).to(sims.device)] = torch.stack([p.amax(0) for p in parts])
    return best.T


def best_positions(sims: Tensor, edges: list[int]) -> tuple[Tensor, Tensor]:
    """Return the same maxima (s, b), and where in the document each stands, -1 where none is."""
    shape = (sims.shape[1], len(edges) - 1)
    best = sims.new_full(shape, -torch.inf)
    where = torch.full(shape, -1, dtype=torch.int64, device=sims.device)
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            best[:, number], where[:, number] = sims[low:high].max(0)
    return best, where


class Block:
    """The similarities of a run of document tokens, in one buffer used again."""

    def __init__(self, queries: Tensor, documents: Documents, made: Products) -> None:
        self._documents, self._products = documents, made
        self._width = len(queries)
        with torch.inference_mode(False):
            self._out = torch.empty(0, dtype=queries.dtype, device=queries.device)

    def similarities(self, low: int, high: int) -> Tensor:
        """Return (high - low, s)."""
        tokens, scales = self._documents.tokens.detach()[low:high], self._documents.scales
        size = (high - low) * self._width
        if size > len(self._out):
            with torch.inference_mode(False):
                self._out = torch.empty_like(self._out).new_empty(size)
        sims = self._out[:size].view(high - low, self._width)
        if size:
            for start in range(0, len(tokens), ROWS):
                stop = start + ROWS
                self._products.into(tokens[start:stop], sims[start:stop])
        return sims if scales is None else sims.mul_(scales[low:high, None])
