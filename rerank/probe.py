"""Run packed sequences through any transformers causal model, and keep what chosen heads saw.

The model gets an attention function of ours under transformers' own registry, which every model
of the library calls with queries and keys as they are after rotation. It attends under a mask of
intervals (`foveate.kernels.masks`), keeps the wanted rows and keys, and stops the model at the
last layer that is asked for (METHODS.md's AttnProbe). No matrix of tokens by tokens is made.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from foveate.kernels.attention import Score, attention
from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "foveate_scan"
Head = tuple[int, int]

_local = threading.local()


class Reader(Protocol):
    """What the scan needs of the language model (`foveate.pipeline.reader.Reader` has it)."""

    name: str

    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def window_tokens(self) -> int: ...
    def special_tokens(self) -> tuple[str, ...]: ...


class _Enough(Exception):
    """The model has nothing more to say."""


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Tokens of several sequences in a row.

    ids, positions: (t,) int64. mask: (t, j, 2) int64, the keys that each row sees. rows: (r,)
    int64, those whose queries are kept.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Chosen attention heads of a model, in order, and the key heads that serve them.

    pairs: (layer, head) each. group: query heads that share a key head.
    """

    pairs: tuple[Head, ...]
    group: int

    @property
    def keys(self) -> tuple[Head, ...]:
        """(layer, key head) each, in order."""
        return tuple(sorted({(layer, head // self.group) for layer, head in self.pairs}))

    @property
    def owners(self) -> list[int]:
        """For each head, which of `keys` serves it."""
        place = {pair: i for i, pair in enumerate(self.keys)}
        return [place[layer, head // self.group] for layer, head in self.pairs]

    @property
    def last_layer(self) -> int:
        return max(layer for layer, _ in self.pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the chosen heads saw.

    queries: (h, r, d) of the kept rows. keys: (g, t, d), one row of each token for each of
    `Heads.keys`. scores: how each head's products become logits. windows: how far back each head
    sees, None for all the way.
    """

    queries: Tensor
    keys: Tensor
    scores: tuple[Score, ...]
    windows: tuple[int | None, ...]


@dataclass(slots=True, eq=False)
class _Watch:
    pack: Pack
    by_layer: dict[int, list[int]]
    group: int
    last: int
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    windows: list[int | None] = field(default_factory=list)

    def keep(
        self, layer: int, queries: Tensor, keys: Tensor, score: Score, window: int | None
    ) -> None:
        heads = self.by_layer.get(layer)
        if not heads:
            return
        self.queries.append(queries[heads][:, self.pack.rows])
        self.keys.append(keys[sorted({head // self.group for head in heads})])
        self.scores += [score] * len(heads)
        self.windows += [window] * len(heads)


def view(model: PreTrainedModel) -> Any:
    """Return the network without its output layer, watched, sharing every weight with the model.

    The model itself stays as it is, so that others may use it meanwhile.

    Raises:
        ModelError: if its attention cannot be exchanged.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    shared: list[Tensor] = [*model.parameters(), *model.buffers()]
    twin: Any = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    twin.set_attn_implementation(NAME)
    if twin.config._attn_implementation != NAME:
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be watched: use a reader whose "
            "transformers class has exchangeable attention, such as Llama, Qwen or Gemma"
        )
    return twin.base_model


def shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """Return how many layers, heads and key heads a model has."""
    config: Any = model.config.get_text_config()
    n_heads = int(config.num_attention_heads)
    n_keys = int(getattr(config, "num_key_value_heads", None) or n_heads)
    return int(config.num_hidden_layers), n_heads, n_keys


def choose(model: PreTrainedModel, pairs: Iterable[Sequence[int]] | None) -> Heads:
    """Check (layer, head) pairs against a model; None takes all of them.

    Raises:
        ModelError: for a head that the model lacks, or for none at all.
    """
    n_layers, n_heads, n_keys = shape(model)
    if pairs is None:
        pairs = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    chosen = tuple(sorted({(int(pair[0]), int(pair[1])) for pair in pairs}))
    wrong = [p for p in chosen if not (0 <= p[0] < n_layers and 0 <= p[1] < n_heads)]
    if wrong or not chosen:
        raise ModelError(
            f"expected heads as (layer, head) of {n_layers} layers and {n_heads} heads, "
            f"got {wrong[0] if wrong else 'none'}: find some with `foveate heads`"
        )
    return Heads(chosen, n_heads // n_keys)


@torch.inference_mode()
def look(network: Any, pack: Pack, heads: Heads) -> Seen:
    """Run the network over a pack up to the last chosen layer."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads.pairs:
        by_layer.setdefault(layer, []).append(head)
    device = network.device
    watch = _Watch(pack, by_layer, heads.group, heads.last_layer)
    _local.watch = watch
    try:
        network(
            input_ids=pack.ids[None].to(device),
            position_ids=pack.positions[None].to(device),
            use_cache=False,
        )
    except _Enough:
        pass
    finally:
        _local.watch = None
    if len(watch.scores) != len(heads.pairs):
        raise ModelError("the reader's layers have no attention to watch: use another reader")
    if len({keys.shape[-1] for keys in watch.keys}) > 1:
        raise ModelError("the chosen heads differ in size: choose heads of alike layers")
    queries, keys = torch.cat(watch.queries), torch.cat(watch.keys)
    return Seen(queries, keys, tuple(watch.scores), tuple(watch.windows))


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Stand in for transformers' attention: query (1, h, t, d), key and value (1, g, t, d)."""
    watch: _Watch | None = getattr(_local, "watch", None)
    if watch is None or options.get("s_aux") is not None:
        raise ModelError("the scan cannot watch this model's kind of attention")
    score = Score(scaling, options.get("softcap"))
    layer = int(module.layer_idx)
    window = options.get("sliding_window")
    watch.keep(layer, query[0], key[0], score, window)
    if layer == watch.last:
        raise _Enough
    mask = _near(watch.pack, window)
    found = attention(query[0], key[0], value[0], mask.to(query.device), score=score)
    return found.transpose(0, 1)[None], None


def _near(pack: Pack, window: int | None) -> Tensor:
    """Return the mask, with only the keys less than `window` positions back where a layer says.

    Raises:
        ModelError: if a run of keys would have to be cut in several places.
    """
    mask, positions = pack.mask, pack.positions
    if window is None or int(positions.max()) < window:
        return mask
    begins, ends = mask[..., 0], mask[..., 1]
    last = (ends - 1).clamp(min=0)
    first = begins.clamp(max=len(positions) - 1)
    steady = positions[last] - positions[first] == last - first
    if not bool((steady | (begins >= ends)).all()):
        raise ModelError(
            f"a layer of the reader sees {window} tokens only, fewer than the prompt has: "
            'take mode = "blind"'
        )
    skipped = (positions[:, None] - window + 1 - positions[first]).clamp(min=0)
    return torch.stack([torch.minimum(begins + skipped, ends), ends], -1)
