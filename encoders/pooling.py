"""From the states of a text's tokens, or of a picture's patches, to one vector.

'mean', 'cls' (the first token) and 'last' need no weights. Latent attention and efficient probing
have some; they are trained beside a frozen tower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from foveate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

PLAIN = ("mean", "cls", "last")


def pool(states: Tensor, kind: str, mask: Tensor | None = None) -> Tensor:
    """Return (n, d): one vector for each sequence, not normalised.

    states: (n, t, d). mask: (n, t) bool, True for tokens, padding on either side; None means that
    there is none.

    Raises:
        ConfigError: for a kind that is not one of PLAIN.
    """
    if kind not in PLAIN:
        raise ConfigError(f"unknown pooling {kind!r} (known: {', '.join(PLAIN)})")
    if mask is None:
        if kind == "mean":
            return states.mean(1)
        return states[:, 0 if kind == "cls" else -1]
    if kind == "mean":
        return masked_mean(states, mask)
    places = torch.arange(states.shape[1], device=states.device).expand(mask.shape)
    if kind == "cls":
        chosen = places.masked_fill(~mask, states.shape[1]).amin(1)
    else:
        chosen = places.masked_fill(~mask, -1).amax(1)
    return states[torch.arange(len(states), device=states.device), chosen]


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return (n, d): the mean over the tokens of the mask. states: (n, t, d); mask: (n, t)."""
    share = mask.to(states.dtype)[:, :, None]
    return (states * share).sum(1) / share.sum(1).clamp_min(1)


class LatentAttention(nn.Module):
    """Let every token look its meaning up among learned latents, then take the mean.

    Y = X + Attn(LN(X); LN(Z)), Z (r, d_latent) being keys and values; Y + FF(LN(Y)) with a gated
    GELU; masked mean; L2 norm. NV-Embed, Lee et al. 2024, arXiv:2405.17428. Tokens of an
    instruction are left out of the pool mask: they speak through the tower's own attention alone.
    """

    def __init__(
        self,
        dim: int,
        *,
        n_latents: int = 512,
        latent_dim: int | None = None,
        n_heads: int = 8,
        widening: int = 4,
    ) -> None:
        super().__init__()
        if dim % n_heads:
            raise ConfigError(f"expected a dimension that {n_heads} heads divide, got {dim}")
        latent_dim = latent_dim or dim
        self.n_heads = n_heads
        self.latents = nn.Parameter(0.02 * torch.randn(n_latents, latent_dim))
        self.norm, self.latent_norm = nn.LayerNorm(dim), nn.LayerNorm(latent_dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.keys_values = nn.Linear(latent_dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.inner_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * widening * dim)
        self.down = nn.Linear(widening * dim, dim)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return (n, d), L2-normalised. states: (n, t, d); mask: (n, t) bool, what is pooled."""
        keys, values = self.keys_values(self.latent_norm(self.latents)).chunk(2, dim=-1)
        n = len(states)
        q, k, v = (
            x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for x in (
                self.query(self.norm(states)),
                keys.expand(n, -1, -1),
                values.expand(n, -1, -1),
            )
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        states = states + self.out(attended)
        wide, gate = self.up(self.inner_norm(states)).chunk(2, dim=-1)
        states = states + self.down(wide * F.gelu(gate))
        return F.normalize(masked_mean(states, mask), dim=1)


class EfficientProbe(nn.Module):
    """A few learned queries attend to frozen tokens; the tokens themselves are the values.

    A = softmax(Q (X W_k)^T / sqrt d), y_m = A_m X; no value and no output projection.
    Psomas et al. 2025, arXiv:2506.10178. merge: 'mean' of the queries' outputs, or 'split', in
    which query m gives the m-th part of the channels.
    """

    def __init__(self, dim: int, *, n_queries: int = 32, merge: str = "mean") -> None:
        super().__init__()
        if merge not in ("mean", "split") or (merge == "split" and dim % n_queries):
            raise ConfigError(
                f"expected merge 'mean', or 'split' with queries that divide {dim}; got "
                f"{merge!r} and {n_queries}"
            )
        self.merge = merge
        self.queries = nn.Parameter(0.02 * torch.randn(n_queries, dim))
        self.key = nn.Linear(dim, dim, bias=False)

    def attention(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (n, m, t): where each query looks, rows that sum to 1; an explanation."""
        keys: Tensor = self.key(states)
        logits = self.queries @ keys.transpose(1, 2) / states.shape[-1] ** 0.5
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], -torch.inf)
        weights: Tensor = logits.softmax(-1)
        return weights

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (n, d), not normalised. states: (n, t, d); mask: (n, t) bool."""
        found = self.attention(states, mask) @ states  # (n, m, d)
        if self.merge == "mean":
            return found.mean(1)
        n, m, d = found.shape
        parts = found.view(n, m, m, d // m)
        own = torch.arange(m, device=states.device)
        return parts[:, own, own].flatten(1)
