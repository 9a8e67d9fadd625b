"""MaxSim over 1,000 documents against the padded einsum and, if installed, maxsim-cpu.

    python tests/bench/maxsim.py --rounds 15

Two sets: all documents 300 tokens long (padding costs nothing), and lengths spread evenly over
1..300 (what passages look like; the padded einsum multiplies the padding too).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import arguments, gate, report, speed_of, start

from foveate.kernels.documents import Documents, quantise
from foveate.kernels.maxsim import maxsim, maxsim_topk
from foveate.kernels.maxsim_products import multiplies


def padded(documents: Documents) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (n, longest, d) and (n, longest), true where there is a token."""
    parts = documents.tokens.split(documents.offsets.diff().tolist())
    lengths = documents.offsets.diff()
    stacked = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    return stacked, torch.arange(stacked.shape[1], device=stacked.device) < lengths[:, None]


def einsum(queries: torch.Tensor, stacked: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    sims = torch.einsum("qd,ntd->nqt", queries, stacked)
    return sims.masked_fill(~mask[:, None], -torch.inf).amax(2).sum(1)[None]


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--documents", type=int, default=1000)
    options.add_argument("--tokens", type=int, default=300)
    options.add_argument("--query-tokens", type=int, default=32)
    options.add_argument("--dim", type=int, default=128)
    chosen = options.parse_args()
    bandwidth, speed = start(chosen)
    n, longest = chosen.documents, chosen.tokens
    for title, lengths in {
        f"{n} documents of {longest} tokens": torch.full((n,), longest),
        f"{n} documents of 1..{longest} tokens": torch.randint(1, longest + 1, (n,)),
    }.items():
        compare(title, lengths, bandwidth, speed, chosen)


def compare(title: str, lengths: torch.Tensor, bandwidth: float, speed: float, chosen: Any) -> None:
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(chosen.device)
    t, s, dim = int(offsets[-1]), chosen.query_tokens, chosen.dim
    tokens = torch.nn.functional.normalize(torch.randn(t, dim, device=chosen.device), dim=1)
    queries = torch.nn.functional.normalize(torch.randn(s, dim, device=chosen.device), dim=1)
    documents = {
        "fp32": Documents(tokens, offsets),
        "bf16": Documents(tokens.bfloat16(), offsets),
        "int8": quantise(tokens, offsets, "int8"),
        "one-bit": quantise(tokens, offsets, "onebit"),
    }
    stacked, mask = padded(documents["fp32"])
    want = einsum(queries.double(), stacked.double(), mask)
    base = "padded einsum"
    contenders: dict[str, Callable[[], Any]] = {base: lambda: einsum(queries, stacked, mask)}
    if bool(mask.all()):
        contenders["einsum without a mask"] = lambda: (
            torch.einsum("qd,ntd->nqt", queries, stacked).amax(2).sum(1)
        )
    speeds = {"fp32": speed, "bf16": speed, "int8": speed, "one-bit": 8 * speed}
    if multiplies(torch.bfloat16):
        speeds["bf16"] = speed_of("bf16", chosen.device)
    if multiplies(torch.int8):
        speeds["int8"] = speeds["one-bit"] = speed_of("int8", chosen.device)
    # elsewhere one-bit codes are looked up: d / 8 additions for d fused multiplications
    print(", ".join(f"{kind} {rate / 1e9:.0f} G/s" for kind, rate in speeds.items()))
    floors = {base: max(stacked.numel() * 4 / bandwidth, 2 * s * stacked.numel() / speed)}
    tolerances = {"fp32": 1e-5, "bf16": 5e-3, "int8": 1e-2}
    for kind, held in documents.items():
        if kind in tolerances:
            gate(f"maxsim {kind}", maxsim(queries, held), want, tolerances[kind])
        else:
            exact = einsum(
                queries.double(), padded(Documents(held.dense(), offsets))[0].double(), mask
            )
            gate(f"maxsim {kind}, to its codes", maxsim(queries, held), exact, 1e-4)
        contenders[f"maxsim {kind}"] = lambda held=held: maxsim(queries, held)  # type: ignore[misc]
        size = held.tokens.numel() * held.tokens.element_size()
        work = 2 * s * t * dim / speeds[kind]
        floors[f"maxsim {kind}"] = max(size / bandwidth, work)
    contenders["maxsim fp32, best 10"] = lambda: maxsim_topk(queries, documents["fp32"], 10)
    floors["maxsim fp32, best 10"] = floors["maxsim fp32"]
    eight = torch.nn.functional.normalize(torch.randn(8 * s, dim, device=chosen.device), dim=1)
    at = torch.arange(9, device=chosen.device) * s
    contenders["maxsim fp32, 8 queries at once"] = lambda: maxsim(
        eight, documents["fp32"], query_offsets=at
    )
    floors["maxsim fp32, 8 queries at once"] = 8 * 2 * s * t * dim / speed
    if importlib.util.find_spec("maxsim_cpu") and chosen.device == "cpu":
        import maxsim_cpu

        rows = [d.numpy() for d in tokens.split(lengths.tolist())]
        got = torch.as_tensor(maxsim_cpu.maxsim_scores_variable(queries.numpy(), rows))[None]
        gate("maxsim-cpu", got, want, 1e-4)
        contenders["maxsim-cpu"] = lambda: maxsim_cpu.maxsim_scores_variable(queries.numpy(), rows)
    else:
        print("maxsim-cpu is not installed (pip install maxsim-cpu): not compared")
    report(title, contenders, base, floors, chosen)


if __name__ == "__main__":
    main()
