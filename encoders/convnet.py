"""The forward pass of EfficientNet-Lite, batch normalisation folded into the convolutions.

Channels-last throughout, 'same' padding as in TensorFlow (the odd pixel goes to the right and the
bottom), ReLU6. Tan and Le 2019, arXiv:1905.11946; the Lite variants drop squeeze-and-excitation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# repeats, kernel, stride, expansion, channels of each stage of lite0
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# width and depth multipliers, side of the square input in pixels
SIZES = {"lite0": (1.0, 1.0, 224), "lite1": (1.0, 1.1, 240), "lite2": (1.1, 1.2, 260)}
N_STEM, N_FEATURES, N_CLASSES = 32, 1280, 1000
BN_EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution: its shape, and whether it opens, ends (with a skip) or ends a block."""

    n_in: int
    n_out: int
    kernel: int
    stride: int
    depthwise: bool
    activates: bool
    opens: bool = False
    skips: bool = False

    @property
    def ends(self) -> bool:
        """Whether a block ends here: its projection has no activation."""
        return not self.activates

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.n_out, 1 if self.depthwise else self.n_in, self.kernel, self.kernel)


def layers(size: str) -> Iterator[Layer]:
    """Yield the convolutions of a size in order. The stem and the head are never scaled."""
    width, depth, _ = SIZES[size]
    yield Layer(3, N_STEM, 3, 2, depthwise=False, activates=True)
    n_in = N_STEM
    for number, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
        ends = number in (0, len(STAGES) - 1)
        n_out = _round_channels(channels * width)
        for repeat in range(repeats if ends else math.ceil(repeats * depth)):
            step = stride if repeat == 0 else 1
            n_mid = n_in * expansion
            if expansion > 1:
                yield Layer(n_in, n_mid, 1, 1, depthwise=False, activates=True, opens=True)
            yield Layer(
                n_mid, n_mid, kernel, step, depthwise=True, activates=True, opens=expansion == 1
            )
            skips = step == 1 and n_in == n_out
            yield Layer(n_mid, n_out, 1, 1, depthwise=False, activates=False, skips=skips)
            n_in = n_out
    yield Layer(n_in, N_FEATURES, 1, 1, depthwise=False, activates=True)


def n_block_channels(size: str) -> int:
    """Return how many channels the blocks of a size give in all."""
    return sum(layer.n_out for layer in layers(size) if layer.ends)


def _round_channels(channels: float) -> int:
    """Round to a multiple of 8, never below nine tenths."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class ConvNet:
    """EfficientNet-Lite's features and its classifier, from a PyTorch state dict in layer order.

    path: a file of `torch.save`d tensors. size: a key of SIZES. classifier: weight (1000, 1280)
    and bias (1000,) float32 on the CPU.

    Raises:
        ModelError: if the file is not the weights of this size.
    """

    def __init__(self, path: Path, size: str, *, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._layers = list(layers(size))
        tensors = iter(_read(path))
        self._weights: list[tuple[Tensor, Tensor]] = []
        wanted = f"the weights of EfficientNet-{size.capitalize()}"
        try:
            for layer in self._layers:
                weight, bias = _fold([next(tensors) for _ in range(6)], layer.weight_shape)
                self._weights.append(self._place(weight, bias))
            self.classifier = (next(tensors).float(), next(tensors).float())
        except StopIteration:
            raise ModelError(f"expected {wanted} in {str(path)!r}, got fewer tensors") from None
        except ModelError as error:
            raise ModelError(f"expected {wanted} in {str(path)!r}: {error}") from None
        shapes = [tuple(tensor.shape) for tensor in self.classifier]
        if shapes != [(N_CLASSES, N_FEATURES), (N_CLASSES,)] or next(tensors, None) is not None:
            raise ModelError(f"expected {wanted} in {str(path)!r}, got a classifier of {shapes}")

    def _place(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        placed = weight.to(self.device, self.dtype, memory_format=torch.channels_last)
        return placed, bias.to(self.device, self.dtype)

    def features(self, pixels: Tensor, *, blocks: bool = False) -> Tensor:
        """Return (n, 1280, h / 32, w / 32) after the last activation.

        Args:
            pixels: (n, 3, h, w) float32, (RGB 0..255 - 127) / 128.
            blocks: append what each block gave, averaged to the same cells: (n, 1280 + b, ...)
                with b = `n_block_channels(size)`.
        """
        import torch

        x = pixels.to(self.device, self.dtype, memory_format=torch.channels_last)
        seen: list[Tensor] = []
        with torch.inference_mode():
            kept = x
            for layer, (weight, bias) in zip(self._layers, self._weights, strict=True):
                if layer.opens:
                    kept = x
                x = _convolve(x, layer, weight, bias)
                if layer.activates:
                    x = torch.nn.functional.relu6(x, inplace=True)
                if layer.skips:
                    x = x.add_(kept)
                if blocks and layer.ends:
                    seen.append(x)
            if blocks:
                pool = torch.nn.functional.adaptive_avg_pool2d
                cells = (x.shape[2], x.shape[3])
                x = torch.cat([x, *(pool(part, cells) for part in seen)], dim=1)
        return x


def _convolve(x: Tensor, layer: Layer, weight: Tensor, bias: Tensor) -> Tensor:
    import torch.nn.functional as F

    groups = layer.n_in if layer.depthwise else 1
    if layer.stride == 1:
        return F.conv2d(x, weight, bias, padding=layer.kernel // 2, groups=groups)
    pads: list[int] = []
    for side in (x.shape[3], x.shape[2]):
        out = -(-side // layer.stride)
        total = max((out - 1) * layer.stride + layer.kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, bias, stride=layer.stride, groups=groups)


def _read(path: Path) -> list[Tensor]:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return [tensor for tensor in state.values() if isinstance(tensor, torch.Tensor)]
    # torch.load raises whatever its unpickler meets in a file that is not a state dict
    except Exception as error:
        raise ModelError(f"cannot read the weights {str(path)!r}: {error}") from error


def _fold(tensors: list[Tensor], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Fold a batch normalisation (scale, shift, mean, variance, count) into its convolution."""
    weight, scale, shift, mean, variance, _count = (tensor.double() for tensor in tensors)
    if tuple(weight.shape) != shape or any(
        tuple(tensor.shape) != shape[:1] for tensor in (scale, shift, mean, variance)
    ):
        raise ModelError(f"wanted a convolution of {shape}, got {tuple(weight.shape)}")
    gain = scale / (variance + BN_EPSILON).sqrt()
    return (weight * gain[:, None, None, None]).float(), (shift - mean * gain).float()
