"""Sampled teams of keys for decoded rows against reading every key.

python tests/bench/team_attention.py --tokens 32768 --teams 64
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, start

from foveate.kernels.team_attention import make_teams, team_attention


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--tokens", type=int, default=32768)
    options.add_argument("--dim", type=int, default=64)
    options.add_argument("--rows", type=int, default=4)
    options.add_argument("--teams", type=int, default=64)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    t, d, n = chosen.tokens, chosen.dim, chosen.teams
    q = torch.randn(chosen.rows, d, device=chosen.device)
    # neighbours are alike and values have a mean, as in a text; else the output is noise around 0
    k = torch.randn(t // 8 + 1, d, device=chosen.device).repeat_interleave(8, 0)[:t]
    k, v = (torch.randn(t, d, device=chosen.device) * 0.3 + x for x in (k, k[:, :1] + 1.0))
    teams = make_teams(k)
    want = team_attention(q.double(), k.double(), v.double(), teams, n, backend="reference")
    gate("as many teams as there are", team_attention(q, k, v, teams, t), want, 1e-5)
    got = team_attention(q, k, v, teams, n)
    print(f"error of one draw over |o|: {float((got - want).norm() / want.norm()):.3f}")
    base = "every key"
    leaders = len(teams.leaders) * d * 4
    report(
        f"{chosen.rows} rows, {t} keys in {len(teams.leaders)} teams, {n} drawn",
        {
            base: lambda: torch.softmax(q @ k.T / d**0.5, 1) @ v,
            "team_attention": lambda: team_attention(q, k, v, teams, n),
        },
        base,
        {base: max(2 * k.numel() * 4 / bandwidth, 4 * chosen.rows * t * d / speed),
         "team_attention": (leaders + chosen.rows * n * 8 * d * 4) / bandwidth},
        chosen,
    )  # fmt: skip


if __name__ == "__main__":
    main()
