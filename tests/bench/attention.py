"""The attention interface in its four patterns against the explicit formula and torch's own.

python tests/bench/attention.py --heads 14 --key-heads 2 --tokens 2048
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels import masks
from foveate.kernels.attention import Score, attention, attention_reference


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--heads", type=int, default=14)
    options.add_argument("--key-heads", type=int, default=2)
    options.add_argument("--tokens", type=int, default=2048)
    options.add_argument("--dim", type=int, default=64)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    h, g, t, d = chosen.heads, chosen.key_heads, chosen.tokens, chosen.dim
    for name, rows, mask in (
        ("self", t, masks.full(t, t)),
        ("self, causal", t, masks.causal(t, t)),
        ("cross", t // 4, masks.full(t // 4, t)),
        ("cross, causal", t // 4, masks.causal(t // 4, t)),
    ):
        q = torch.randn(h, rows, d, device=chosen.device)
        k, v = (torch.randn(g, t, d, device=chosen.device) for _ in range(2))
        mask = mask.to(chosen.device)
        want, _ = attention_reference(q.double(), k.double(), v.double(), mask)
        gate(name, attention(q, k, v, mask), want, 1e-5)
        dense = masks.dense(mask, t)
        pairs = int(dense.sum()) * h
        floor = max(4 * pairs * d / speed, 4 * (2 * q.numel() + 2 * k.numel()) / bandwidth)

        contenders = {
            "explicit formula": lambda q=q, k=k, v=v, m=mask: attention_reference(q, k, v, m),
            "torch, dense mask": lambda q=q, k=k, v=v, m=dense: (
                torch.nn.functional.scaled_dot_product_attention(
                    q[None], k[None], v[None], attn_mask=m, enable_gqa=True
                )
            ),
            "attention": lambda q=q, k=k, v=v, m=mask: attention(q, k, v, m),
            "attention, capped score": lambda q=q, k=k, v=v, m=mask: attention(
                q, k, v, m, score=Score(cap=30.0)
            ),
        }
        report(
            f"{name}: {h} heads over {g}, {rows} x {t} x {d}", contenders, "explicit formula",
            dict.fromkeys(contenders, floor), chosen,
        )  # fmt: skip


if __name__ == "__main__":
    main()
