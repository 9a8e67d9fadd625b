"""A generator that somebody watches while it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Generator


class Watched:
    """Passes each piece on and tells it as ('draft', piece). What the watcher raises ends it."""

    def __init__(self, generator: Generator, watch: Callable[[str, Any], None]) -> None:
        self.name = generator.name
        self.window_tokens = generator.window_tokens
        self._generator = generator
        self._watch = watch

    def count_tokens(self, text: str) -> int:
        return self._generator.count_tokens(text)

    def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Iterator[str]:
        for piece in self._generator.generate(
            messages, max_tokens=max_tokens, stop=stop, timeout_s=timeout_s
        ):
            self._watch("draft", piece)
            yield piece
