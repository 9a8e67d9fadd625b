"""Top-k attention against the whole matrix, and the memory that each length takes.

python tests/bench/topk_attention.py --tokens 4096 --k 64
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start
from torch.utils._python_dispatch import TorchDispatchMode

from foveate.kernels.attention import Softmax, attention, attention_reference
from foveate.kernels.topk_attention import topk_attention


class Largest(TorchDispatchMode):
    """Notes the most bytes that one tensor made inside takes."""

    def __init__(self) -> None:
        super().__init__()
        self.n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.n_bytes = max(self.n_bytes, x.numel() * x.element_size())
        return out


def largest(tokens: int, k: int, dim: int) -> int:
    """Return the bytes of the largest tensor of one call."""
    x = torch.randn(1, tokens, dim)
    # the mode sees its own thread alone
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with Largest() as seen:
        topk_attention(x, x, x, k)
    torch.set_num_threads(before)
    return seen.n_bytes


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--dim", type=int, default=64)
    options.add_argument("--k", type=int, default=64)
    chosen = options.parse_args()
    _, speed = start(chosen)
    h, t, d, k = chosen.heads, chosen.tokens, chosen.dim, chosen.k
    q, keys, v = (torch.randn(h, t, d, device=chosen.device) for _ in range(3))
    want, _ = attention_reference(
        *(x[:1, :512].double() for x in (q, keys, v)), normaliser=Softmax(top=k)
    )
    got = topk_attention(*(x[:1, :512] for x in (q, keys, v)), k)
    gate("topk_attention", got, want, 1e-5)
    floors = {"topk_attention": 2 * h * t * (t + k) * d / speed,
              "attention, all keys": 4 * h * t * t * d / speed}  # fmt: skip
    base = "whole matrix, torch.topk"

    def whole() -> torch.Tensor:
        logits = q @ keys.transpose(1, 2) / d**0.5
        best = logits.topk(k, dim=2)
        kept = torch.full_like(logits, -torch.inf).scatter(2, best.indices, best.values)
        return kept.softmax(2) @ v

    report(
        f"{h} heads, {t} tokens, k {k}",
        {
            base: whole,
            "topk_attention": lambda: topk_attention(q, keys, v, k),
            "attention, all keys": lambda: attention(q, keys, v),
        },
        base,
        floors,
        chosen,
    )
    if chosen.device == "cpu":
        sizes = [t // 4, t // 2, t]
        for size in sizes:
            mib = largest(size, k, d) / 2**20
            print(f"{size} tokens: largest tensor {mib:.2f} MiB, matrix {size**2 / 2**18:.0f} MiB")


if __name__ == "__main__":
    main()
