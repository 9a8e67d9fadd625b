"""One conversation with a local causal model: what it has read, and one step after another."""

from __future__ import annotations

import copy
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "foveate_decoding"
PREFILL = 512  # tokens read between two looks at the clock

Edit = Callable[[int, Tensor, Tensor], Tensor]
"""edit(layer, query (1, h, r, d), key (1, g, t, d)), both rotated, gives the query to use."""

_local = threading.local()


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a way of decoding is given.

    model: a twin (`twin`), whose modules may be hooked. prompt: token ids. bare: those of the same
    conversation without any passage. marked: for each prompt token, whether it stands in the
    evidence that is to be highlighted. deadline: of `time.monotonic`. edits: seen at each step.
    ends: tokens that end an answer; a contrast must not make one of them the whole answer.
    """

    model: PreTrainedModel
    prompt: Sequence[int]
    bare: Sequence[int] = ()
    marked: Sequence[bool] = ()
    deadline: float = float("inf")
    edits: tuple[Edit, ...] = ()
    ends: frozenset[int] = frozenset()

    def late(self) -> bool:
        return time.monotonic() >= self.deadline


class Decoding(Protocol):
    """Yield token ids, greedy among its own scores, until the caller stops or time is up."""

    def tokens(self, asked: Asked) -> Iterator[int]: ...


@dataclass(slots=True, eq=False)
class Session:
    """A model with a key-value cache.

    states: (t, d) last hidden states of all tokens read so far, where `keep_states` is set.
    """

    model: PreTrainedModel
    edits: tuple[Edit, ...] = ()
    keep_states: bool = False
    cache: Any = None
    n_read: int = 0
    states: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = new_cache(self.model)

    def read(self, ids: Sequence[int], asked: Asked) -> Tensor | None:
        """Read a prompt in blocks. Returns (v,) logits of the next token, None at the deadline."""
        logits = None
        for start in range(0, len(ids), PREFILL):
            if asked.late():
                return None
            logits = self.feed(ids[start : start + PREFILL])[-1]
        return logits

    def step(self, token: int) -> Tensor:
        """Read one token. Returns (v,) logits of the one after it."""
        return self.feed([token])[-1]

    def feed(self, ids: Sequence[int], **options: Any) -> Tensor:
        """Read tokens. Returns (1, v) logits after the last; (n, v) where states are kept."""
        given = torch.tensor([list(ids)], device=self.model.device)
        with edited(self.edits):
            if self.keep_states:
                found = self.model.base_model(
                    input_ids=given, use_cache=True, **self.cache, **options
                )
                states = found.last_hidden_state[0]
                self.states.append(states)
                model: Any = self.model  # its methods carry no types
                head = model.get_output_embeddings()
                logits: Tensor = head(states[-1:] if len(options) == 0 else states)
            else:
                logits = self.model(
                    input_ids=given, use_cache=True, logits_to_keep=1, **self.cache, **options
                ).logits[0]
        self.n_read += len(ids)
        return logits.float()


def new_cache(model: PreTrainedModel) -> dict[str, Any]:
    """Return an empty key-value cache under the name that this version's models take it by."""
    from transformers import DynamicCache

    taken = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in taken else "past_key_values"
    return {name: DynamicCache(config=model.config)}


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model that shares every weight with another, and whose attention can be edited.

    The other stays as it is, so that the rest of the program may use it meanwhile.

    Raises:
        ModelError: if its attention cannot be exchanged.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    shared: list[Tensor] = [*model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    made.set_attn_implementation(NAME)
    if made.config._attn_implementation != NAME:
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be exchanged: use decoding 'greedy'"
        )
    return made


@contextmanager
def edited(edits: Sequence[Edit]) -> Iterator[None]:
    """Let edits work on every attention that this thread computes with a twin."""
    before = getattr(_local, "edits", ())
    _local.edits = tuple(edits)
    try:
        yield
    finally:
        _local.edits = before


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Stand in for transformers' attention: query (1, h, r, d), key and value (1, g, t, d)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    for edit in getattr(_local, "edits", ()):
        query = edit(int(module.layer_idx), query, key)
    found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return found, None


def plausible(logits: Tensor, share: float) -> Tensor:
    """Return (v,) bool: tokens at least `share` as likely as the likeliest (arXiv 2210.15097)."""
    if share <= 0:
        return torch.ones_like(logits, dtype=torch.bool)
    log = logits.log_softmax(-1)
    return log >= log.max() + float(torch.tensor(share).log())


def started(among: Tensor, asked: Asked) -> Tensor:
    """Return the tokens that may begin an answer: no end, unless there is nothing else."""
    begins = among.clone()
    begins[[token for token in asked.ends if token < len(begins)]] = False
    return begins if bool(begins.any()) else among


def best(scores: Tensor, among: Tensor) -> int:
    """Return the best token among some; the first of equals."""
    return int(scores.masked_fill(~among, -torch.inf).argmax())
