"""Layer contrast: what the upper layers add to the lower ones (DoLa, arXiv 2309.03883)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from foveate.pipeline.decoding.session import Asked, Session, best, edited, plausible, started
from foveate.pipeline.errors import ConfigError


class LayerContrast:
    """Decode by log p(last layer) - log p(an earlier one), aware of what kind of token comes next.

    For each token the earlier layer is the one among the lower half whose distribution differs
    most from the last one's (Jensen-Shannon). Where even that one differs little, the token was
    decided early, as grammar is: it is then taken as it is. That threshold is ours, as DoLa
    contrasts every token.

    Args:
        least: divergence, 0..ln 2, from which a token is contrasted. share: of the likeliest
            token's probability that a token must have. step: every so many layers is looked at.
    """

    def __init__(self, *, least: float = 0.3, share: float = 0.1, step: int = 2) -> None:
        if not 0 <= least <= 1 or not 0 < share <= 1 or step < 1:
            raise ConfigError(
                "decoding 'layers' takes least in 0..1, share in 0..1 and step >= 1, got "
                f"{least!r}, {share!r}, {step!r}"
            )
        self.least, self.share, self.step = least, share, step

    def tokens(self, asked: Asked) -> Iterator[int]:
        session = Session(asked.model, asked.edits)
        block = list(asked.prompt)
        if session.read(block[:-1], asked) is None and len(block) > 1:
            return
        token, first = block[-1], True
        while not asked.late():
            last, earlier = self._layers(session, token)
            if first:
                last = last.masked_fill(~started(torch.ones_like(last) > 0, asked), -1e9)
            token, first = self.choose(last, earlier), False
            yield token

    def choose(self, last: Tensor, earlier: Tensor) -> int:
        """Choose by the last layer's logits (v,) and some earlier layers' (n, v)."""
        final, lower = last.log_softmax(-1), earlier.log_softmax(-1)
        apart = divergence(final, lower)
        if not len(apart) or float(apart.max()) < self.least:
            return int(final.argmax())
        return best(final - lower[int(apart.argmax())], plausible(last, self.share))

    def _layers(self, session: Session, token: int) -> tuple[Tensor, Tensor]:
        """Read a token. Returns logits (v,) of the last layer and (n, v) of the earlier ones."""
        model: Any = session.model
        with edited(session.edits):
            found = model(
                input_ids=torch.tensor([[token]], device=model.device),
                use_cache=True,
                output_hidden_states=True,
                **session.cache,
            )
        session.n_read += 1
        states = found.hidden_states  # of the embedding, then of each layer; the last is normed
        looked = range(self.step, len(states) // 2 + 1, self.step)
        norm, head = model.base_model.norm, model.get_output_embeddings()
        lower = torch.stack([states[i][0, -1] for i in looked]) if looked else states[0][0, :0]
        return found.logits[0, -1].float(), head(norm(lower)).float()


def divergence(final: Tensor, lower: Tensor) -> Tensor:
    """Return (n,) Jensen-Shannon divergences of log-probabilities (v,) and (n, v)."""
    p, q = final.exp(), lower.exp()
    middle = ((p + q) / 2).clamp_min(1e-20).log()
    return 0.5 * ((p * (final - middle)).sum(-1) + (q * (lower - middle)).sum(-1))
