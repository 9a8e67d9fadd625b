"""Optimal transport over ragged documents against one document at a time.

python tests/bench/sinkhorn.py --documents 300
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels.sinkhorn import sinkhorn


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--documents", type=int, default=300)
    options.add_argument("--vectors", type=int, default=30)
    options.add_argument("--query-vectors", type=int, default=12)
    options.add_argument("--dim", type=int, default=384)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    lengths = torch.randint(1, chosen.vectors + 1, (chosen.documents,))
    offsets = torch.cat([lengths.new_tensor([0]), lengths.cumsum(0)]).to(chosen.device)
    t, s, d = int(offsets[-1]), chosen.query_vectors, chosen.dim
    docs = torch.nn.functional.normalize(torch.randn(t, d, device=chosen.device), dim=1)
    q = torch.nn.functional.normalize(torch.randn(s, d, device=chosen.device), dim=1)
    want = sinkhorn(q.double(), docs.double(), offsets, tolerance=1e-9)
    gate("sinkhorn", sinkhorn(q, docs, offsets), want, 1e-3)
    base = "one document at a time"
    report(
        f"{chosen.documents} documents of 1..{chosen.vectors} vectors, query of {s}",
        {
            base: lambda: sinkhorn(q, docs, offsets, backend="reference"),
            "sinkhorn": lambda: sinkhorn(q, docs, offsets),
        },
        base,
        # the distances alone: the number of steps depends on the data
        {"sinkhorn": max(3 * s * t * d / speed, docs.numel() * 4 / bandwidth)},
        chosen,
    )


if __name__ == "__main__":
    main()
