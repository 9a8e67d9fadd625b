"""Find the files of models that come as installed packages, and fingerprint weights."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.pipeline.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_BYTES = 65_536
_N_BLOCKS = 32


def find_package(package: str, component: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raises:
        MissingExtra: if the package is not installed; the message names what installs it.
    """
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        name = package.replace("_", "-")
        raise MissingExtra(
            f"encoder {component!r}", f"the model package {name}", "run `foveate models install`"
        )
    return Path(places[0])


def find_file(folder: Path, *names: str) -> Path:
    """Return the first of the named files that the folder holds.

    Raises:
        ModelError: if it holds none.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"no {' or '.join(names)} in the model folder {str(folder)!r}")


def fingerprint(path: Path) -> str:
    """Return 12 hex digits that tell one weights file from another.

    SHA-256 over the size, the first block (a safetensors header stands there) and 31 blocks of
    64 KiB spread evenly to the end: about a millisecond where the whole file takes 200. Two files
    that differ only between the blocks would look the same; retrained weights never do.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        last = max(size - _BLOCK_BYTES, 0)
        for block in range(_N_BLOCKS):
            file.seek(last * block // (_N_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()[:12]


def fingerprint_state(state: Mapping[str, Tensor]) -> str:
    """Return 12 hex digits of a model's weights: names, shapes and 64 values of each tensor."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach()
        flat = tensor.reshape(-1)
        sample = flat[:: max(1, flat.numel() // 64)][:64].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:12]
