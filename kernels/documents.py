"""Token vectors of ragged documents, as floats, int8 or one-bit codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.kernels import ragged
from foveate.pipeline.errors import ShapeError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Ragged documents.

    Attributes:
        tokens: (t, d) float, (t, d) int8, or (t, d / 8) uint8 one-bit codes (set bit: positive,
            most significant first).
        offsets: (n+1,) int64, where each document begins and ends.
        scales: (t,) float32, what the codes of each token are multiplied by; None for floats.
    """

    tokens: Tensor
    offsets: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes and types."""
        coded = self.tokens.dtype in (torch.int8, torch.uint8)
        if self.tokens.ndim != 2 or not (coded or self.tokens.dtype in FLOATS):
            raise ShapeError(
                "expected tokens (t, d) float or int8, or (t, d / 8) uint8, "
                f"got {tuple(self.tokens.shape)} {self.tokens.dtype}"
            )
        if coded != (self.scales is not None):
            raise ShapeError("expected scales (t,) for int8 and one-bit codes, and only for them")
        if self.scales is not None and self.scales.shape != (len(self.tokens),):
            raise ShapeError(f"expected scales ({len(self.tokens)},), got {self.scales.shape}")
        ragged.check_offsets(self.offsets, len(self.tokens))

    @property
    def dim(self) -> int:
        """Channels of a token."""
        return self.tokens.shape[1] * (8 if self.tokens.dtype == torch.uint8 else 1)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.offsets) - 1

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the tokens (t, d) as floats, with their scales."""
        if self.tokens.dtype == torch.uint8:
            shifts = torch.arange(7, -1, -1, device=self.tokens.device, dtype=torch.uint8)
            bits = (self.tokens[:, :, None] >> shifts) & 1
            values = bits.flatten(1).to(dtype) * 2 - 1
        else:
            values = self.tokens.to(dtype)
        return values if self.scales is None else values * self.scales[:, None].to(dtype)


def quantise(tokens: Tensor, offsets: Tensor, kind: str) -> Documents:
    """Return the documents in int8 or one-bit codes.

    int8: scale = max |x| / 127, so each channel errs by at most scale / 2 and a product with a
    query token q by at most scale |q|_1 / 2. onebit: scale = mean |x|, the least squares choice
    for the signs (XNOR-Net, arXiv 1603.05279, equation 6); it keeps the order, not the value.

    Args:
        tokens: (t, d) float; d a multiple of 8 for one-bit codes.
        offsets: (n+1,) int64.
        kind: "int8" or "onebit".

    Raises:
        ShapeError: if the kind is unknown or d is not a multiple of 8.
    """
    values = tokens.float()
    if kind == "int8":
        scales = values.abs().amax(1) / 127
        codes = torch.round(values / scales.clamp(min=1e-30)[:, None]).clamp(-127, 127)
        return Documents(codes.to(torch.int8), offsets, scales)
    if kind != "onebit" or values.shape[1] % 8:
        raise ShapeError(
            f"expected kind 'int8' or 'onebit' (d a multiple of 8), got {kind!r}, "
            f"d {values.shape[1]}"
        )
    weights = 2 ** torch.arange(7, -1, -1, device=values.device)
    bits = (values > 0).view(len(values), values.shape[1] // 8, 8).long()
    return Documents((bits * weights).sum(2).to(torch.uint8), offsets, values.abs().mean(1))
