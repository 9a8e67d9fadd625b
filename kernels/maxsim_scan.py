"""The CPU path of maxsim: similarities of a block of tokens, and their maximum in each document.

A block is small enough that its similarities stay in the second level of cache, where a product
of matrices runs at the processor's peak and the maxima cost a tenth of it. Blocks share nothing
and go to threads of their own.

One-bit codes take no multiplications: 8 channels are looked up at once in a table of the sums
that their 256 sign patterns give with a query token, d / 8 look-ups a token and query token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from foveate.kernels import ragged, threads
from foveate.kernels.documents import Documents

# similarities of one block, in numbers: 384 kB of float32
BLOCK = 96 << 10
# of many query tokens: fewer rows would be all overhead
LEAST_ROWS = 1024
# query tokens looked up together in one-bit codes: their table must stay in the second level
TABLE_WIDTH = 32
# rows of codes widened at a time
WIDE = 2048


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
    # a buffer for each thread
    free = [Similarity(detached, documents)]
    free += [free[0].twin() for _ in range(torch.get_num_threads() - 1)]

    def work(block: tuple[int, int]) -> tuple[int, int, Tensor, Tensor | None]:
        begin, end = block
        similarity = free.pop()
        sims = similarity.block(places[begin], places[end])
        edges = [place - places[begin] for place in places[begin : end + 1]]
        best, where = best_positions(sims, edges) if positions else (best_of(sims, edges), None)
        free.append(similarity)
        return begin, end, best if finish is None else finish(best, begin, end), where

    n_rows = max(LEAST_ROWS, BLOCK // max(1, len(queries)))
    yield from threads.each(work, ragged.blocks(places, n_rows), device=queries.device)


def best_of(sims: Tensor, edges: list[int]) -> Tensor:
    """Return (s, b): the maximum of sims (s, rows) between each two edges, -inf where none is."""
    starts, sizes = np.array(edges[:-1]), np.diff(edges)
    n, longest = len(sizes), int(sizes.max())
    if longest and longest == sizes.min():
        return sims.view(len(sims), n, longest).amax(2)
    full = np.flatnonzero(sizes)
    best = sims.new_full((len(sims), n), -torch.inf)
    if len(full) and sims.device.type == "cpu":
        # torch has no maximum of segments that uses vector registers
        found = torch.from_numpy(np.maximum.reduceat(sims.numpy(), starts[full], axis=1))
        best[:, torch.from_numpy(full)] = found
    elif len(full):
        parts = torch.split(sims[:, : edges[-1]], sizes[full].tolist(), 1)
        best[:, torch.from_numpy(full).to(sims.device)] = torch.stack([p.amax(1) for p in parts], 1)
    return best


def best_positions(sims: Tensor, edges: list[int]) -> tuple[Tensor, Tensor]:
    """Return the same maxima (s, b), and where in the document each stands, -1 where none is."""
    shape = (len(sims), len(edges) - 1)
    best = sims.new_full(shape, -torch.inf)
    where = torch.full(shape, -1, dtype=torch.int64, device=sims.device)
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            best[:, number], where[:, number] = sims[:, low:high].max(1)
    return best, where


class Similarity:
    """Products of all query tokens with a run of document tokens, in one buffer used again."""

    def __init__(self, queries: Tensor, documents: Documents) -> None:
        self.queries, self.documents = queries, documents
        self._buffers()
        if documents.tokens.dtype == torch.uint8:
            self.tables = [self._table(q) for q in torch.split(queries, TABLE_WIDTH)]
            n_groups = documents.tokens.shape[1]
            self.shift = torch.arange(n_groups, dtype=torch.int32, device=queries.device) * 256

    def twin(self) -> Similarity:
        """Return one that shares the tables but not the buffers."""
        other = copy.copy(self)
        other._buffers()
        return other

    def _buffers(self) -> None:
        # the threads that write into them are not in the caller's inference mode
        with torch.inference_mode(False):
            self.out = torch.empty(0, dtype=self.queries.dtype, device=self.queries.device)
            self.wide = self.out.new_empty((WIDE, self.documents.dim))

    def _table(self, queries: Tensor) -> Tensor:
        """Return (d / 8 * 256, s): what each byte of each group gives with each query token."""
        patterns = torch.arange(256, dtype=torch.uint8, device=queries.device)[:, None]
        ends = torch.tensor([0, 256], device=queries.device)
        signs = Documents(patterns, ends, queries.new_ones(256)).dense(queries.dtype)
        parts = queries.view(len(queries), -1, 8)
        return torch.einsum("pc,sgc->gps", signs, parts).reshape(-1, len(queries)).contiguous()

    def _decode(self, codes: Tensor, out: Tensor) -> None:
        if codes.dtype != torch.uint8:
            torch.mm(self.queries, self.wide[: len(codes)].copy_(codes).T, out=out)
            return
        # int32: half the bytes of int64 on the way to the tables
        rows = codes.int() + self.shift
        for table, part in zip(self.tables, torch.split(out, TABLE_WIDTH), strict=True):
            part.copy_(embedding_bag(rows, table, mode="sum").T)

    def block(self, low: int, high: int) -> Tensor:
        """Return (s, high - low)."""
        tokens, scales = self.documents.tokens.detach()[low:high], self.documents.scales
        shape = (len(self.queries), high - low)
        if shape[0] * shape[1] > len(self.out):
            with torch.inference_mode(False):
                self.out = torch.empty_like(self.out).new_empty(shape[0] * shape[1])
        sims = self.out[: shape[0] * shape[1]].view(shape)
        if low == high:
            return sims
        if tokens.dtype == self.queries.dtype:
            torch.mm(self.queries, tokens.T, out=sims)
        else:
            # a piece at a time, so that what is made of the codes stays in the second level
            for start in range(0, len(tokens), WIDE):
                piece = tokens[start : start + WIDE]
                out = sims[:, start : start + WIDE]
                self._decode(piece, out)
        return sims if scales is None else sims.mul_(scales[low:high])
