"""Which device and number type an encoder computes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foveate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "fp32", "bf16")


def choose_device(device: str) -> torch.device:
    """Return the device of this name; 'auto' is the first GPU, else the CPU.

    Raises:
        ConfigError: if torch knows no such device or it is not there.
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"unknown device {device!r} (known: 'auto', 'cpu', 'cuda', 'cuda:N')"
        ) from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} was asked for, but torch finds no GPU: use 'auto'")
    return chosen


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products run in hardware: AVX512_BF16 or AMX on the CPU."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device.type != "cpu":
        return False
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the type of weights and matrix products; sums, softmax and norms stay fp32.

    Raises:
        ConfigError: if the name is not one of DTYPES.
    """
    import torch

    if dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r} (known: {', '.join(map(repr, DTYPES))})")
    if dtype == "auto":
        dtype = "bf16" if has_fast_bf16(device) else "fp32"
    return torch.bfloat16 if dtype == "bf16" else torch.float32
