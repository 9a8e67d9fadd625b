"""BlockRank attention and its scoring rows against dense causal attention over the same prompt.

    python tests/bench/block_attention.py --passages 100 --tokens 100

One layer's attention alone is timed: a model's projections and feed-forward layers are not in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels import masks
from foveate.kernels.attention import attention_reference
from foveate.kernels.block_attention import block_attention, block_scores


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--passages", type=int, default=100)
    options.add_argument("--tokens", type=int, default=100)
    options.add_argument("--heads", type=int, default=14)
    options.add_argument("--key-heads", type=int, default=2)
    options.add_argument("--dim", type=int, default=64)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    n, h, g, d = chosen.passages, chosen.heads, chosen.key_heads, chosen.dim
    lengths = torch.randint(chosen.tokens // 2, chosen.tokens * 3 // 2, (n,))
    lengths = torch.cat([torch.tensor([30]), lengths, torch.tensor([20])])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(chosen.device)
    t = int(offsets[-1])
    q = torch.randn(h, t, d, device=chosen.device)
    k, v = (torch.randn(g, t, d, device=chosen.device) for _ in range(2))
    mask = masks.block_rank(offsets)
    # the reference holds the whole matrix: some heads and the first passages are enough
    some = int(offsets[min(n, 11)])
    few = torch.cat([offsets[offsets <= some], offsets.new_tensor([some + 20])])
    got = block_attention(q[: h // g, : some + 20], k[:1, : some + 20], v[:1, : some + 20], few)
    want, _ = attention_reference(
        q[: h // g, : some + 20].double(), k[:1, : some + 20].double(), v[:1, : some + 20].double(),
        masks.block_rank(few))  # fmt: skip
    gate("block_attention", got, want, 1e-5)
    inside = slice(int(offsets[1]), int(offsets[-2]))
    stored, places = k[:, inside].contiguous(), offsets[1:-1] - offsets[1]
    rows = q[:, -2:].contiguous()
    weights = block_scores(rows.double(), stored.double(), places)
    gate("block_scores", block_scores(rows, stored, places), weights, 1e-5)

    def dense() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        )

    pairs = int((mask[..., 1] - mask[..., 0]).sum()) * h
    causal = t * (t + 1) // 2 * h
    base = "dense causal (torch)"
    report(
        f"{n} passages, {t} tokens, {h} heads over {g}",
        {
            base: dense,
            "block_attention": lambda: block_attention(q, k, v, offsets),
            "block_scores, stored keys": lambda: block_scores(rows, stored, places),
        },
        base,
        {
            base: 4 * causal * d / speed,
            "block_attention": 4 * pairs * d / speed,
            "block_scores, stored keys": max(
                2 * rows.shape[1] * h * stored.shape[1] * d / speed, stored.numel() * 4 / bandwidth
            ),
        },
        chosen,
    )


if __name__ == "__main__":
    main()
