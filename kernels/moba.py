"""MoBA: each row attends to the blocks of keys that its gate picks, its own block always.

    gate_ib = <q_i, mean of the keys of block b>; the `top` best blocks, the row's own included,
    none after it; one softmax over the keys of the blocks picked, causal inside the row's own.

Source: arXiv 2502.13189. The blocked path never masks what a row did not pick: rows that picked a
block meet its keys together, and the parts are merged by their sums,
o = sum_b o_b exp(s_b - s). With `top` at least the number of blocks it is causal attention.

Operations: 4 h t top S d, and h t (t / S) d for the gates. Gates take no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.kernels import masks, threads
from foveate.kernels.attention import PLAIN_SCORE, Score, attention_with_sums
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError


def moba(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    block: int,
    top: int,
    backend: str | None = None,
) -> Tensor:
    """Attend, causally, to the `top` blocks of each row; differentiable but for the choice.

    Args:
        queries: (h, t, d) float.
        keys: (g, t, d).
        values: (g, t, e).
        block: keys in a block; the last may be shorter.
        top: blocks a row keeps, at least 1.
        backend: see `foveate.kernels.dispatch.path`.

    Returns:
        (h, t, e).
    """
    if block < 1 or top < 1 or keys.shape[1] != queries.shape[1]:
        raise ShapeError(
            f"expected block and top of at least 1 and as many keys as rows, got {block}, {top}, "
            f"{tuple(queries.shape)} and {tuple(keys.shape)}"
        )
    picked = gates(queries.detach(), keys.detach(), block, top)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    reason = "asked for"
    if backend is None and queries.is_cuda and learns:
        backend, reason = "cpu", "the triton kernel has no gradient"
    where = path("moba", queries.device, backend, reason).name
    if where == "reference":
        return moba_reference(queries, keys, values, picked, block)
    if where == "triton":
        from foveate.kernels import moba_triton

        return moba_triton.attend(queries, keys, values, picked, block)
    t, per_key_head = queries.shape[1], len(queries) // len(keys)
    edges = torch.arange(0, t + block, block, device=queries.device).clamp(max=t)
    own = masks.both(masks.causal(t, t).to(edges.device), masks.packed(edges, edges))
    out, sums = attention_with_sums(queries, keys, values, own, op="moba", backend="cpu")

    def merge(head: int) -> Tensor:
        k, v = keys[head // per_key_head], values[head // per_key_head]
        merged, total = out[head], sums[head]
        for b in range(picked.shape[2]):
            # the rows of the block itself have met it
            rows = picked[head, (b + 1) * block :, b].nonzero()[:, 0] + (b + 1) * block
            if len(rows):
                part = slice(b * block, (b + 1) * block)
                found = _part(queries[head, rows], k[part], v[part], PLAIN_SCORE)
                merged, total = _merge(merged, total, rows, *found)
        return merged.to(queries.dtype)

    heads = range(len(queries))
    done = map(merge, heads) if out.requires_grad else threads.each(merge, heads, device=out.device)
    return torch.stack(list(done)) if len(queries) else out


def gates(queries: Tensor, keys: Tensor, block: int, top: int) -> Tensor:
    """Return (h, t, blocks) booleans: the blocks that each row keeps."""
    t = keys.shape[1]
    means = torch.stack([part.mean(1) for part in torch.split(keys, block, 1)], 1)
    means = means.repeat_interleave(len(queries) // len(keys), 0)
    gate = queries @ means.transpose(1, 2)
    own = torch.arange(t, device=keys.device)[:, None] // block
    number = torch.arange(means.shape[1], device=keys.device)
    gate = gate.masked_fill(number > own, -torch.inf).masked_fill(number == own, torch.inf)
    best = gate.topk(min(top, means.shape[1]), dim=2).indices
    return torch.zeros_like(gate, dtype=torch.bool).scatter(2, best, True) & (number <= own)


def moba_reference(
    queries: Tensor, keys: Tensor, values: Tensor, picked: Tensor, block: int
) -> Tensor:
    """Return the same by the whole matrix and a mask."""
    t, per_key_head = queries.shape[1], len(queries) // len(keys)
    keys, values = (x.repeat_interleave(per_key_head, 0) for x in (keys, values))
    visible = picked.repeat_interleave(block, 2)[..., :t] & masks.dense(masks.causal(t, t), t)
    logits = queries @ keys.transpose(1, 2) / queries.shape[2] ** 0.5
    return torch.softmax(logits.masked_fill(~visible, -torch.inf), 2) @ values


def _part(queries: Tensor, keys: Tensor, values: Tensor, score: Score) -> tuple[Tensor, Tensor]:
    logits = score.logits(queries @ keys.T, queries.shape[1], slice(None))
    sums = logits.logsumexp(1)
    return torch.exp(logits - sums[:, None]) @ values, sums


def _merge(
    out: Tensor, sums: Tensor, rows: Tensor, part: Tensor, part_sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge the outputs of some rows over more keys into what they have."""
    before = sums[rows]
    total = torch.logaddexp(before, part_sums.to(before.dtype))
    kept = torch.exp(before - total)[:, None] * out[rows]
    new = kept + torch.exp(part_sums - total)[:, None] * part
    return out.index_copy(0, rows, new.to(out.dtype)), sums.index_copy(0, rows, total)
