"""Attention to teams of keys, sampled by their leader's weight, unbiased in both sums.

    phi_g = log |g| + <leader_g, q> / sqrt(d), perturbed by Gumbel noise; the `teams` largest enter,
    kappa is the next; pi_g = 1 - exp(-exp(phi_g - kappa))
    out = sum_j w_j v_j / sum_j w_j,  w_j = exp(<q, k_j> / sqrt(d)) / pi_g(j)

Source: SANTA++, arXiv 2609.35629; the inclusion formula is that of priority sampling with Gumbel
keys. Given the other teams' values, g enters iff it beats kappa, so E[1{g in S} / pi_g] = 1: the
numerator and the denominator are unbiased, their ratio is consistent. With as many teams as there
are, nothing is sampled and the output is exact. Not for looking up a needle: a team with a dull
leader is rarely drawn.

Bytes moved: the leaders (a quarter of the keys) and the keys and values of the teams drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError


@dataclass(frozen=True, slots=True, eq=False)
class Teams:
    """Teams of the keys (u, d) of one key head.

    Attributes:
        team: (u,) int64, each key's team.
        leaders: (n,) int64, each team's key; its vector in leader_keys (n, d).
        sizes: (n,) int64, at least 1.
        members: (u,) int64, the keys, team by team.
        starts: (n,) int64, where each team's members begin.
    """

    team: Tensor
    leaders: Tensor
    leader_keys: Tensor
    sizes: Tensor
    members: Tensor
    starts: Tensor


def make_teams(keys: Tensor, *, span: int = 16, n_leaders: int = 4) -> Teams:
    """Part keys (u, d) into teams: in each span, leaders far from each other and who is nearest.

    The first leader is the key nearest the span's mean, each next the one farthest from those
    before. A leader equal to one before it leads nobody and is dropped.
    """
    if keys.ndim != 2 or span < 1 or n_leaders < 1:
        raise ShapeError(
            f"expected keys (u, d), span and n_leaders of at least 1, got {keys.shape}"
        )
    values, u = keys.detach().float(), len(keys)
    n_spans = -(-u // span)
    places = torch.arange(n_spans * span, device=keys.device).view(n_spans, span)
    real = places < u
    rows = values[places.clamp(max=max(0, u - 1))] if u else values.new_empty((0, span, 0))
    shown = torch.where(real[..., None], rows, 0.0)
    mean = shown.sum(1, keepdim=True) / real.sum(1).clamp(min=1)[:, None, None]
    far = (rows - mean).norm(dim=2).masked_fill(~real, torch.inf)
    chosen = [far.argmin(1)]
    spans = torch.arange(n_spans, device=keys.device)
    gaps = [(rows - rows[spans, chosen[0]][:, None]).norm(dim=2)]
    for _ in range(min(n_leaders, span) - 1):
        nearest = torch.stack(gaps).amin(0).masked_fill(~real, -torch.inf)
        chosen.append(nearest.argmax(1))
        gaps.append((rows - rows[spans, chosen[-1]][:, None]).norm(dim=2))
    mine = torch.stack(gaps, 2).argmin(2) + spans[:, None] * len(chosen)
    leaders = (torch.stack(chosen, 1) + spans[:, None] * span).view(-1)
    numbers = mine[real]
    used, team, sizes = torch.unique(numbers, return_inverse=True, return_counts=True)
    leaders = leaders[used]
    members, starts = team.argsort(stable=True), sizes.cumsum(0) - sizes
    return Teams(team, leaders, keys.detach()[leaders], sizes, members, starts)


def team_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    teams: Teams,
    n_teams: int,
    *,
    exact: Tensor | None = None,
    generator: torch.Generator | None = None,
    sampled: bool = True,
    backend: str | None = None,
) -> Tensor:
    """Attend to sampled teams, of one key head; every row draws its own.

    Args:
        queries: (r, d) float; the rows see every key.
        keys: (u, d).
        values: (u, e).
        teams: `make_teams(keys)`.
        n_teams: how many teams a row draws, at least 1.
        exact: (a,) int64, keys that are always in with weight 1 (the newest), whatever is drawn.
        generator: of the noise; the same seed draws the same teams.
        sampled: False takes the best teams without noise and without weights (biased, steady).
        backend: see `foveate.kernels.dispatch.path`; the reference attends to every key.

    Returns:
        (r, e).
    """
    if n_teams < 1 or len(teams.team) != len(keys):
        raise ShapeError(f"expected n_teams of at least 1 and teams of {len(keys)} keys")
    scale = queries.shape[1] ** -0.5
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    reason = "asked for"
    if backend is None and queries.is_cuda and learns:
        backend, reason = "cpu", "the triton kernel has no gradient"
    where = path("team_attention", queries.device, backend, reason).name
    if where == "reference":
        return torch.softmax(queries @ keys.T * scale, 1) @ values
    bias = inclusion(queries, teams, n_teams, generator=generator, sampled=sampled)
    drawn = bias.topk(min(n_teams, bias.shape[1]), dim=1)
    sizes = teams.sizes[drawn.indices]
    longest = int(sizes.max()) if sizes.numel() else 0
    steps = torch.arange(longest, device=keys.device)
    places = teams.starts[drawn.indices][..., None] + steps
    at = teams.members[places.clamp(max=max(0, len(keys) - 1))].flatten(1)  # (r, n_teams * longest)
    absent = (steps >= sizes[..., None]).flatten(1)
    if exact is not None:
        absent = absent | torch.isin(at, exact)
    if where == "triton":
        from foveate.kernels import team_attention_triton

        added = drawn.values.repeat_interleave(longest, 1).masked_fill(absent, -torch.inf)
        if exact is not None:
            at = torch.cat([at, exact.expand(len(queries), -1)], 1)
            added = torch.cat([added, added.new_zeros((len(queries), len(exact)))], 1)
        return team_attention_triton.attend(queries, keys, values, at, added, scale)
    logits = torch.einsum("rd,rjd->rj", queries, keys[at]) * scale
    logits = logits + drawn.values.repeat_interleave(longest, 1)
    logits = logits.masked_fill(absent, -torch.inf)
    found = values[at]
    if exact is not None:
        logits = torch.cat([logits, queries @ keys[exact].T * scale], 1)
        found = torch.cat([found, values[exact].expand(len(queries), -1, -1)], 1)
    return torch.einsum("rj,rje->re", torch.softmax(logits, 1), found)


def inclusion(
    queries: Tensor,
    teams: Teams,
    n_teams: int,
    *,
    generator: torch.Generator | None = None,
    sampled: bool = True,
) -> Tensor:
    """Return (r, n): -log pi of each team drawn, -inf where it is not."""
    phi = (
        teams.sizes.log()
        + queries @ teams.leader_keys.to(queries.dtype).T / queries.shape[1] ** 0.5
    )
    if n_teams >= phi.shape[1]:
        return torch.zeros_like(phi)
    perturbed = phi
    if sampled:
        noise = torch.empty_like(phi).exponential_(generator=generator)
        perturbed = phi - noise.log()
    best = perturbed.topk(n_teams + 1, dim=1)
    bound = best.values[:, -1:]
    drawn = torch.zeros_like(phi, dtype=torch.bool).scatter(1, best.indices[:, :-1], True)
    if not sampled:
        return torch.where(drawn, 0.0, -torch.inf)
    # 1 - exp(-x) by expm1: x is small where a team was lucky
    log_inclusion = torch.log(-torch.expm1(-torch.exp(phi - bound)))
    return torch.where(drawn, -log_inclusion, -torch.inf)
