"""The likeliest token each time."""

from __future__ import annotations

from collections.abc import Iterator

from foveate.pipeline.decoding.session import Asked, Session


class Greedy:
    """What every other way is compared with."""

    def tokens(self, asked: Asked) -> Iterator[int]:
        session = Session(asked.model, asked.edits)
        logits = session.read(asked.prompt, asked)
        while logits is not None and not asked.late():
            token = int(logits.argmax())
            yield token
            logits = session.step(token)
