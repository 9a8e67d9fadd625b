"""Products of document tokens with query tokens, each way that a processor is good at.

(n, s) = tokens (n, d) times query tokens (s, d), turned: with the many tokens in the rows a product
of matrices runs faster than with the few query tokens in them.
"""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from foveate.kernels.documents import Documents

# tokens at a time: what is made of them stays in the cache
ROWS = 8192
# query tokens looked up together in one-bit codes: their table must stay in the second level
TABLE_WIDTH = 32
PLANE = 127
PROBES = {
    torch.bfloat16: ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
    torch.int8: ("_is_vnni_supported", "_is_amx_tile_supported"),
}


def products(queries: Tensor, documents: Documents) -> Products:
    """Return the fastest way that this processor has for these tokens.

    queries: (s, d), float32, or float64 where sums in it were asked for.
    """
    dtype = documents.tokens.dtype
    short = queries.dtype == torch.float32 and queries.device.type == "cpu"
    if dtype == queries.dtype:
        return Products(queries)
    if short and documents.scales is not None and multiplies(torch.int8):
        return Planes(queries, documents.dim)
    if short and dtype == torch.bfloat16 and multiplies(dtype):
        return Rounded(queries)
    return Tables(queries) if dtype == torch.uint8 else Widened(queries, documents.dim)


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Return whether the processor multiplies bfloat16 or int8 natively."""
    return any(getattr(torch.cpu, probe, bool)() for probe in PROBES[dtype])


class Products:
    """Tokens in the queries' own type."""

    def __init__(self, queries: Tensor) -> None:
        self.turned = queries.T.contiguous()

    def twin(self) -> Products:
        """Return one for another thread, which shares nothing that is written."""
        other = copy.copy(self)
        # the threads that write into buffers are not in the caller's inference mode
        with torch.inference_mode(False):
            other.buffers()
        return other

    def buffers(self) -> None:
        """Make what is written."""

    def into(self, tokens: Tensor, out: Tensor) -> None:
        """Write the products of at most ROWS tokens."""
        torch.mm(tokens, self.turned, out=out)


class Widened(Products):
    """Tokens of a shorter type, widened to the queries'."""

    def __init__(self, queries: Tensor, dim: int) -> None:
        super().__init__(queries)
        self._dim = dim

    def buffers(self) -> None:
        self._wide = self.turned.new_empty((ROWS, self._dim))

    def into(self, tokens: Tensor, out: Tensor) -> None:
        torch.mm(self._wide[: len(tokens)].copy_(tokens), self.turned, out=out)


class Rounded(Products):
    """Tokens and queries in bfloat16: sums in float32, rounded once, by at most 2^-9."""

    def __init__(self, queries: Tensor) -> None:
        super().__init__(queries.bfloat16())

    def buffers(self) -> None:
        self._sums = self.turned.new_empty((ROWS, self.turned.shape[1]))

    def into(self, tokens: Tensor, out: Tensor) -> None:
        out.copy_(torch.mm(tokens, self.turned, out=self._sums[: len(tokens)]))


class Planes(Products):
    """Codes in int8, and a query token as the sum of two int8 planes.

    q = f (a + b / 254), f = max |q| / 127, so that q errs by at most f / 508 in each channel: 1/254
    of what an int8 code of its own would.
    """

    def __init__(self, queries: Tensor, dim: int) -> None:
        factors = (
            queries.abs().amax(1, keepdim=True) / PLANE
            if dim
            else queries.new_ones(len(queries), 1)
        )
        scaled = queries / torch.where(factors > 0, factors, 1.0)
        first = scaled.round()
        second = ((scaled - first) * (2 * PLANE)).round()
        planes = torch.cat([first, second]).clamp_(-PLANE, PLANE).to(torch.int8)
        super().__init__(planes)
        self._factors = factors[:, 0]
        self._dim = dim

    def buffers(self) -> None:
        shape = (ROWS, self.turned.shape[1])
        self._sums = torch.empty(shape, dtype=torch.int32)
        self._wide = torch.empty(shape)

    def into(self, tokens: Tensor, out: Tensor) -> None:
        n, s = out.shape
        if tokens.dtype == torch.uint8:
            bits = np.unpackbits(tokens.numpy(), axis=1)
            tokens = torch.from_numpy(bits.view(np.int8)).mul_(2).sub_(1)
        torch._int_mm(tokens, self.turned, out=self._sums[:n])
        wide = self._wide[:n].copy_(self._sums[:n])
        torch.add(wide[:, :s], wide[:, s:], alpha=0.5 / PLANE, out=out).mul_(self._factors)


class Tables(Products):
    """One-bit codes without multiplications, for processors that multiply no int8.

    8 channels are looked up at once in a table of the sums that their 256 sign patterns give with
    a query token: d / 8 look-ups a token and query token.
    """

    def __init__(self, queries: Tensor) -> None:
        super().__init__(queries)
        self._tables = [table(q) for q in torch.split(queries, TABLE_WIDTH)]
        n_groups = queries.shape[1] // 8
        self._shift = torch.arange(n_groups, dtype=torch.int32, device=queries.device) * 256

    def into(self, tokens: Tensor, out: Tensor) -> None:
        # int32: half the bytes of int64 on the way to the tables
        rows = tokens.int() + self._shift
        for found, part in zip(self._tables, torch.split(out, TABLE_WIDTH, dim=1), strict=True):
            part.copy_(embedding_bag(rows, found, mode="sum"))


def table(queries: Tensor) -> Tensor:
    """Return (d / 8 * 256, s): what each byte of each group gives with each query token."""
    patterns = torch.arange(256, dtype=torch.uint8, device=queries.device)[:, None]
    ends = torch.tensor([0, 256], device=queries.device)
    signs = Documents(patterns, ends, queries.new_ones(256)).dense(queries.dtype)
    parts = queries.view(len(queries), -1, 8)
    return torch.einsum("pc,sgc->gps", signs, parts).reshape(-1, len(queries)).contiguous()
