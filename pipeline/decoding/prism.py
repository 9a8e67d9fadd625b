"""Evidence highlighting by steering keys and values (PRISM-delta, arXiv 2603.10705)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from foveate.pipeline.decoding import calibration
from foveate.pipeline.decoding.session import Asked, Session
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from foveate.pipeline.reader import Reader

N_FACTS = 96
_local = threading.local()

Triple = tuple[Sequence[int], tuple[int, int], Sequence[int], Sequence[int]]
"""(context ids, [start, end) of the answer's tokens in them, relevant, irrelevant question ids)."""


class Highlight:
    """Greedy decoding over a prompt whose evidence was stressed while it was read.

    Of each highlighted token, before rotation, k becomes k + key_gain w P k, and v likewise, where
    P projects on the directions in which a relevant question moves the keys of its answer more
    than an irrelevant one does. No further pass is needed.

    Args:
        reader: whose tokens and model the directions are learned with.
        key_gain, value_gain: g_K and g_V of the paper. mass: part of the singular values that P
            keeps. least: movement from which a head takes part.
    """

    def __init__(
        self,
        *,
        reader: Reader | None = None,
        key_gain: float = 0.4,
        value_gain: float = 0.1,
        mass: float = 0.998,
        least: float = 0.08,
    ) -> None:
        if not 0 < mass <= 1 or least < 0:
            raise ConfigError(
                f"decoding 'prism' takes mass in 0..1 and least >= 0, got {mass!r}, {least!r}"
            )
        self.gains = {"key": key_gain, "value": value_gain}
        self.mass, self.least = mass, least
        self._reader = reader
        self._steered: PreTrainedModel | None = None
        self._directions: dict[str, Tensor] = {}

    def tokens(self, asked: Asked) -> Iterator[int]:
        self.prepare(asked.model)
        session = Session(asked.model, asked.edits)
        marked = torch.tensor(list(asked.marked), dtype=torch.bool)
        # what is highlighted stands in the prompt: the steps after it need nothing
        with highlighted(marked, session):
            logits = session.read(asked.prompt, asked)
        while logits is not None and not asked.late():
            token = int(logits.argmax())
            yield token
            logits = session.step(token)

    def prepare(self, model: PreTrainedModel) -> None:
        """Learn the directions and hook a model's keys and values, once."""
        if self._steered is model:
            return
        if not self._directions:
            self._directions = calibration.kept(
                model, f"prism-{self.mass}-{self.least}", lambda: self._learn(model)
            )
        for kind, modules in projections(model).items():
            for layer, module in modules.items():
                steer = self._steer(kind, layer)
                module.register_forward_hook(steer)
        self._steered = model

    def _learn(self, model: PreTrainedModel) -> dict[str, Tensor]:
        if self._reader is None:
            raise ModelError("decoding 'prism' learns with a reader's tokens: give reader=")
        return learn(model, triples(self._reader), mass=self.mass, least=self.least)

    def _steer(self, kind: str, layer: int) -> Any:
        projector = self._directions[f"{kind}.projector"][layer]  # (g, d, d)
        weight = self.gains[kind] * self._directions[f"{kind}.weight"][layer]  # (g,)

        def hook(module: Any, given: Any, made: Tensor) -> Tensor | None:
            rows = marked_rows(made.shape[1])
            if rows is None or not bool(weight.any()):
                return None
            heads = made.reshape(*made.shape[:2], *projector.shape[:1], projector.shape[-1])
            some = heads[:, rows]  # (1, m, g, d)
            moved = torch.einsum("gij,bmgj->bmgi", projector.to(some.dtype), some)
            steered = heads.clone()
            steered[:, rows] = some + weight.to(some.dtype)[:, None] * moved
            return steered.reshape(made.shape)

        return hook


@contextmanager
def highlighted(marked: Tensor, session: Session) -> Iterator[None]:
    """Let hooks know which of a session's tokens are highlighted. marked: (t,) bool."""
    _local.now = (marked, session)
    try:
        yield
    finally:
        _local.now = None


def marked_rows(n: int) -> Tensor | None:
    """Return the places, among the n tokens that are being read, of those highlighted."""
    now = getattr(_local, "now", None)
    if now is None:
        return None
    marked, session = now
    rows = marked[session.n_read : session.n_read + n].nonzero()[:, 0]
    return rows if len(rows) else None


def projections(model: PreTrainedModel) -> dict[str, dict[int, Any]]:
    """Return {'key' | 'value': {layer: the module whose output is that}}, before rotation.

    Raises:
        ModelError: if the model's layers have no such modules.
    """
    found: dict[str, dict[int, Any]] = {"key": {}, "value": {}}
    modules: list[Any] = list(model.modules())
    for module in modules:
        if hasattr(module, "k_proj") and hasattr(module, "layer_idx"):
            layer = int(module.layer_idx)
            found["key"][layer] = getattr(module, "k_norm", None) or module.k_proj
            found["value"][layer] = module.v_proj
    if not found["key"]:
        raise ModelError(f"{type(model).__name__} has no k_proj: decoding 'prism' cannot steer it")
    return found


def triples(reader: Reader) -> list[Triple]:
    """Make contexts with a relevant and an irrelevant question each."""
    made: list[Triple] = []
    facts = calibration.facts(2 * N_FACTS)
    for fact, other in zip(facts[:N_FACTS], facts[N_FACTS:], strict=True):
        before = reader.encode(fact.text[: fact.span[0]].rstrip())
        # the blank belongs to the answer's first token, as it would in running text
        within = reader.encode(f" {fact.answer}")
        after = reader.encode(fact.text[fact.span[1] :])
        span = (len(before), len(before) + len(within))
        asked = reader.encode(f"{fact.question} "), reader.encode(f"{other.question} ")
        made.append(([*before, *within, *after], span, *asked))
    return made


@torch.inference_mode()
def learn(
    model: PreTrainedModel, data: Sequence[Triple], *, mass: float, least: float
) -> dict[str, Tensor]:
    """Learn projectors (l, g, d, d) and weights (l, g) of keys and values.

    Omega = H'(H+ - H-) / n of the answers' keys alone, behind the relevant and behind the
    irrelevant question; P spans its left singular vectors up to a share `mass` of the singular
    values; s = |H+ - H-| / n, w = softplus(s - least), and a head with s < least is left alone.
    """
    config: Any = model.config.get_text_config()
    n_keys = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    rows: dict[tuple[str, int, int], list[Tensor]] = {}
    for context, (start, end), relevant, irrelevant in data:
        for which, question in enumerate(([], relevant, irrelevant)):
            made = outputs(model, [*question, *context])
            first = len(question) + start
            for (kind, layer), value in made.items():
                heads = value[first : first + end - start].float().reshape(end - start, n_keys, -1)
                rows.setdefault((kind, layer, which), []).append(heads)
    learned = {}
    for kind, modules in projections(model).items():
        parts = []
        for layer in sorted(modules):
            alone, near, far = (torch.cat(rows[kind, layer, n]) for n in range(3))
            parts.append(subspace(alone, near, far, mass, least))
        learned[f"{kind}.projector"] = torch.stack([projector for projector, _ in parts])
        learned[f"{kind}.weight"] = torch.stack([weight for _, weight in parts])
    return learned


def outputs(model: PreTrainedModel, ids: Sequence[int]) -> dict[tuple[str, int], Tensor]:
    """Return {(kind, layer): (t, g * d)} of one sequence."""
    made: dict[tuple[str, int], Tensor] = {}
    hooks = []

    def keep(kind: str, layer: int) -> Any:
        def hook(module: Any, given: Any, value: Tensor) -> None:
            made[kind, layer] = value[0].flatten(1)

        return hook

    for kind, modules in projections(model).items():
        for layer, module in modules.items():
            hooks.append(module.register_forward_hook(keep(kind, layer)))
    try:
        model.base_model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False)
    finally:
        for handle in hooks:
            handle.remove()
    return made


def subspace(
    alone: Tensor, relevant: Tensor, irrelevant: Tensor, mass: float, least: float
) -> tuple[Tensor, Tensor]:
    """Return (g, d, d) projectors and (g,) weights of one layer from (n, g, d) keys."""
    n, n_keys, dim = alone.shape
    projectors, weights = torch.zeros(n_keys, dim, dim), torch.zeros(n_keys)
    for head in range(n_keys):
        moved = relevant[:, head] - irrelevant[:, head]
        size = float(moved.norm()) / n
        if size < least or size == 0:
            continue
        left, values, _ = torch.linalg.svd(alone[:, head].T @ moved / n)
        share = values.cumsum(0) / values.sum()
        rank = int((share < mass).sum()) + 1
        basis = left[:, :rank]
        projectors[head] = basis @ basis.T
        weights[head] = softplus(torch.tensor(size - least))
    return projectors, weights
