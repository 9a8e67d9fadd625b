"""MoBA on a GPU: a tile of rows meets only the blocks of keys that one of its rows picked."""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,operator,misc"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import INTERPRETED, meta, tuned


@tuned({"BLOCK_R": (16, 64, 128), "BLOCK_K": (32, 64)}, key=["D", "E", "SIZE"])
@triton.jit
def _forward(
    queries: Any,
    keys: Any,
    values: Any,
    picked: Any,
    out: Any,
    n_rows: Any,
    n_blocks: Any,
    per_key_head: Any,
    scale: Any,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    held = row < n_rows
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    key_base = (head // per_key_head) * n_rows
    q = tl.load(
        queries + (head * n_rows + row)[:, None] * D + d[None, :],
        mask=held[:, None] & (d < D)[None, :],
        other=0.0,
    )
    if WIDEN:
        q = q.to(tl.float32)
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    # no row looks past its own block
    last = tl.minimum(n_blocks, (tl.program_id(0) + 1) * BLOCK_R // SIZE + 1)
    for block in range(0, last):
        pick = tl.load(picked + (head * n_rows + row) * n_blocks + block, mask=held, other=0)
        if tl.max(pick.to(tl.int32), 0) > 0:
            for at in range(block * SIZE, (block + 1) * SIZE, BLOCK_K):
                key = at + tl.arange(0, BLOCK_K)
                inside = (key < n_rows) & (key < (block + 1) * SIZE)
                k = tl.load(
                    keys + (key_base + key)[:, None] * D + d[None, :],
                    mask=inside[:, None] & (d < D)[None, :],
                    other=0.0,
                ).to(q.dtype)
                logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
                visible = (pick > 0)[:, None] & inside[None, :] & (key[None, :] <= row[:, None])
                logits = tl.where(visible, logits * 1.4426950408889634, float("-inf"))
                now = tl.maximum(top, tl.max(logits, 1))
                shift = tl.where(now == float("-inf"), 0.0, now)
                weights = tl.exp2(logits - shift[:, None])
                shrink = tl.exp2(top - shift)
                total = total * shrink + tl.sum(weights, 1)
                v = tl.load(
                    values + (key_base + key)[:, None] * E + e[None, :],
                    mask=inside[:, None] & (e < E)[None, :],
                    other=0.0,
                )
                if WIDEN:
                    v = v.to(tl.float32)
                acc = acc * shrink[:, None]
                acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
                top = now
    divisor = tl.where(total > 0, total, 1.0)
    tl.store(
        out + (head * n_rows + row)[:, None] * E + e[None, :],
        acc / divisor[:, None],
        mask=held[:, None] & (e < E)[None, :],
    )


def attend(queries: Tensor, keys: Tensor, values: Tensor, picked: Tensor, block: int) -> Tensor:
    """Return (h, t, e). picked: (h, t, blocks) booleans, the blocks of `block` keys of each row."""
    (h, t, d), (g, _, e) = queries.shape, values.shape
    out = torch.empty((h, t, e), dtype=queries.dtype, device=queries.device)

    def grid(sizes: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(t, sizes["BLOCK_R"]), h

    if out.numel():
        _forward[grid](
            queries.contiguous(), keys.contiguous(), values.contiguous(),
            picked.to(torch.int8).contiguous(), out, t, picked.shape[2], h // g, d**-0.5,
            SIZE=block, D=d, E=e,
            # the interpreter's dot knows no bfloat16
            WIDEN=INTERPRETED,
            BLOCK_D=max(16, triton.next_power_of_2(d)),
            BLOCK_E=max(16, triton.next_power_of_2(e)),
            **meta(BLOCK_R=16, BLOCK_K=16),
        )  # fmt: skip
    return out
