"""Late interaction: score(q, n) = sum_i max_j <q_i, d_j>, i over query and j over document tokens.

Source: ColBERT, arXiv 2004.12832, equation 3; the fused form is that of flash-maxsim.

Documents are ragged and never padded. A document without tokens scores -inf (nothing can match it)
and takes no gradient; a query without tokens scores 0 against every other document.

Bytes moved: t d sizeof(dtype) for the documents, once for every query together, and q n 4 for the
scores. The similarities (t, s) live in a block that stays in the cache. Operations: 2 t s d.

One-bit codes take no multiplications: 8 channels are looked up at once in a table of the sums
that their 256 sign patterns give with a query token, d/8 look-ups a token and query token.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from foveate.kernels import ragged, threads
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# similarities of one block, in numbers: 4 MB of float32, which the last level of cache holds
BLOCK = 1 << 20
# query tokens looked up together in one-bit codes: their table must stay in the second level
TABLE_WIDTH = 32
# rows of codes widened at a time
WIDE = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Ragged documents.

    Attributes:
        tokens: (t, d) float, (t, d) int8, or (t, d / 8) uint8 one-bit codes (set bit: positive,
            most significant first).
        offsets: (n+1,) int64, where each document begins and ends.
        scales: (t,) float32, what the codes of each token are multiplied by; None for floats.
    """

    tokens: Tensor
    offsets: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes and types."""
        coded = self.tokens.dtype in (torch.int8, torch.uint8)
        if self.tokens.ndim != 2 or not (coded or self.tokens.dtype in FLOATS):
            raise ShapeError(
                "expected tokens (t, d) float or int8, or (t, d / 8) uint8, "
                f"got {tuple(self.tokens.shape)} {self.tokens.dtype}"
            )
        if coded != (self.scales is not None):
            raise ShapeError("expected scales (t,) for int8 and one-bit codes, and only for them")
        if self.scales is not None and self.scales.shape != (len(self.tokens),):
            raise ShapeError(f"expected scales ({len(self.tokens)},), got {self.scales.shape}")
        ragged.check_offsets(self.offsets, len(self.tokens))

    @property
    def dim(self) -> int:
        """Channels of a token."""
        return self.tokens.shape[1] * (8 if self.tokens.dtype == torch.uint8 else 1)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.offsets) - 1

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the tokens (t, d) as floats, with their scales."""
        if self.tokens.dtype == torch.uint8:
            shifts = torch.arange(7, -1, -1, device=self.tokens.device, dtype=torch.uint8)
            bits = (self.tokens[:, :, None] >> shifts) & 1
            values = bits.flatten(1).to(dtype) * 2 - 1
        else:
            values = self.tokens.to(dtype)
        return values if self.scales is None else values * self.scales[:, None].to(dtype)


def quantise(tokens: Tensor, offsets: Tensor, kind: str) -> Documents:
    """Return the documents in int8 or one-bit codes.

    int8: scale = max |x| / 127, so each channel errs by at most scale / 2 and a product with a
    query token q by at most scale |q|_1 / 2. onebit: scale = mean |x|, the least squares choice
    for the signs (XNOR-Net, arXiv 1603.05279, equation 6); it keeps the order, not the value.

    Args:
        tokens: (t, d) float; d a multiple of 8 for one-bit codes.
        offsets: (n+1,) int64.
        kind: "int8" or "onebit".

    Raises:
        ShapeError: if the kind is unknown or d is not a multiple of 8.
    """
    values = tokens.float()
    if kind == "int8":
        scales = values.abs().amax(1) / 127
        codes = torch.round(values / scales.clamp(min=1e-30)[:, None]).clamp(-127, 127)
        return Documents(codes.to(torch.int8), offsets, scales)
    if kind != "onebit" or values.shape[1] % 8:
        raise ShapeError(
            f"expected kind 'int8' or 'onebit' (d a multiple of 8), got {kind!r}, "
            f"d {values.shape[1]}"
        )
    weights = 2 ** torch.arange(7, -1, -1, device=values.device)
    bits = (values > 0).view(len(values), values.shape[1] // 8, 8).long()
    return Documents((bits * weights).sum(2).to(torch.uint8), offsets, values.abs().mean(1))


def maxsim(
    queries: Tensor,
    documents: Documents,
    *,
    query_offsets: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Score every query against every document; differentiable where the tokens are floats.

    Args:
        queries: (s, d) float, the tokens of all queries.
        documents: n documents.
        query_offsets: (q+1,) int64, where each query begins and ends; None means one query.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        scores (q, n) float32 (float64 if the queries are), -inf where a document is empty.
    """
    query_offsets = _check(queries, documents, query_offsets)
    chosen = path("maxsim", queries.device, backend).name
    if chosen == "reference":
        return maxsim_reference(queries, documents, query_offsets=query_offsets)
    if torch.is_grad_enabled() and (queries.requires_grad or documents.tokens.requires_grad):
        triton = chosen == "triton"
        return _MaxSim.apply(queries, documents.tokens, documents, query_offsets, triton)  # type: ignore[no-any-return]
    if chosen == "triton":
        from foveate.kernels import maxsim_triton

        return maxsim_triton.score(queries, documents, query_offsets)
    found = queries.new_empty((len(query_offsets) - 1, len(documents)), dtype=_working(queries))
    for begin, end, scores, _ in _scan(queries, documents, query_offsets):
        found[:, begin:end] = scores
    return found


def maxsim_reference(
    queries: Tensor, documents: Documents, *, query_offsets: Tensor | None = None
) -> Tensor:
    """Return the same scores by the formula, in the queries' type; autograd goes through it."""
    query_offsets = _check(queries, documents, query_offsets)
    dense = documents.dense(queries.dtype)
    parts, asked = documents.offsets.tolist(), query_offsets.tolist()
    rows = []
    for q in range(len(asked) - 1):
        tokens = queries[asked[q] : asked[q + 1]]
        scores = [
            (tokens @ dense[a:b].T).amax(1).sum() if b > a else queries.new_tensor(-torch.inf)
            for a, b in pairwise(parts)
        ]
        rows.append(torch.stack(scores) if scores else queries.new_empty(0))
    return torch.stack(rows) if rows else queries.new_empty((0, len(documents)))


def maxsim_topk(
    queries: Tensor,
    documents: Documents,
    k: int,
    *,
    query_offsets: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k best documents of each query; only k scores a query are kept while scanning.

    Args:
        queries: (s, d) float.
        documents: n documents.
        k: how many, at least 1; more than n is allowed.
        query_offsets: (q+1,) int64; None means one query.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        scores (q, k) float32 descending, -inf where there is none; ids (q, k) int64, -1 there.
        Equal scores come in the documents' order.
    """
    if k < 1:
        raise ShapeError(f"expected k of at least 1, got {k}")
    query_offsets = _check(queries, documents, query_offsets)
    n_queries = len(query_offsets) - 1
    best = queries.new_full((n_queries, k), -torch.inf, dtype=_working(queries))
    ids = torch.full((n_queries, k), -1, dtype=torch.int64, device=queries.device)
    chosen = path("maxsim", queries.device, backend).name
    if chosen != "cpu":
        scores = maxsim(queries, documents, query_offsets=query_offsets, backend=chosen)
        return _merge(best, ids, scores, 0)
    for begin, _, scores, _ in _scan(queries, documents, query_offsets):
        best, ids = _merge(best, ids, scores, begin)
    return best, ids


def maxsim_matches(
    queries: Tensor, documents: Documents, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Say which token of each document each query token matched, for explanations.

    Args:
        queries: (s, d) float.
        documents: n documents.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        similarity (s, n) float32, -inf where a document is empty; position (s, n) int64 within
        the document, -1 there. Among equal tokens any one is named.
    """
    _check(queries, documents, None)
    if path("maxsim", queries.device, backend).name == "triton":
        from foveate.kernels import maxsim_triton

        return maxsim_triton.match(queries, documents)
    shape = (len(queries), len(documents))
    values = queries.new_empty(shape, dtype=_working(queries))
    places = torch.empty(shape, dtype=torch.int64, device=queries.device)
    for begin, end, best, where in _scan(queries, documents, None):
        values[:, begin:end] = best.T
        places[:, begin:end] = where.T
    return values, places


def _check(queries: Tensor, documents: Documents, query_offsets: Tensor | None) -> Tensor:
    if queries.ndim != 2 or queries.dtype not in FLOATS or queries.shape[1] != documents.dim:
        raise ShapeError(
            f"expected queries (s, {documents.dim}) float, "
            f"got {tuple(queries.shape)} {queries.dtype}"
        )
    if query_offsets is None:
        return torch.tensor([0, len(queries)], device=queries.device)
    ragged.check_offsets(query_offsets, len(queries), "query_offsets")
    return query_offsets


def _working(queries: Tensor) -> torch.dtype:
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def _merge(best: Tensor, ids: Tensor, scores: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    """Merge the scores (q, b) of documents begin, begin + 1, ... into the best so far."""
    new = torch.arange(begin, begin + scores.shape[1], device=ids.device).expand(scores.shape)
    new = torch.where(scores == -torch.inf, -1, new)
    # stable: what was found earlier has the lower number and wins a tie
    ranked, order = torch.cat([best, scores], 1).sort(dim=1, descending=True, stable=True)
    k = best.shape[1]
    return ranked[:, :k], torch.cat([ids, new], 1).gather(1, order[:, :k])


def _sum_rows(best: Tensor, query_offsets: Tensor, empty: Tensor) -> Tensor:
    """Return (q, b): each query's sum over its tokens of best (b, s), -inf where empty (b,)."""
    n_queries = len(query_offsets) - 1
    if n_queries == 1:
        sums = best.sum(1)[None]
    else:
        sums = best.new_zeros((n_queries, len(best)))
        sums.index_add_(0, ragged.owners(query_offsets), best.T)
    # nor can a query without tokens match an empty document
    return sums.masked_fill_(empty, -torch.inf)


def _scan(queries: Tensor, documents: Documents, query_offsets: Tensor | None) -> Any:
    """Yield (begin, end, scores (q, b), None) for blocks of documents.

    Without query_offsets: (begin, end, best (b, s), positions (b, s)).
    """
    dtype = _working(queries)
    places: list[int] = documents.offsets.tolist()
    detached = queries.detach().to(dtype)
    n_threads = torch.get_num_threads()
    # a buffer for each thread; blocks small enough that all threads end together
    free = [_Similarity(detached, documents)]
    free += [free[0].twin() for _ in range(n_threads - 1)]
    most = BLOCK // max(1, len(queries))
    n_rows = max(256, min(most, places[-1] // (4 * n_threads)))

    def scan(block: tuple[int, int]) -> tuple[int, int, Tensor, Tensor | None]:
        begin, end = block
        low, high = places[begin], places[end]
        similarity = free.pop()
        sims = similarity.block(low, high)
        lengths = [places[i + 1] - places[i] for i in range(begin, end)]
        starts = documents.offsets[begin:end] - low
        best, where = _segment_max(sims, starts, lengths, similarity, query_offsets is None)
        free.append(similarity)
        if query_offsets is not None:
            best = _sum_rows(
                best,
                query_offsets,
                documents.offsets[begin:end].eq(documents.offsets[begin + 1 : end + 1]),
            )
        return begin, end, best, where

    yield from threads.each(scan, ragged.blocks(places, n_rows), device=queries.device)


def _segment_max(
    sims: Tensor, starts: Tensor, lengths: list[int], buffers: _Similarity, positions: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the maximum over each document's rows of sims (rows, s), and where it is."""
    n, width = len(lengths), sims.shape[1]
    longest = max(lengths)
    if longest > 0 and longest == min(lengths) and not positions:
        return sims.view(n, longest, width).amax(1), None
    best = sims.new_full((n, width), -torch.inf)
    where = torch.full((n, width), -1, device=sims.device) if positions else None
    sizes = torch.tensor(lengths, device=sims.device)
    for members, size in ragged.groups(lengths):
        chosen = torch.tensor(members, device=sims.device)
        rows = ragged.padded_rows(starts[chosen], sizes[chosen], size)
        some = buffers.gather(sims, rows.view(-1)).view(len(members), size, width)
        if where is None:
            best.index_copy_(0, chosen, some.amax(1))
        else:
            values, at = some.max(1)
            best.index_copy_(0, chosen, values)
            # a repeated last row counts as the last row
            where.index_copy_(0, chosen, torch.minimum(at, sizes[chosen, None] - 1))
    return best, where


class _Similarity:
    """Products of all query tokens with a run of document tokens, in one buffer used again."""

    def __init__(self, queries: Tensor, documents: Documents) -> None:
        self.queries, self.documents = queries, documents
        self.turned = queries.T.contiguous()
        self.out = self.gathered = queries.new_empty((0, len(queries)))
        self.wide = queries.new_empty((WIDE, documents.dim))
        if documents.tokens.dtype == torch.uint8:
            self.tables = [self._table(q) for q in torch.split(queries, TABLE_WIDTH)]
            n_groups = documents.tokens.shape[1]
            places = torch.arange(n_groups, dtype=torch.int32, device=queries.device)
            self.shift = places * 256

    def twin(self) -> _Similarity:
        """Return one that shares the tables but not the buffers."""
        other = copy.copy(self)
        other.out = other.gathered = self.queries.new_empty((0, len(self.queries)))
        other.wide = torch.empty_like(self.wide)
        return other

    def gather(self, sims: Tensor, rows: Tensor) -> Tensor:
        """Return sims[rows] in a buffer used again: fresh memory costs more than the copy."""
        if len(rows) > len(self.gathered):
            self.gathered = self.queries.new_empty((len(rows), len(self.queries)))
        return torch.index_select(sims, 0, rows, out=self.gathered[: len(rows)])

    def _table(self, queries: Tensor) -> Tensor:
        """Return (d / 8 * 256, s): what each byte of each group gives with each query token."""
        patterns = torch.arange(256, dtype=torch.uint8, device=queries.device)[:, None]
        signs = Documents(patterns, torch.tensor([0, 256]), queries.new_ones(256)).dense(
            queries.dtype
        )
        parts = queries.view(len(queries), -1, 8)
        return torch.einsum("pc,sgc->gps", signs, parts).reshape(-1, len(queries)).contiguous()

    def _decode(self, codes: Tensor, out: Tensor) -> None:
        if codes.dtype != torch.uint8:
            torch.mm(self.wide[: len(codes)].copy_(codes), self.turned, out=out)
            return
        # int32: half the bytes of int64 on the way to the tables
        rows = codes.int() + self.shift
        for table, part in zip(self.tables, torch.split(out, TABLE_WIDTH, 1), strict=True):
            part.copy_(embedding_bag(rows, table, mode="sum"))

    def block(self, low: int, high: int) -> Tensor:
        """Return (high - low, s)."""
        tokens, scales = self.documents.tokens.detach()[low:high], self.documents.scales
        if low == high:
            return self.queries.new_empty((0, len(self.queries)))
        if len(tokens) > len(self.out):
            self.out = self.queries.new_empty((len(tokens), len(self.queries)))
        sims = self.out[: len(tokens)]
        if tokens.dtype == self.queries.dtype:
            torch.mm(tokens, self.turned, out=sims)
        else:
            # a piece at a time, so that what is made of the codes stays in the second level
            for some, out in zip(torch.split(tokens, WIDE), torch.split(sims, WIDE), strict=True):
                self._decode(some, out)
        return sims if scales is None else sims.mul_(scales[low:high, None])


class _MaxSim(torch.autograd.Function):
    """The gradient flows only through the token that won: d q_i = sum_n g_n d_best, and back."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        tokens: Tensor,
        documents: Documents,
        query_offsets: Tensor,
        triton: bool,
    ) -> Tensor:
        backend = "triton" if triton else "cpu"
        values, places = maxsim_matches(queries.detach(), documents, backend=backend)
        rows = torch.where(places < 0, -1, places + documents.offsets[:-1])
        ctx.save_for_backward(queries, tokens, rows, query_offsets)
        ctx.triton = triton
        return _sum_rows(values.T, query_offsets, documents.offsets.diff() == 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, tokens, rows, query_offsets = ctx.saved_tensors
        weights = gradients[0].index_select(0, ragged.owners(query_offsets))  # (s, n)
        weights = torch.where(rows < 0, 0, weights)
        needs_queries, needs_tokens = ctx.needs_input_grad[:2]
        needs_tokens = needs_tokens and tokens.dtype in FLOATS
        if ctx.triton:
            from foveate.kernels import maxsim_triton

            to_queries, to_tokens = maxsim_triton.gradients(queries, tokens, rows, weights)
        else:
            to_queries, to_tokens = _gradients(queries, tokens, rows, weights)
        return (
            to_queries.to(queries.dtype) if needs_queries else None,
            to_tokens.to(tokens.dtype) if needs_tokens else None,
            None,
            None,
            None,
        )


def _gradients(
    queries: Tensor, tokens: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return d queries (s, d) and d tokens (t, d); rows, weights: (s, n)."""
    dtype = _working(queries)
    to_queries = torch.zeros_like(queries, dtype=dtype)
    to_tokens = torch.zeros_like(tokens, dtype=dtype)
    if not len(tokens):
        return to_queries, to_tokens
    for i in range(len(queries)):
        kept, weight = rows[i].clamp(min=0), weights[i].to(dtype)
        to_queries[i] = weight @ tokens.index_select(0, kept).to(dtype)
        to_tokens.index_add_(0, kept, weight[:, None] * queries[i].to(dtype))
    return to_queries, to_tokens
