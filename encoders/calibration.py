"""Position-bias calibration: attention that looks at all parts of a text alike.

Towers look at a text's beginning more than at the rest, so that what stands late is found less
well. In the last layers the attention of the pooling token (of every token where the mean is
pooled) is levelled between baskets of neighbouring tokens. arXiv:2601.16934, arXiv:2606.02737.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "foveate_calibrated"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How strongly, and where.

    strength: lambda, 0 leaves everything as it is, 1 gives every basket the same attention.
    basket: tokens of one basket. layers: how many of the last layers; None is half of them.
    """

    strength: float = 0.5
    basket: int = 128
    layers: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ConfigError(f"expected calibration from 0 to 1, got {self.strength!r}")
        if self.basket < 1 or (self.layers is not None and self.layers < 1):
            raise ConfigError(
                f"expected basket and layers of 1 and above, got {self.basket!r}, {self.layers!r}"
            )

    def first_layer(self, n_layers: int) -> int:
        """Return the number of the first layer that is calibrated."""
        return n_layers - min(self.layers if self.layers is not None else n_layers // 2, n_layers)

    def __str__(self) -> str:
        layers = "half" if self.layers is None else self.layers
        return f"{self.strength:g}x{self.basket}@{layers}"


def calibrate(
    attention: Tensor,
    calibration: Calibration,
    *,
    mask: Tensor | None = None,
    n_first: int = 0,
    last: bool = False,
) -> Tensor:
    """Level attention between baskets of tokens.

    a'_j = a_j / (sum over its basket) / n_baskets, rescaled to the mass that the isolated tokens
    leave; then (1 - lambda) a + lambda a'.

    Args:
        attention: (..., t), rows that sum to 1.
        calibration: strength and basket.
        mask: (..., t) bool that broadcasts, True for tokens, padding on either side.
        n_first: tokens at the beginning that keep their own share (the first token where it is
            pooled).
        last: the last token gets the share of a basket (where it is pooled).

    Returns:
        (..., t), rows that sum to 1.
    """
    import torch

    if mask is None:
        mask = torch.ones(attention.shape[-1], dtype=torch.bool, device=attention.device)
    mask = mask.expand(attention.shape)
    place = mask.long().cumsum(-1) - 1
    count = mask.sum(-1, keepdim=True)
    content = mask & (place >= n_first) & (place < count - int(last))
    basket = ((place - n_first) // calibration.basket).clamp_min(0).masked_fill(~content, 0)
    n_content = content.sum(-1, keepdim=True)
    n_baskets = -(-n_content // calibration.basket)
    own = attention.masked_fill(~content, 0.0)
    most = -(-attention.shape[-1] // calibration.basket)
    sums = attention.new_zeros((*attention.shape[:-1], most)).scatter_add(-1, basket, own)
    level = own / sums.gather(-1, basket).clamp_min(torch.finfo(attention.dtype).tiny)
    kept = attention.masked_fill(~(mask & (place < n_first)), 0.0)
    left = (attention * mask).sum(-1, keepdim=True) - kept.sum(-1, keepdim=True)
    share = left / (n_baskets + int(last)).clamp_min(1)
    found = kept + level * share
    if last:
        found = found + share * (mask & (place == count - 1))
    # a row that has no content (an empty text) stays as it is
    found = torch.where(n_content > 0, found, attention)
    mixed = torch.lerp(attention, found, calibration.strength)
    return mixed / mixed.sum(-1, keepdim=True)


def attach(model: Any, calibration: Calibration, pooling: str) -> None:
    """Calibrate the last layers of a transformers model, from now on.

    Only the pooled row is computed again, all rows where the mean is pooled.

    Raises:
        ModelError: for a model whose attention cannot be exchanged.
    """
    from transformers import AttentionInterface

    layers = _attentions(model)
    if not layers:
        raise ModelError(
            f"cannot calibrate {type(model).__name__}: its attention layers are not of "
            "transformers' common form"
        )
    AttentionInterface.register(_NAME, _attend)
    first = calibration.first_layer(len(layers))
    for number, layer in enumerate(layers):
        layer.foveate_calibration = (calibration, pooling) if number >= first else None
    try:
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        AttentionMaskInterface.register(_NAME, sdpa_mask)
        model.set_attn_implementation(_NAME)
    except (AttributeError, ImportError, ValueError) as error:
        raise ModelError(f"cannot calibrate {type(model).__name__}: {error}") from error


def _attentions(model: Any) -> list[Any]:
    """Return the self-attention modules in their order."""
    names = ("query", "q_proj", "qkv", "Wqkv", "qkv_proj")
    return [m for m in model.modules() if any(name in m._modules for name in names)]


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as torch does, with the pooled rows levelled where the layer is to be calibrated.

    query: (n, h, t, d); key, value: (n, h', t, d); attention_mask: broadcasts to (n, h, t, t),
    bool or added.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    plain: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0]
    chosen = getattr(module, "foveate_calibration", None)
    if chosen is None:
        return plain, None
    calibration, pooling = chosen
    n, heads, t, dim = query.shape
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    allowed = torch.ones(n, 1, t, t, dtype=torch.bool, device=query.device)
    if attention_mask is not None:
        allowed = attention_mask if attention_mask.dtype == torch.bool else attention_mask >= 0
        allowed = allowed.expand(n, -1, t, t)
    # what any token may attend to is no padding; a padding row of a causal mask attends to little
    tokens = allowed.any(-2, keepdim=True)
    places = torch.arange(t, device=query.device).expand(n, t)
    real = tokens[:, 0, 0]
    if pooling == "mean":
        rows = places
    elif pooling == "cls":
        rows = places.masked_fill(~real, t).amin(1, keepdim=True).clamp_max(t - 1)
    else:
        rows = places.masked_fill(~real, -1).amax(1, keepdim=True).clamp_min(0)
    at = rows[:, None, :, None].expand(-1, heads, -1, dim)
    scale = options.get("scaling") or dim**-0.5
    logits = (query.gather(2, at) @ key.transpose(2, 3)).float() * scale
    seen = allowed.gather(2, rows[:, None, :, None].expand(-1, allowed.shape[1], -1, t))
    share = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    levelled = calibrate(
        share, calibration, mask=seen, n_first=int(pooling == "cls"), last=pooling == "last"
    ).nan_to_num(0.0)
    again = (levelled.to(value.dtype) @ value).transpose(1, 2)  # (n, rows, h, d)
    return plain.scatter(1, rows[:, :, None, None].expand_as(again), again), None
