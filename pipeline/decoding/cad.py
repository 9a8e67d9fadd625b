"""Context-aware decoding: what the passages change counts more (Shi et al., arXiv 2305.14739)."""

from __future__ import annotations

from collections.abc import Iterator

from foveate.pipeline.decoding.session import Asked, Session, best, plausible, started
from foveate.pipeline.errors import ConfigError


class ContextAware:
    """Decode by (1 + alpha) l(with passages) - alpha l(without), two forward passes a token.

    Args:
        alpha: how much the passages are stressed; 0 is greedy.
        share: only tokens at least this share as likely as the likeliest with passages; 0 for all.
    """

    def __init__(self, *, alpha: float = 0.5, share: float = 0.1) -> None:
        if alpha < 0 or not 0 <= share <= 1:
            raise ConfigError(
                f"decoding 'cad' takes alpha >= 0 and share in 0..1, got {alpha!r}, {share!r}"
            )
        self.alpha, self.share = alpha, share

    def tokens(self, asked: Asked) -> Iterator[int]:
        informed, blind = Session(asked.model, asked.edits), Session(asked.model)
        given = informed.read(asked.prompt, asked)
        absent = blind.read(asked.bare, asked)
        first = True
        while given is not None and not asked.late():
            scores = given
            if absent is not None:
                with_, without = given.log_softmax(-1), absent.log_softmax(-1)
                scores = (1 + self.alpha) * with_ - self.alpha * without
            among = plausible(given, self.share)
            token = best(scores, started(among, asked) if first else among)
            first = False
            yield token
            given = informed.step(token)
            if absent is not None:
                absent = blind.step(token)
