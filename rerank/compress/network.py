"""A small network as a JSON file: two layers, its inputs' names, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats

SHIPPED = "clauses.json"
N_WRONG, N_STEPS = 70, 100


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """score = tanh(standardised x W1 + b1) w2 + b2.

    names: of the f inputs. mean, deviation: (f,). layers: (W, b) each, W (in, out).
    """

    names: tuple[str, ...]
    mean: Floats
    deviation: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    def scores(self, features: Floats) -> Floats:
        """Return (n,) float32 of features (n, f) float32.

        Their softmax over the clauses of a question is the chance of each to hold the answer.
        """
        x = np.clip((features - self.mean) / self.deviation, -5, 5)
        for weights, bias in self.layers[:-1]:
            x = np.tanh(x @ weights + bias)
        weights, bias = self.layers[-1]
        found: Floats = (x @ weights + bias)[:, 0].astype(np.float32)
        return found

    def as_dict(self) -> dict[str, Any]:
        def rounded(array: Floats) -> Any:
            return [[round(float(x), 5) for x in row] for row in np.atleast_2d(array)]

        return {
            "names": list(self.names),
            "mean": rounded(self.mean)[0],
            "deviation": rounded(self.deviation)[0],
            "layers": [{"weights": rounded(w), "bias": rounded(b)[0]} for w, b in self.layers],
        }


def load(path: str | os.PathLike[str] | None = None, shipped: str = SHIPPED) -> Network:
    """Read a network from a file, the shipped one by default.

    Raises:
        ModelError: for a file that is none, or of other inputs than these features.
    """
    from foveate.rerank.compress.features import NAMES

    if path is None:
        place: Any = resources.files("foveate.rerank.compress") / "weights" / shipped
    else:
        place = Path(path).expanduser()
    try:
        table = json.loads(place.read_text(encoding="utf-8"))
        network = Network(
            tuple(table["names"]),
            np.asarray(table["mean"], dtype=np.float32),
            np.asarray(table["deviation"], dtype=np.float32),
            tuple(
                (np.asarray(one["weights"], np.float32), np.asarray(one["bias"], np.float32))
                for one in table["layers"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read the compressor's weights {str(place)!r}: {error}") from error
    if network.names != NAMES:
        raise ModelError(
            f"{str(place)!r} was fitted to other features: fit it again with `foveate fit clauses`"
        )
    return network


def fit(
    names: Sequence[str],
    features: Sequence[Floats],
    labels: Sequence[NDArray[np.bool_]],
    *,
    hidden: int = 16,
    n_members: int = 4,
    seed: int = 0,
) -> Network:
    """Fit a network to questions, each with the features (n, f) and labels (n,) of its clauses.

        loss = -log( sum over right clauses of e^s / sum over all clauses of e^s ),  the mean

    so that one right clause is enough. The mean of several fits is one network, their hidden
    units side by side.
    """
    stacked = np.concatenate(features)
    mean, deviation = stacked.mean(axis=0), stacked.std(axis=0) + 1e-3
    scaled = [np.clip((row - mean) / deviation, -5, 5) for row in features]
    members = [_member(scaled, labels, hidden, seed + i) for i in range(n_members)]
    first = np.concatenate([m[0] for m in members], axis=1)
    bias = np.concatenate([m[1] for m in members])
    last = (np.concatenate([m[2] for m in members]) / n_members).astype(np.float32)
    end = np.asarray([np.mean([m[3] for m in members])], dtype=np.float32)
    return Network(tuple(names), mean, deviation, ((first, bias), (last, end)))


def _member(
    scaled: Sequence[Floats], labels: Sequence[NDArray[np.bool_]], hidden: int, seed: int
) -> tuple[Floats, Floats, Floats, float]:
    """Fit one network; of a question's wrong clauses a drawn part stands for all."""
    import torch
    from torch.nn import functional

    rng = np.random.default_rng(seed)
    rows, right, owner, shift = [], [], [], []
    for i, (values, holds) in enumerate(zip(scaled, labels, strict=True)):
        wrong = np.flatnonzero(~holds)
        drawn = rng.choice(wrong, min(len(wrong), N_WRONG), replace=False)
        chosen = np.concatenate([np.flatnonzero(holds), drawn])
        rows.append(values[chosen])
        right.append(holds[chosen])
        owner.append(np.full(len(chosen), i))
        stands_for = np.log(max(1, len(wrong)) / max(1, len(drawn)))
        shift.append(np.where(holds[chosen], 0.0, stands_for))
    x = torch.from_numpy(np.concatenate(rows).astype(np.float32))
    y = torch.from_numpy(np.concatenate(right).astype(np.float32))
    of = torch.from_numpy(np.concatenate(owner))
    add = torch.from_numpy(np.concatenate(shift).astype(np.float32))
    none = torch.zeros(len(labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, last = torch.nn.Linear(x.shape[1], hidden), torch.nn.Linear(hidden, 1)
        parts = [*first.parameters(), *last.parameters()]
        optimiser = torch.optim.AdamW(parts, lr=2e-2, weight_decay=0.5)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, N_STEPS)
        for _ in range(N_STEPS):
            s = last(functional.dropout(torch.tanh(first(x)), 0.5))[:, 0] + add
            e = (s - s.detach().max()).exp()
            total = none.index_add(0, of, e)
            loss = -((none.index_add(0, of, e * y) + 1e-9) / (total + 1e-9)).log().mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    arrays = [p.detach().numpy() for p in (first.weight, first.bias, last.weight, last.bias)]
    return arrays[0].T.copy(), arrays[1].copy(), arrays[2].T.copy(), float(arrays[3][0])
