"""The sign index's estimate on a GPU: one program a run of keys, the sums stay in registers."""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.kernels.tuning import meta, tuned


@tuned({"BLOCK_K": (64, 128, 256)}, key=["GROUPS", "BLOCK_R"])
@triton.jit
def _estimate(
    tables,
    codes,
    out,
    n_keys,
    n_rows,
    GROUPS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    key = tl.program_id(0).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
    row = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    held = (key < n_keys)[:, None] & (row < n_rows)[None, :]
    total = tl.zeros((BLOCK_K, BLOCK_R), tl.float32)
    for group in range(GROUPS):
        at = head * GROUPS + group
        code = tl.load(codes + at * n_keys + key, mask=key < n_keys, other=0).to(tl.int64)
        found = (at * 256 + code)[:, None] * n_rows + row[None, :]
        total += tl.load(tables + found, mask=held, other=0.0)
    tl.store(out + (head * n_keys + key)[:, None] * n_rows + row[None, :], total, mask=held)


def estimate(tables: Tensor, codes: Tensor) -> Tensor:
    """Return (g, u, r) float32. tables: (g, n, 256, r) float32; codes: (g, n, u) uint8."""
    (g, n_groups, _, r), u = tables.shape, codes.shape[2]
    out = torch.empty((g, u, r), dtype=torch.float32, device=tables.device)
    width = min(16, triton.next_power_of_2(max(1, r)))

    def grid(sizes: dict[str, int]) -> tuple[int, int, int]:
        return triton.cdiv(u, sizes["BLOCK_K"]), g, triton.cdiv(r, width)

    if out.numel():
        _estimate[grid](
            tables.contiguous(), codes.contiguous(), out, u, r,
            GROUPS=n_groups, BLOCK_R=width, **meta(BLOCK_K=16),
        )  # fmt: skip
    return out
