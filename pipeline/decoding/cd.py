"""Contrastive decoding: an expert minus an amateur (Li et al., arXiv 2210.15097)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from foveate.pipeline.decoding.session import Asked, Session, best, plausible, started
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ExpertMinusAmateur:
    """Decode by log p(expert) - log p(amateur), among what the expert finds plausible.

    Args:
        amateur: path or name of a smaller model with the same tokens. '' takes the expert's own
            first layers with its output layer, which costs no second model.
        depth: share of the expert's layers that such an amateur has.
        share: of the likeliest token's probability that a token must have, alpha of the paper.
    """

    def __init__(self, *, amateur: str = "", depth: float = 0.5, share: float = 0.1) -> None:
        if not 0 < depth <= 1 or not 0 < share <= 1:
            raise ConfigError(
                f"decoding 'cd' takes depth and share in 0..1 and above 0, got {depth!r}, {share!r}"
            )
        self.depth, self.share = depth, share
        self._name = amateur
        self._amateur: PreTrainedModel | None = None

    def tokens(self, asked: Asked) -> Iterator[int]:
        expert, amateur = Session(asked.model, asked.edits), Session(self.amateur(asked.model))
        strong = expert.read(asked.prompt, asked)
        weak = amateur.read(asked.prompt, asked)
        first = True
        while strong is not None and weak is not None and not asked.late():
            scores = strong.log_softmax(-1) - weak.log_softmax(-1)
            among = plausible(strong, self.share)
            # where the two agree everywhere there is nothing to choose by but the expert
            if float((scores[among] - scores[among].mean()).abs().max()) < 1e-6:
                scores = strong
            token = best(scores, started(among, asked) if first else among)
            first = False
            yield token
            strong, weak = expert.step(token), amateur.step(token)

    def amateur(self, expert: PreTrainedModel) -> PreTrainedModel:
        """Return the amateur, made once.

        Raises:
            ModelError: if its tokens are not the expert's.
        """
        if self._amateur is None:
            if self._name:
                from pathlib import Path

                from foveate.pipeline.reader import Reader

                path = Path(self._name).expanduser()
                made = Reader(self._name, path=path if path.exists() else None).model
            else:
                made = first_layers(expert, self.depth)
            if made.config.vocab_size != expert.config.vocab_size:
                raise ModelError(
                    f"decoding 'cd' needs an amateur with the expert's {expert.config.vocab_size} "
                    f"tokens, got {made.config.vocab_size} in {self._name!r}"
                )
            self._amateur = made
        return self._amateur


def first_layers(model: PreTrainedModel, depth: float) -> PreTrainedModel:
    """Return a model of another's first layers and its output layer, sharing the weights.

    Raises:
        ModelError: if the model does not keep its layers where they are looked for.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    made: Any = copy.deepcopy(model, shared)
    layers = getattr(made.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(f"{type(model).__name__} has no list of layers: name an amateur")
    kept = max(1, round(depth * len(layers)))
    made.base_model.layers = layers[:kept]
    made.config.num_hidden_layers = kept
    if getattr(made.config, "layer_types", None):
        made.config.layer_types = list(made.config.layer_types)[:kept]
    return made  # type: ignore[no-any-return]
