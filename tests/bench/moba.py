"""Gated blocks of keys against full causal attention.

python tests/bench/moba.py --tokens 4096 --block 256 --top 3
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels import masks
from foveate.kernels.attention import attention
from foveate.kernels.moba import gates, moba, moba_reference


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--dim", type=int, default=64)
    options.add_argument("--block", type=int, default=256)
    options.add_argument("--top", type=int, default=3)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    h, t, d = chosen.heads, chosen.tokens, chosen.dim
    block, top = chosen.block, chosen.top
    q, k, v = (torch.randn(h, t, d, device=chosen.device) for _ in range(3))
    few = [x[:1, : min(t, 1024)] for x in (q, k, v)]
    picked = gates(few[0], few[1], block, top)
    want = moba_reference(*(x.double() for x in few), picked, block)
    gate("moba", moba(*few, block=block, top=top), want, 1e-5)
    causal = masks.causal(t, t).to(chosen.device)
    base = "causal attention"
    pairs = h * t * (block / 2 + (top - 1) * block)
    report(
        f"{h} heads, {t} tokens, {top} blocks of {block}",
        {
            base: lambda: attention(q, k, v, causal),
            "moba": lambda: moba(q, k, v, block=block, top=top),
        },
        base,
        {base: 2 * h * t * t * d / speed,
         "moba": max(4 * pairs * d / speed, 3 * k.numel() * 4 / bandwidth)},
        chosen,
    )  # fmt: skip


if __name__ == "__main__":
    main()
