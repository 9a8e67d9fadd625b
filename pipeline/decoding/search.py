"""Contrastive search: likely, and unlike what stands there already (SimCTG, arXiv 2202.06417)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from foveate.pipeline.decoding.session import Asked, Session
from foveate.pipeline.errors import ConfigError


class ContrastiveSearch:
    """Decode by (1 - alpha) p(v) - alpha max cos(h_v, h_j) over the likeliest tokens (equation 5).

    The candidates' states come from one forward pass: they stand side by side after the text, each
    seeing the text and itself.

    Args:
        alpha: weight of the penalty; 0 is greedy. k: candidates of a step.
    """

    def __init__(self, *, alpha: float = 0.6, k: int = 5) -> None:
        if not 0 <= alpha <= 1 or k < 1:
            raise ConfigError(
                "decoding 'contrastive-search' takes alpha in 0..1 and k >= 1, got "
                f"{alpha!r}, {k!r}"
            )
        self.alpha, self.k = alpha, k

    def tokens(self, asked: Asked) -> Iterator[int]:
        session = Session(asked.model, asked.edits, keep_states=True)
        logits = session.read(asked.prompt, asked)
        if logits is None:
            return
        seen = normalize(torch.cat(session.states).float(), dim=-1)  # (t, d)
        while not asked.late():
            chances, ids = logits.softmax(-1).topk(min(self.k, len(logits)))
            after, states = self._look(session, ids)
            states = normalize(states, dim=-1)
            chosen = int(self.scores(chances, states, seen).argmax())
            yield int(ids[chosen])
            keep(session, chosen, len(ids))
            seen = torch.cat([seen, states[chosen : chosen + 1]])
            logits = after[chosen]

    def scores(self, chances: Tensor, states: Tensor, seen: Tensor) -> Tensor:
        """Return (k,): chances (k,) less likeness of states (k, d) to seen (t, d), all unit."""
        alike = (states @ seen.T).max(dim=1).values
        return (1 - self.alpha) * chances - self.alpha * alike

    def _look(self, session: Session, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (k, v) and states (k, d) after each candidate."""
        n, k = session.n_read, len(ids)
        beside = torch.eye(k, dtype=torch.bool, device=ids.device)
        before = torch.ones(k, n, dtype=torch.bool, device=ids.device)
        mask = torch.cat([before, beside], dim=1)[None, None]  # (1, 1, k, n + k)
        places = torch.full((1, k), n, device=ids.device)
        logits = session.feed(ids.tolist(), attention_mask=mask, position_ids=places)
        return logits, session.states.pop().float()


def keep(session: Session, chosen: int, k: int) -> None:
    """Leave only the chosen one of the last k tokens in a session's cache."""
    cache: Any = next(iter(session.cache.values()))
    first = session.n_read - k
    for layer in cache.layers:
        for name in ("keys", "values"):
            stored = getattr(layer, name)
            stored[:, :, first] = stored[:, :, first + chosen]
            setattr(layer, name, stored[:, :, : first + 1])
    session.n_read = first + 1
