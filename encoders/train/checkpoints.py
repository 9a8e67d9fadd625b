"""One file that a run goes on from: weights, moments, best weights, and what they belong to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.train.trainer import State

NAME = "checkpoint.safetensors"


def digest(text: str) -> str:
    """Return 16 hex digits of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write(
    folder: Path,
    identity: Mapping[str, Any],
    state: State,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Any],
) -> Path:
    """Write the checkpoint in the place of the one before; a stop in between loses neither."""
    from safetensors.torch import save_file

    tensors = {f"now/{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"best/{name}": tensor for name, tensor in state.best.items()}
    for number, of_one in moments["state"].items():
        tensors |= {f"moment/{number}/{name}": torch.as_tensor(x) for name, x in of_one.items()}
    facts = {
        "identity": dict(identity),
        "step": state.step,
        "losses": state.losses,
        "scores": state.scores,
        "best_step": state.best_step,
        "n_worse": state.n_worse,
        "groups": moments["param_groups"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{NAME}.{os.getpid()}"
    # cloned: tensors that share memory are refused by the format
    flat = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    save_file(flat, str(aside), metadata={"run": json.dumps(facts)})
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, folder / NAME)
    return folder / NAME


def read(
    folder: Path, identity: Mapping[str, Any]
) -> tuple[State, dict[str, Tensor], dict[str, Any]] | None:
    """Return where a run was, its weights and its optimiser's state; None if there is none.

    Raises:
        ModelError: if the checkpoint is of another start, data or options, or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    from foveate.encoders.train.trainer import State

    path = folder / NAME
    if not is_there(folder):
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"cannot read the checkpoint {str(path)!r}: {error}") from error
    _compare(path, facts["identity"], json.loads(json.dumps(identity)))
    parts: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}}
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "moment":
            number, _, what = rest.partition("/")
            moments.setdefault(int(number), {})[what] = tensor
        else:
            parts[kind][rest] = tensor
    state = State(
        facts["step"],
        facts["losses"],
        facts["scores"],
        facts["best_step"],
        facts["n_worse"],
        parts["best"],
    )
    return state, parts["now"], {"state": moments, "param_groups": facts["groups"]}


def is_there(folder: Path) -> bool:
    """Say whether a run was kept here."""
    return (folder / NAME).is_file()


def clear(folder: Path) -> None:
    """Remove the checkpoint of a run that is done."""
    (folder / NAME).unlink(missing_ok=True)


def _compare(path: Path, kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for what, value in now.items():
        if kept.get(what) == value:
            continue
        if isinstance(value, dict):
            _compare(path, kept.get(what) or {}, value)
            continue
        raise ModelError(
            f"the checkpoint {str(path)!r} was made with {what} {kept.get(what)!r}, now it is "
            f"{value!r}: take the former, or begin anew without --resume"
        )
