"""Focus directions: turn the queries of contextual heads to the passage that matters.

After arXiv 2503.23306, with the query's direction alone: a vector that is added to every key only
shifts each row's logits by a constant, so that the direction of the keys has no effect.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foveate.pipeline.decoding import calibration
from foveate.pipeline.decoding.greedy import Greedy
from foveate.pipeline.decoding.session import Asked, Edit, edited
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from foveate.pipeline.reader import Reader

N_PROMPTS, N_PASSAGES = 32, 5
N_HEADS = 20
EPOCHS, RATE = 10, 1e-3

Prompt = tuple[Sequence[int], tuple[int, int], int]
"""(ids, [start, end) of the gold passage's tokens, first row of the response)."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Of one prompt and layer: queries (h, r, d) of the response, keys (g, t, d), where gold is."""

    queries: Tensor
    keys: Tensor
    gold: tuple[int, int]


class FocusDirections:
    """Greedy decoding with a direction added to the rotated queries of some heads.

    Args:
        reader: whose tokens and model the directions are learned with.
        factor: how far; 0 is greedy.
    """

    def __init__(self, *, reader: Reader | None = None, factor: float = 0.2) -> None:
        if factor < 0:
            raise ConfigError(f"decoding 'focus' takes factor >= 0, got {factor!r}")
        self.factor = factor
        self._reader = reader
        self._directions: dict[int, Tensor] = {}

    def tokens(self, asked: Asked) -> Iterator[int]:
        edit = shift(self.directions(asked.model), self.factor)
        yield from Greedy().tokens(replace(asked, edits=(edit, *asked.edits)))

    def prepare(self, model: PreTrainedModel) -> None:
        """Learn the directions, once."""
        self.directions(model)

    def directions(self, model: PreTrainedModel) -> dict[int, Tensor]:
        """Return {layer: (h, d)}, zero for heads that stay as they are; learned on first use."""
        if not self._directions:
            made = calibration.kept(model, "focus", lambda: self._learn(model))
            self._directions = {int(name): tensor for name, tensor in made.items()}
        return self._directions

    def _learn(self, model: PreTrainedModel) -> dict[str, Tensor]:
        if self._reader is None:
            raise ModelError("decoding 'focus' learns with a reader's tokens: give reader=")
        learned = learn(model, prompts(self._reader), n_heads=N_HEADS)
        return {str(layer): tensor for layer, tensor in learned.items()}


def shift(directions: dict[int, Tensor], factor: float) -> Edit:
    """Return an edit that adds a direction to each query of a layer."""

    def edit(layer: int, query: Tensor, key: Tensor) -> Tensor:
        direction = directions.get(layer)
        if direction is None or factor == 0:
            return query
        return query + factor * direction.to(query.dtype)[None, :, None]

    return edit


def prompts(reader: Reader) -> list[Prompt]:
    """Make prompts of several facts in chance order, a question on one, and its answer."""
    draw = random.Random(1)
    facts = calibration.facts(N_PROMPTS * N_PASSAGES, seed=1)
    made: list[Prompt] = []
    for n in range(N_PROMPTS):
        some = facts[n * N_PASSAGES : (n + 1) * N_PASSAGES]
        chosen = draw.randrange(N_PASSAGES)
        ids: list[int] = []
        gold = (0, 0)
        for i, fact in enumerate(some):
            start = len(ids)
            ids += reader.encode(f"{fact.text}\n")
            gold = (start, len(ids)) if i == chosen else gold
        ids += reader.encode(f"Question: {some[chosen].question}\nAnswer:")
        first = len(ids) - 1
        made.append(([*ids, *reader.encode(f" {some[chosen].answer}")], gold, first))
    return made


def learn(model: PreTrainedModel, data: Sequence[Prompt], *, n_heads: int) -> dict[int, Tensor]:
    """Learn the directions of the heads that look at the gold passage most."""
    # a caller may be in inference mode, whose tensors take no gradient
    with torch.inference_mode(False):
        rows = [watch(model, *prompt) for prompt in data]
        return fit_best(rows, n_heads)


def fit_best(rows: Sequence[dict[int, Rows]], n_heads: int) -> dict[int, Tensor]:
    """Choose the heads by what the response rows of each prompt look at, and fit them."""
    layers = sorted(rows[0])
    looks = [[gold_mass(r[layer].queries, r[layer]) for r in rows] for layer in layers]
    mass = torch.stack([torch.stack(some).mean(0) for some in looks])  # (l, h)
    best = mass.flatten().topk(min(n_heads, mass.numel())).indices.tolist()
    chosen: dict[int, list[int]] = {}
    for place in best:
        chosen.setdefault(layers[place // mass.shape[1]], []).append(place % mass.shape[1])
    return {layer: fit([r[layer] for r in rows], heads) for layer, heads in chosen.items()}


@torch.no_grad()
def watch(
    model: PreTrainedModel, ids: Sequence[int], gold: tuple[int, int], first: int
) -> dict[int, Rows]:
    """Read one prompt and keep each layer's rotated queries of the response, and its keys."""
    seen: dict[int, Rows] = {}

    def keep(layer: int, query: Tensor, key: Tensor) -> Tensor:
        seen[layer] = Rows(query[0, :, first:].float().clone(), key[0].float().clone(), gold)
        return query

    given: Any = torch.tensor([list(ids)], device=model.device)
    with edited((keep,)):
        model.base_model(input_ids=given, use_cache=False)
    if not seen:
        raise ModelError("decoding 'focus' needs a twin of the model")
    return seen


def gold_mass(queries: Tensor, rows: Rows) -> Tensor:
    """Return (h,) the mean attention of response rows (h, r, d) on the gold passage."""
    h, r, d = queries.shape
    keys = rows.keys.repeat_interleave(h // rows.keys.shape[0], dim=0)  # (h, t, d)
    logits = queries @ keys.transpose(1, 2) / d**0.5
    t = keys.shape[1]
    later = torch.arange(t)[None] > torch.arange(t - r, t)[:, None]
    chances = logits.masked_fill(later.to(logits.device), -torch.inf).softmax(-1)
    mass: Tensor = chances[..., rows.gold[0] : rows.gold[1]].sum(-1).mean(-1)
    return mass


def fit(rows: Sequence[Rows], heads: Sequence[int]) -> Tensor:
    """Return (h, d): directions that raise the gold passage's attention, zero for other heads."""
    h, _, d = rows[0].queries.shape
    draw = torch.Generator().manual_seed(0)
    direction = (0.01 * torch.randn(h, d, generator=draw)).requires_grad_()
    chosen = torch.zeros(h, 1)
    chosen[list(heads)] = 1.0
    step = torch.optim.AdamW([direction], lr=RATE)
    with torch.enable_grad():
        for _ in range(EPOCHS):
            for one in rows:
                moved = one.queries.clone() + direction[:, None]
                loss = -(gold_mass(moved, one) * chosen[:, 0]).sum() / len(heads)
                step.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                step.step()
    fitted: Tensor = (direction * chosen).detach()
    return fitted
