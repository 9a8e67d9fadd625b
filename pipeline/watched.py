"""A generator that somebody watches while it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.completion import Stream

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Generator


class Watched:
    """Passes each piece on and tells it as ('draft', piece). What the watcher raises ends it."""

    def __init__(self, generator: Generator, watch: Callable[[str, Any], None]) -> None:
        self.name = generator.name
        self.reads: frozenset[str] = getattr(generator, "reads", frozenset({"text"}))
        self.window_tokens = generator.window_tokens
        self._generator = generator
        self._watch = watch

    def count_tokens(self, text: str) -> int:
        return self._generator.count_tokens(text)

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Stream:
        inner = self._generator.generate(
            messages, max_tokens=max_tokens, stop=stop, timeout_s=timeout_s
        )
        stream = Stream(())
        return stream.follow(self._told(inner, stream))

    def _told(self, inner: Any, stream: Stream) -> Iterator[str]:
        for piece in inner:
            self._watch("draft", piece)
            yield piece
        stream.usage = getattr(inner, "usage", None)
        stream.attention = getattr(inner, "attention", None)
