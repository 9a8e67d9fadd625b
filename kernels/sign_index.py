"""A one-bit index of keys, with magnitudes, to find the tokens that a query attends to.

    code of a key: the sign of each channel of k - centre, 8 channels a byte
    book[group, pattern] = mean of the keys' 4-channel parts that have this sign pattern
    estimate(q, j) = sum over groups of <book[group, code_j], q>

Source: Self-Indexing KV, arXiv 2603.14224 and the authors' code. The centre is each channel's
median over the keys; it moves every logit of a row alike, so no softmax sees it. Keys and values
themselves stay as they are here (the paper's 16 + 1 bit mode).

Bytes: d / 8 a key for the index against 4 d for the key. Operations: d / 8 look-ups a key, of
tables of d / 8 x 256 numbers a query. Then only the keys found are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.kernels import threads
from foveate.kernels.dispatch import path
from foveate.pipeline.errors import ShapeError

# keys estimated at a time: their sums stay in the first level of cache
RUN = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SignIndex:
    """An index of keys (g, u, d).

    Attributes:
        codes: (g, d / 8, u) uint8, most significant bit first, set: not below the centre; a
            group's codes lie together, so that one table is read at a time.
        book: (g, d / 4, 16, 4) float32.
        centre: (g, d) float32.
    """

    codes: Tensor
    book: Tensor
    centre: Tensor

    def estimate(self, queries: Tensor, *, backend: str | None = None) -> Tensor:
        """Return the estimated products (g, r, u) of queries (g, r, d) with the centred keys."""
        g, r, d = queries.shape
        parts = queries.float().view(g, r, d // 4, 4)
        nibbles = torch.einsum("grnc,gnpc->gnpr", parts, self.book)  # (g, d/4, 16, r)
        pairs = nibbles.view(g, d // 8, 2, 16, r)
        tables = (pairs[:, :, 0, :, None] + pairs[:, :, 1, None]).view(g, d // 8, 256, r)
        if path("sign_index", queries.device, backend).name == "triton":
            from foveate.kernels import sign_index_triton

            return sign_index_triton.estimate(tables, self.codes).transpose(1, 2)
        n_keys = self.codes.shape[2]
        found = queries.new_zeros((g, n_keys, r), dtype=torch.float32)
        # one column is looked up faster in a flat table
        shape = (-1,) if r == 1 else (-1, r)

        def look_up(piece: tuple[int, int]) -> None:
            head, low = piece
            out = found[head, low : low + RUN].view(shape)
            for group in range(d // 8):
                code = self.codes[head, group, low : low + RUN].int()
                out += tables[head, group].reshape(shape).index_select(0, code)

        pieces = [(head, low) for head in range(g) for low in range(0, n_keys, RUN)]
        for _ in threads.each(look_up, pieces, device=queries.device):
            pass
        return found.transpose(1, 2)


def sign_index(keys: Tensor, *, centred: bool = True) -> SignIndex:
    """Index keys.

    Args:
        keys: (g, u, d) float, d a multiple of 8, u at least 1.
        centred: subtract each channel's median; else the centre is 0.
    """
    if keys.ndim != 3 or keys.shape[2] % 8 or not keys.shape[1]:
        raise ShapeError(f"expected keys (g, u, d), 8 divides d, u > 0, got {tuple(keys.shape)}")
    path("sign_index", keys.device)
    values = keys.detach().float()
    g, u, d = values.shape
    centre = values.median(1).values if centred else values.new_zeros((g, d))
    values = values - centre[:, None]
    bits = (values >= 0).view(g, u, d // 4, 4).long()
    patterns = (bits * torch.tensor([8, 4, 2, 1], device=keys.device)).sum(3)  # (g, u, d/4)
    codes = (patterns[..., 0::2] * 16 + patterns[..., 1::2]).to(torch.uint8)
    # the mean of the parts of each pattern
    cell = patterns + torch.arange(d // 4, device=keys.device) * 16
    cell = cell + torch.arange(g, device=keys.device)[:, None, None] * (d // 4 * 16)
    sums = values.new_zeros((g * d // 4 * 16, 4)).index_add_(
        0, cell.view(-1), values.view(g, u, d // 4, 4).reshape(-1, 4)
    )
    counts = torch.bincount(cell.view(-1), minlength=len(sums)).clamp(min=1)
    codes = codes.transpose(1, 2).contiguous()
    return SignIndex(codes, (sums / counts[:, None]).view(g, d // 4, 16, 4), centre)


def find_keys(
    index: SignIndex, queries: Tensor, budget: int, always: Tensor | None = None
) -> Tensor:
    """Return (g, b) int64, the keys to attend to for each key head, b = min(budget, u) and more.

    Args:
        index: of keys (g, u, d).
        queries: (h, r, d); those of a key head's query heads and rows are averaged.
        budget: how many keys are found by the index, at least 1.
        always: (a,) int64, keys taken beside the budget: the newest, the first.
    """
    g, _, u = index.codes.shape
    if budget < 1 or len(queries) % max(1, g):
        raise ShapeError(f"expected a budget of at least 1 and h a multiple of {g}, got {budget}")
    mean = queries.reshape(g, -1, queries.shape[2]).float().mean(1, keepdim=True)
    scores = index.estimate(mean)[:, 0]
    n_always = 0 if always is None else len(always)
    if always is not None:
        scores = scores.index_fill(1, always, torch.inf)
    return scores.topk(min(u, budget + n_always), dim=1).indices.sort(1).values


def indexed_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    index: SignIndex,
    budget: int,
    *,
    always: Tensor | None = None,
) -> Tensor:
    """Attend to the keys that the index finds, exactly: rows that see every key (a decoded row).

    What is left out changes the output by delta |mu_left - mu_kept|
    (`foveate.kernels.topk_attention.sparse_error`); nothing is left out when budget >= u.

    Args:
        queries: (h, r, d).
        keys: (g, u, d).
        values: (g, u, e).
        index: `sign_index(keys)`.
        budget: keys found by the index.
        always: (a,) int64, keys taken beside the budget.

    Returns:
        (h, r, e).
    """
    from foveate.kernels.attention import attention

    found = find_keys(index, queries, budget, always)
    heads = torch.arange(len(keys), device=keys.device)[:, None]
    return attention(queries, keys[heads, found], values[heads, found], op="sign_index")
