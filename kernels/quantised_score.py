"""Causal attention that skips blocks of keys whose 4-bit estimate says they hardly count.

For a block of rows the first keys (sink) and the nearest are scored exactly: row maximum m, row
sum l. A block between them is kept if any row's estimate S has exp(S - m) / l >= tau, that is
S >= m + ln(tau l). The kept blocks are then attended to exactly, with those two.

Source: SALE, arXiv 2505.24179, section 3 (its equation 4 prints ln(tau l + m)). Codes are
symmetric, -7..7, a scale for each row of q and k: a product errs by at most
(s_q |k|_1 + s_k |q|_1) / 2 + d s_q s_k / 4. What is dropped changes the output by at most its
weight times the spread of the values; tau = 0 drops nothing.

The products of codes are whole numbers, exact in float32; a processor with int8 products would
gain more. Operations saved: the exponentials and the values of what is dropped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.kernels import masks
from foveate.kernels.attention import attention_reference
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError


def quantised_score(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    tau: float = 0.004,
    block: int = 64,
    sink: int = 64,
    local: int = 128,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend causally to the blocks that count.

    Args:
        queries: (h, t, d) float.
        keys: (g, t, d).
        values: (g, t, e).
        tau: the least share of the sink's and neighbours' weight for which a block is kept.
        block: rows and keys of a block.
        sink: first keys that every row sees.
        local: keys before a block of rows that it sees.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        out (h, t, e); kept () float32, the share of the blocks in between that were attended to.
    """
    if tau < 0 or block < 1 or sink < 0 or local < 0 or keys.shape[1] != queries.shape[1]:
        raise ShapeError("expected tau, sink, local >= 0, block >= 1 and as many keys as rows")
    t, per_key_head = queries.shape[1], len(queries) // len(keys)
    where = path("quantised_score", queries.device, backend).name
    if where == "reference":
        return attention_reference(queries, keys, values, masks.causal(t, t))[0], torch.ones(())
    out = torch.empty((len(queries), t, values.shape[2]), dtype=queries.dtype)
    out = out.to(queries.device)
    kept = seen = 0
    coded = [four_bits(k) for k in keys]
    if where == "triton":
        from foveate.kernels import quantised_score_triton

        asked, stored = (_stacked(x) for x in ([four_bits(q) for q in queries], coded))
        out, kept = quantised_score_triton.attend(
            queries, keys, values, asked, stored, tau=tau, block=block, sink=sink, local=local
        )
        seen = len(queries) * sum(
            (_between(low, block, sink, local)[1] - _between(low, block, sink, local)[0]) // block
            for low in range(0, t, block)
        )
        return out, torch.tensor(kept / seen if seen else 1.0)
    for head in range(len(queries)):
        k, v = keys[head // per_key_head], values[head // per_key_head]
        for low in range(0, t, block):
            rows = slice(low, min(low + block, t))
            begin, end = _between(low, block, sink, local)
            out[head, rows], n = _rows(
                queries[head, rows], k, v, coded[head // per_key_head],
                low, begin, end, block, tau,
            )  # fmt: skip
            kept, seen = kept + n, seen + (end - begin) // block
    return out, torch.tensor(kept / seen if seen else 1.0)


def _between(low: int, block: int, sink: int, local: int) -> tuple[int, int]:
    """Return the run in between, in whole blocks: after the sink and before the local keys."""
    begin = min(-(-sink // block) * block, low)
    return begin, max(begin, (max(low - local, 0)) // block * block)


def _stacked(coded: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    codes, scales = zip(*coded, strict=True)
    return torch.stack(codes), torch.stack(scales)


def four_bits(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes (t, d), whole numbers -7..7 as float32, and scales (t, 1)."""
    scales = rows.float().abs().amax(1, keepdim=True) / 7
    return torch.round(rows.float() / scales.clamp(min=1e-30)).clamp(-7, 7), scales


def _rows(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    coded: tuple[Tensor, Tensor],
    low: int,
    begin: int,
    end: int,
    block: int,
    tau: float,
) -> tuple[Tensor, int]:
    """Return the output of a block of rows and how many blocks of [begin, end) it kept."""
    scale = queries.shape[1] ** -0.5
    high = low + len(queries)
    device = keys.device
    near = torch.cat([torch.arange(begin, device=device), torch.arange(end, high, device=device)])
    row = torch.arange(low, high, device=device)
    exact = (queries @ keys[near].T * scale).masked_fill(near > row[:, None], -torch.inf)
    n_blocks = (end - begin) // block
    at = near
    kept = 0
    if n_blocks:
        codes, scales = four_bits(queries)
        products = codes @ coded[0][begin:end].T * (scales * coded[1][begin:end].T * scale)
        # m + ln(l) is the logarithm of the sum
        least = exact.logsumexp(1, keepdim=True) + (math.log(tau) if tau > 0 else -math.inf)
        counts = (products >= least).view(len(queries), n_blocks, block).any(2).any(0)
        kept = int(counts.sum())
        between = torch.arange(begin, end, device=device).view(n_blocks, block)[counts].view(-1)
        at = torch.cat([near, between])
        exact = torch.cat([exact, queries @ keys[between].T * scale], 1)
    return exact.softmax(1) @ values[at], kept
