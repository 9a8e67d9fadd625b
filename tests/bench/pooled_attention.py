"""Pooling of ragged patches against padding and torch's attention.

python tests/bench/pooled_attention.py --items 500
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels.pooled_attention import pooled_attention


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--items", type=int, default=500)
    options.add_argument("--patches", type=int, default=256)
    options.add_argument("--queries", type=int, default=16)
    options.add_argument("--dim", type=int, default=384)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    n, m, d = chosen.items, chosen.queries, chosen.dim
    lengths = torch.randint(1, chosen.patches + 1, (n,))
    offsets = torch.cat([lengths.new_tensor([0]), lengths.cumsum(0)]).to(chosen.device)
    patches = torch.randn(int(offsets[-1]), d, device=chosen.device)
    q = torch.randn(m, d, device=chosen.device)

    def padded(q: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        parts = list(torch.split(patches, lengths.tolist()))
        stacked = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        shown = torch.arange(stacked.shape[1], device=q.device) < offsets.diff()[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            q.expand(n, m, d), stacked, stacked, attn_mask=shown[:, None]
        )

    gate("pooled_attention", pooled_attention(q, patches, patches, offsets),
         padded(q.double(), patches.double()), 1e-5)  # fmt: skip
    base = "padded, torch's attention"
    report(
        f"{n} items of 1..{chosen.patches} patches, {m} queries, d {d}",
        {
            base: lambda: padded(q, patches),
            "pooled_attention": lambda: pooled_attention(q, patches, patches, offsets),
        },
        base,
        {"pooled_attention": max(4 * len(patches) * m * d / speed,
                                 patches.numel() * 4 / bandwidth)},
        chosen,
    )  # fmt: skip


if __name__ == "__main__":
    main()
