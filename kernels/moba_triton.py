"""MoBA on a GPU: a tile of rows meets only the blocks of keys that one of its rows picked."""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels import online_triton as online
from foveate.kernels.tuning import INTERPRETED, meta, tuned


@tuned({"BLOCK_R": (16, 64, 128), "BLOCK_K": (32, 64)}, key=["D", "E", "SIZE"])
@triton.jit
def _forward(
    queries,
    keys,
    values,
    picked,
    out,
    n_rows,
    n_blocks,
    per_key_head,
    scale,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    held = row < n_rows
    place, key_base = head * n_rows + row, (head // per_key_head) * n_rows
    q = online.rows_of(queries, place, held, D, BLOCK_D, WIDEN)
    top, total, acc = online.begin(BLOCK_R, BLOCK_E, False)
    # no row looks past its own block
    last = tl.minimum(n_blocks, (tl.program_id(0) + 1) * BLOCK_R // SIZE + 1)
    for block in range(0, last):
        pick = tl.load(picked + place * n_blocks + block, mask=held, other=0)
        if tl.max(pick.to(tl.int32), 0) > 0:
            for at in range(block * SIZE, (block + 1) * SIZE, BLOCK_K):
                key = at + tl.arange(0, BLOCK_K)
                inside = (key < n_rows) & (key < (block + 1) * SIZE)
                k = online.rows_of(keys, key_base + key, inside, D, BLOCK_D, WIDEN).to(q.dtype)
                logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
                visible = (pick > 0)[:, None] & inside[None, :] & (key[None, :] <= row[:, None])
                logits = tl.where(visible, logits, float("-inf"))
                v = online.rows_of(values, key_base + key, inside, E, BLOCK_E, WIDEN)
                top, total, acc = online.see(top, total, acc, logits, v)
    online.put(out, place, held, total, acc, E, BLOCK_E)


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
