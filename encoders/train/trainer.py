"""The training loop: steps, checks on held-out queries, checkpoints, and the choice of weights.

A run that is killed and resumed gives, bit for bit, what one that was not gives: order, dropout
and draws depend on the seed and the step alone, and a checkpoint holds the weights, the
optimiser's moments and the best weights so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foveate.encoders.train import checkpoints, objectives
from foveate.encoders.train.batches import Batch, batches
from foveate.encoders.train.data import Example, Relevance, key_of
from foveate.encoders.train.judge import Judge
from foveate.encoders.train.trainable import frozen_roles

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.train.options import TrainOptions
    from foveate.encoders.train.trainable import Role, Trainable

    Tell = Callable[[str, int, int | None], None]

ROLES: dict[str, Role] = {"document": "passage"}


@dataclass(slots=True)
class Outcome:
    """What came of a run. scores: nDCG@10 on the held-out queries by what was tried."""

    finished: bool
    n_steps: int
    losses: list[float] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    part: float = 1.0
    n_trained: int = 0
    n_held_out: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class State:
    """Where a run is. best: the weights of the best check, by name."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    best_step: int = 0
    n_worse: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """Fit one trainable on examples.

    folder: where checkpoints are kept. known: what is relevant to which query, over more than
    the examples given. judge: tries weights on held-out queries; None trains to the end and
    keeps the last weights. stored: {key of an input: its vector (d,)} of a role that training
    cannot change, as an index has them; what is missing is computed once.
    """

    def __init__(
        self,
        trainable: Trainable,
        examples: Sequence[Example],
        options: TrainOptions,
        folder: Path,
        *,
        known: Relevance | None = None,
        judge: Judge | None = None,
        stored: Mapping[str, Tensor] | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._tower, self._examples, self._options = trainable, list(examples), options
        self._folder, self._judge = folder, judge
        self._known = known or Relevance.of(examples)
        self._tell = tell or (lambda stage, done, total: None)
        unlabelled = all(example.positive is None for example in examples)
        self._objective = objectives.choose(options.loss, unlabelled=unlabelled)
        self._parameters = dict(trainable.parameters())
        self._start = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._before: dict[tuple[str, str], Tensor] = {}
        self._fixed: dict[str, Tensor] = dict(stored or {})
        # epochs differ by a step or so in how their examples pack into batches
        self._lengths = [len(self._epoch(number)) for number in range(options.epochs)]
        self._n_steps = sum(self._lengths)
        self._optimiser = torch.optim.AdamW(
            list(self._parameters.values()), lr=options.rate, weight_decay=options.weight_decay
        )

    def run(self, *, resume: bool = False) -> Outcome:
        """Train to the end, or until `minutes` are over, and leave the chosen weights in place.

        Raises:
            ModelError: if the folder's checkpoint belongs to another start, data or options.
        """
        began = time.monotonic()
        state = self._restore() if resume else State()
        if not state.scores:
            self._check(state)
        every = max(self._n_steps // self._options.checks, 1)
        keep = max(self._n_steps // self._options.checkpoints, 1)
        ahead: list[Batch] = []
        while state.step < self._n_steps and not self._is_over(state):
            ahead = ahead or self._ahead(state.step)
            state.losses.append(self._step(ahead.pop(0), state.step))
            state.step += 1
            self._tell("train", state.step, self._n_steps)
            if state.step % every == 0 or state.step == self._n_steps:
                self._check(state)
            late = self._is_late(began) and state.step < self._n_steps
            if state.step % keep == 0 or late:
                self._keep(state)
            if late:
                return self._outcome(state, began, finished=False)
        part = self._choose(state)
        outcome = self._outcome(state, began, finished=True)
        outcome.part = part
        return outcome

    def _is_late(self, began: float) -> bool:
        return bool(self._options.minutes) and (
            time.monotonic() - began > 60 * self._options.minutes
        )

    def _is_over(self, state: State) -> bool:
        return 0 < self._options.patience <= state.n_worse

    def _ahead(self, step: int) -> list[Batch]:
        """Return the batches from a step to the end of its epoch."""
        for number, length in enumerate(self._lengths):
            if step < length:
                return self._epoch(number)[step:]
            step -= length
        return []

    def _epoch(self, number: int) -> list[Batch]:
        seed = self._options.seed * 100_003 + number
        return list(batches(self._examples, self._known, self._options.batch, seed=seed))

    def _step(self, batch: Batch, step: int) -> float:
        options = self._options
        for group in self._optimiser.param_groups:
            group["lr"] = options.rate * self._slope(step)
        self._optimiser.zero_grad(set_to_none=True)
        self._tower.train(True)
        loss = self._backward(batch, step)
        self._tower.train(False)
        if options.clip:
            torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), options.clip)
        self._optimiser.step()
        return loss

    def _slope(self, step: int) -> float:
        """Return the part of the largest rate: it rises in the warm-up, then falls to 0."""
        n_warm = max(round(self._options.warmup * self._n_steps), 1)
        if step < n_warm:
            return (step + 1) / n_warm
        return max(self._n_steps - step, 1) / max(self._n_steps - n_warm, 1)

    def _backward(self, batch: Batch, step: int) -> float:
        """Leave the batch's gradients in the parameters; return its loss.

        Gradient caching: vectors first without a graph, the loss's gradient by them, then each
        part again with its graph, from the same random state.
        """
        # first: it writes other weights for a while, which a graph would not survive
        before = self._vectors_before(batch) if self._options.anchor else None
        parts = {name: self._parts(inputs) for name, inputs in batch.columns.items()}
        n_parts = sum(len(some) for name, some in parts.items() if not self._is_fixed(name))
        cached = n_parts > len(batch.columns)
        with torch.set_grad_enabled(not cached):
            found = {
                name: torch.cat([self._embed(name, p, step, i) for i, p in enumerate(some)])
                for name, some in parts.items()
            }
        vectors = {n: v.detach().requires_grad_() for n, v in found.items()} if cached else found
        loss = objectives.total(self._objective, vectors, batch, self._options, before)
        loss.backward()  # type: ignore[no-untyped-call]
        if cached:
            for name, some in parts.items():
                gradient = vectors[name].grad
                if gradient is None or self._is_fixed(name):
                    continue
                first = 0
                for i, inputs in enumerate(some):
                    again = self._embed(name, inputs, step, i)
                    again.backward(gradient[first : first + len(inputs)])  # type: ignore[no-untyped-call]
                    first += len(inputs)
        return float(loss.detach())

    def _parts(self, inputs: Sequence[Any]) -> list[Sequence[Any]]:
        micro = self._options.micro
        return [inputs[i : i + micro] for i in range(0, len(inputs), micro)]

    def _is_fixed(self, column: str) -> bool:
        return ROLES.get(column, "query") in frozen_roles(self._tower)

    def _embed(self, column: str, inputs: Sequence[Any], step: int, part: int) -> Tensor:
        """Return the vectors of inputs from a random state that step, column and part decide."""
        role = ROLES.get(column, "query")
        if self._is_fixed(column):
            return self._fixed_vectors(inputs, role)
        place = sum(map(ord, column))
        with torch.random.fork_rng():
            torch.manual_seed((self._options.seed * 1_000_003 + step) * 4099 + place * 31 + part)
            return self._tower.embed(inputs, role)

    def _fixed_vectors(self, inputs: Sequence[Any], role: Role) -> Tensor:
        """Return vectors that training cannot change, each computed once."""
        fresh = {key_of(x): x for x in inputs if key_of(x) not in self._fixed}
        if fresh:
            with torch.no_grad():
                made = self._tower.embed(list(fresh.values()), role)
            self._fixed |= dict(zip(fresh, made, strict=True))
        return torch.stack([self._fixed[key_of(x)] for x in inputs])

    def _vectors_before(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the untrained vectors of a batch's columns, each input computed once."""
        found = {}
        for name, inputs in batch.columns.items():
            if name == "again" or self._is_fixed(name):
                continue
            role = ROLES.get(name, "query")
            fresh = {(role, key_of(x)): x for x in inputs}
            fresh = {k: x for k, x in fresh.items() if k not in self._before}
            if fresh:
                made = self._at(self._start, list(fresh.values()), role)
                self._before |= dict(zip(fresh, made, strict=True))
            found[name] = torch.stack([self._before[role, key_of(x)] for x in inputs])
        return found

    def _at(self, weights: Mapping[str, Tensor], inputs: list[Any], role: Role) -> Tensor:
        """Return vectors by other weights, without dropout."""
        now = self._copy()
        self._write(weights)
        self._tower.train(False)
        try:
            with torch.no_grad():
                return torch.cat([self._tower.embed(part, role) for part in self._parts(inputs)])
        finally:
            self._write(now)
            self._tower.train(True)

    def _copy(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    def _write(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def _check(self, state: State) -> None:
        """Try the weights on the held-out queries and remember the best."""
        if self._judge is None:
            return
        score = self._judge.score(self._tower, lambda n, m: self._tell("check", n, m))
        state.scores[f"step {state.step}"] = score
        if not state.best or score > state.scores[f"step {state.best_step}"]:
            state.best, state.best_step, state.n_worse = self._copy(), state.step, 0
        else:
            state.n_worse += 1

    def _choose(self, state: State) -> float:
        """Put the weights in place that do best, nearer to the start where that costs little."""
        if self._judge is None:
            return 1.0
        base = state.scores["step 0"]
        if state.best_step == 0:
            self._write(self._start)
            return 0.0
        tried = {0.0: base, 1.0: state.scores[f"step {state.best_step}"]}
        for part in sorted(self._options.interpolate):
            if part not in tried:
                self._write(self._between(state.best, part))
                tried[part] = self._judge.score(
                    self._tower, lambda n, m: self._tell("choose", n, m)
                )
                state.scores[f"part {part:g}"] = tried[part]
        gain = max(tried.values()) - base
        enough = [p for p, score in tried.items() if score - base >= self._options.keep_gain * gain]
        part = min(enough) if gain > 0 else 0.0
        self._write(self._between(state.best, part))
        return part

    def _between(self, best: Mapping[str, Tensor], part: float) -> dict[str, Tensor]:
        return {n: torch.lerp(start, best[n], part) for n, start in self._start.items()}

    def _identity(self) -> dict[str, Any]:
        """Return what a checkpoint must have been made with to be gone on with."""
        made = "".join(key_of(x) for e in self._examples for x in (e.query, e.positive))
        return {
            "start": self._tower.fingerprint(),
            "options": {k: v for k, v in asdict(self._options).items() if k != "minutes"},
            "examples": checkpoints.digest(made),
        }

    def _keep(self, state: State) -> None:
        checkpoints.write(
            self._folder, self._identity(), state, self._copy(), self._optimiser.state_dict()
        )

    def _restore(self) -> State:
        kept = checkpoints.read(self._folder, self._identity())
        if kept is None:
            return State()
        state, weights, moments = kept
        self._write(weights)
        self._optimiser.load_state_dict(moments)
        return state

    def _outcome(self, state: State, began: float, *, finished: bool) -> Outcome:
        return Outcome(
            finished=finished,
            n_steps=state.step,
            losses=state.losses,
            scores=state.scores,
            n_trained=len(self._examples),
            n_held_out=self._judge.n_queries if self._judge else 0,
            seconds=time.monotonic() - began,
        )


def mean_of(losses: Sequence[float], n: int = 20) -> float:
    """Return the mean of the last n losses, NaN where there are none."""
    some = losses[-n:]
    return sum(some) / len(some) if some else math.nan
