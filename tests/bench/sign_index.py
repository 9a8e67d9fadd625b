"""One decoded row over many keys: the index against reading every key.

python tests/bench/sign_index.py --tokens 32768 --budget 1024
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels.attention import attention
from foveate.kernels.sign_index import find_keys, indexed_attention, sign_index


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--tokens", type=int, default=32768)
    options.add_argument("--heads", type=int, default=14)
    options.add_argument("--key-heads", type=int, default=2)
    options.add_argument("--dim", type=int, default=64)
    options.add_argument("--budget", type=int, default=1024)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    h, g, t, d = chosen.heads, chosen.key_heads, chosen.tokens, chosen.dim
    q = torch.randn(h, 1, d, device=chosen.device)
    k, v = (torch.randn(g, t, d, device=chosen.device) for _ in range(2))
    index = sign_index(k)
    want = attention(q.double(), k.double(), v.double())
    gate("a budget of all keys", indexed_attention(q, k, v, index, t), want, 1e-5)
    mean = q.view(g, h // g, d).mean(1, keepdim=True)
    best = (mean @ k.transpose(1, 2))[:, 0].topk(64, dim=1).indices
    found = find_keys(index, q, chosen.budget)
    shares = [float(torch.isin(b, f).float().mean()) for b, f in zip(best, found, strict=True)]
    print(f"recall of the 64 best keys in {chosen.budget}: {sum(shares) / len(shares):.3f}")
    base = "every key"
    report(
        f"one row, {h} heads over {g}, {t} keys, budget {chosen.budget}",
        {
            base: lambda: attention(q, k, v),
            "sign_index": lambda: indexed_attention(q, k, v, index, chosen.budget),
            "finding alone": lambda: find_keys(index, q, chosen.budget),
        },
        base,
        {base: max(2 * k.numel() * 4 / bandwidth, 4 * h * t * d / speed),
         "sign_index": (g * t * d / 8 + 2 * g * chosen.budget * d * 4) / bandwidth,
         "finding alone": g * t * d / 8 / bandwidth},
        chosen,
    )  # fmt: skip


if __name__ == "__main__":
    main()
