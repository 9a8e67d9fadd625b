"""Causal attention that skips blocks by a 4-bit estimate against full attention.

python tests/bench/quantised_score.py --tokens 4096 --tau 0.004
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels import masks
from foveate.kernels.attention import attention
from foveate.kernels.quantised_score import quantised_score


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--dim", type=int, default=64)
    options.add_argument("--tau", type=float, default=0.004)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    h, t, d = chosen.heads, chosen.tokens, chosen.dim
    # keys in runs of a topic, rows that ask for one: what a threshold can tell apart
    topics = torch.randn(h, t // 128 + 1, d, device=chosen.device) * 1.5
    at = torch.arange(t, device=chosen.device) // 128
    k = topics[:, at] + torch.randn(h, t, d, device=chosen.device)
    q = topics[:, at // 2] + torch.randn(h, t, d, device=chosen.device)
    v = torch.randn(h, t, d, device=chosen.device)
    # the first key draws most of the weight, as in trained models
    q[..., 0] += 8.0
    k[:, 0] = 0.0
    k[:, 0, 0] = 14.0
    causal = masks.causal(t, t).to(chosen.device)
    want = attention(q.double(), k.double(), v.double(), causal)
    gate("tau 0", quantised_score(q, k, v, tau=0.0)[0], want, 1e-5)
    got, kept = quantised_score(q, k, v, tau=chosen.tau)
    error = float((got - want).norm() / want.norm())
    print(f"tau {chosen.tau}: {float(kept):.3f} of the blocks kept, error over |o| {error:.4f}")
    base = "causal attention"
    pairs = h * t * t / 2
    report(
        f"{h} heads, {t} tokens, tau {chosen.tau}",
        {
            base: lambda: attention(q, k, v, causal),
            "quantised_score": lambda: quantised_score(q, k, v, tau=chosen.tau),
        },
        base,
        {base: 4 * pairs * d / speed,
         "quantised_score": max((2 + 4 * float(kept)) * pairs * d / speed,
                                3 * k.numel() * 4 / bandwidth)},
        chosen,
    )  # fmt: skip


if __name__ == "__main__":
    main()
