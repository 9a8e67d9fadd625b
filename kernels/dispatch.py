"""Which path an operation takes on a device, and why. No choice is silent: ask `paths()`."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foveate.kernels import REGISTRY
from foveate.pipeline.errors import FoveateError, UnknownComponent

if TYPE_CHECKING:
    import torch

# "cpu" is blocked torch; it runs on a GPU too where there is no triton kernel
BACKENDS = ("reference", "cpu", "triton")
# operations that are attention with a mask: its kernel is theirs
THROUGH_ATTENTION = ("block_attention", "pooled_attention", "window_attention")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Path:
    """The path that an operation takes: one of BACKENDS, and the reason in words."""

    op: str
    name: str
    reason: str


def path(
    op: str,
    device: torch.device | str = "cpu",
    backend: str | None = None,
    reason: str = "asked for",
) -> Path:
    """Return the path of an operation for tensors on a device.

    Args:
        op: a name of `foveate.kernels.REGISTRY`.
        device: where the tensors are.
        backend: one of BACKENDS to insist on; None lets the device decide.
        reason: why the backend is insisted on.

    Raises:
        UnknownComponent: if there is no such operation or backend.
        FoveateError: if the backend insisted on cannot run here.
    """
    if op not in REGISTRY:
        raise UnknownComponent("kernel", op, REGISTRY)
    if backend is not None and backend not in BACKENDS:
        raise UnknownComponent("backend", backend, BACKENDS)
    kind = str(device).partition(":")[0]
    lacking = _lacks_triton(op, kind)
    if backend == "triton" and lacking:
        raise FoveateError(f"kernel {op!r} cannot take the triton path: {lacking}")
    if backend is not None:
        chosen = Path(op, backend, reason)
    elif kind == "cuda" and not lacking:
        chosen = Path(op, "triton", "the tensors are on a GPU and triton is installed")
    else:
        chosen = Path(op, "cpu", lacking or "the tensors are in main memory")
    _log(chosen)
    return chosen


def paths(device: torch.device | str | None = None) -> list[Path]:
    """Return the path of every operation; device None means the best that this machine has."""
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return [path(op, device) for op in REGISTRY]


def _lacks_triton(op: str, kind: str) -> str:
    """Return why the triton path cannot be taken, or ''."""
    kernel = "attention" if op in THROUGH_ATTENTION else op
    module = REGISTRY[kernel].partition(":")[0] + "_triton"
    if importlib.util.find_spec(module) is None:
        return "this operation has no triton kernel: blocked torch runs on every device"
    if importlib.util.find_spec("triton") is None:
        where = "macOS has none" if platform.system() == "Darwin" else "pip install triton"
        return f"triton is not installed ({where})"
    if kind != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the tensors are on {kind!r} and triton needs a GPU"
    return ""


@functools.lru_cache(maxsize=256)
def _log(chosen: Path) -> None:
    # cached, so that each choice is logged once
    LOG.info("kernel %s takes the %s path: %s", chosen.op, chosen.name, chosen.reason)
