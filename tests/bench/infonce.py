"""The contrastive loss and its gradient against the whole matrix.

python tests/bench/infonce.py --batch 4096
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels.infonce import infonce, infonce_reference


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--batch", type=int, default=4096)
    options.add_argument("--dim", type=int, default=384)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    b, d = chosen.batch, chosen.dim
    rows = torch.nn.functional.normalize(torch.randn(2, b, d, device=chosen.device), dim=2)
    own = torch.arange(b, device=chosen.device)

    def learn(tiled: bool) -> torch.Tensor:
        q, docs = (x.detach().clone().requires_grad_() for x in rows)
        loss = infonce(q, docs) if tiled else infonce_reference(q, docs, own, 0.05)
        loss.backward()
        return q.grad

    gate("gradient of the queries", learn(True), learn(False), 1e-5)
    base = "whole matrix"
    report(
        f"{b} x {b} x {d}, forward and backward",
        {base: lambda: learn(False), "infonce": lambda: learn(True)},
        base,
        {base: 6 * b * b * d / speed, "infonce": 8 * b * b * d / speed},
        chosen,
    )
    print(
        f"logits held: whole {b * b * 4 / 2**20:.0f} MiB, a tile {1024 * 1024 * 4 / 2**20:.0f} MiB"
    )
    print(f"bytes of the vectors alone take {2 * rows.numel() * 4 / bandwidth * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
