"""Local attention over packed documents against torch's with the explicit mask.

python tests/bench/window_attention.py --tokens 4096 --reach 20
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels import masks
from foveate.kernels.window_attention import window_attention


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--heads", type=int, default=8)
    options.add_argument("--dim", type=int, default=64)
    options.add_argument("--reach", type=int, default=20)
    chosen = options.parse_args()
    _, speed = start(chosen)
    h, t, d, reach = chosen.heads, chosen.tokens, chosen.dim, chosen.reach
    q, k, v = (torch.randn(h, t, d, device=chosen.device) for _ in range(3))
    cuts = torch.randperm(t - 1)[: t // 512].sort().values + 1
    offsets = torch.cat([cuts.new_tensor([0]), cuts, cuts.new_tensor([t])]).to(chosen.device)
    near = masks.window(t, reach, reach).to(chosen.device)
    mask = masks.both(near, masks.packed(offsets, offsets))
    dense = masks.dense(mask, t)

    def explicit(*x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            *(y[None] for y in x), attn_mask=dense
        )[0]

    def windows() -> torch.Tensor:
        return window_attention(q, k, v, offsets, before=reach, after=reach)

    want = explicit(q.double(), k.double(), v.double())
    gate("window_attention", windows(), want, 1e-5)
    base = "torch, explicit mask"
    pairs = int(dense.sum()) * h
    report(
        f"{h} heads, {t} tokens in {len(offsets) - 1} documents, reach {reach}",
        {base: lambda: explicit(q, k, v), "window_attention": windows},
        base,
        {"window_attention": 4 * pairs * d / speed},
        chosen,
    )


if __name__ == "__main__":
    main()
