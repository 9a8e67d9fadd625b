"""A local causal language model, decoded greedily or nearer to its passages. All stays here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline import registry
from foveate.pipeline.completion import Stream, Usage, until
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.reader import DEFAULT, Reader

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from foveate.pipeline.decoding.session import Decoding

REPEATS = 3  # the same tokens so often in a row are an endless repeat
LONGEST_REPEAT = 48  # tokens


class Transformers:
    """Stream the answer of a `Reader`.

    Args:
        reader: a loaded reader to share; else one is made of the other options.
        model: name of the model, as of `Reader`. path, dtype, device, hub, cache: as of `Reader`.
        decoding: a registered way of decoding, or a table of `use` and its options.
    """

    def __init__(
        self,
        model: str = DEFAULT,
        *,
        reader: Reader | None = None,
        decoding: str | Mapping[str, Any] = "greedy",
        **options: Any,
    ) -> None:
        self.reader = reader if reader is not None else Reader(model, **options)
        self.name = f"transformers:{self.reader.name}"
        self.reads = frozenset({"text"})
        self.decoding = make_decoding(decoding, self.reader)
        self._busy = threading.Lock()
        self._twin: PreTrainedModel | None = None

    @property
    def window_tokens(self) -> int:
        return self.reader.window_tokens

    def count_tokens(self, text: str) -> int:
        return self.reader.count_tokens(text)

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Stream:
        """Yield the answer piece by piece; closing the iterator stops the work.

        A message's keys `question`, `passages` and `evidence`, as `prompt.build` gives them, are
        for the ways of decoding that need them.

        Raises:
            ModelError: if the prompt and max_tokens do not fit into the model's window.
        """
        stream = Stream(())
        return stream.follow(self._stream(messages, max_tokens, stop, timeout_s, stream))

    def _stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        stop: Sequence[str],
        timeout_s: float,
        stream: Stream,
    ) -> Iterator[str]:
        # loading and learning are not the answer's time
        prepare = getattr(self.decoding, "prepare", None)
        if prepare is not None:
            prepare(self.twin())
        _ = self.reader.model
        deadline = time.monotonic() + timeout_s
        ids = self.reader.encode_chat(messages)
        if len(ids) + max_tokens > self.window_tokens:
            raise ModelError(
                f"expected at most {self.window_tokens - max_tokens} prompt tokens, got {len(ids)}"
            )
        # one answer at a time: two would only share the same cores
        with self._busy:
            yield from until(self._pieces(messages, ids, max_tokens, deadline, stream), stop)

    def _pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        prompt: list[int],
        max_tokens: int,
        deadline: float,
        stream: Stream,
    ) -> Iterator[str]:
        """Decode token ids as they come; an unfinished character waits for its rest."""
        from foveate.pipeline.decoding.reading import Watch, marked, spans_of
        from foveate.pipeline.decoding.session import Asked

        model = self.twin()
        spans = spans_of(self.reader, messages, prompt)
        watch = Watch(len(prompt), int(model.config.num_hidden_layers) // 3)
        last = messages[-1]
        bare = [*messages[:-1], {"role": last["role"], "content": last.get("question", "")}]
        asked = Asked(
            model,
            prompt,
            bare=self.reader.encode_chat(bare) if last.get("question") else (),
            marked=marked(spans, last.get("evidence", ())),
            deadline=deadline,
            edits=(watch,),
            ends=self.reader.end_tokens(),
        )
        ids: list[int] = []
        ends: list[int] = []
        begin = length = 0
        try:
            for token in self._tokens(asked, max_tokens):
                ids.append(token)
                piece = self.reader.decode(ids[begin:])
                if piece and not piece.endswith("\ufffd"):
                    # what is still undecodable inside never becomes a character
                    piece = piece.replace("\ufffd", "")
                    length += len(piece)
                    ends.append(length)
                    begin = len(ids)
                    yield piece
                else:
                    ends.append(length)
        finally:
            stream.usage = Usage(len(prompt), len(ids))
            stream.attention = watch.attended(spans, ends)

    def _tokens(self, asked: Any, max_tokens: int) -> Iterator[int]:
        """Yield token ids until the end, the limit, the deadline or a repeat."""
        import torch

        ends = self.reader.end_tokens()
        out: list[int] = []
        with torch.inference_mode():
            for token in self.decoding.tokens(asked):
                if token in ends:
                    return
                out.append(token)
                yield token
                if len(out) >= max_tokens or repeats(out) or asked.late():
                    return

    def twin(self) -> PreTrainedModel:
        """The reader's model, with attention that can be watched and edited; made once."""
        if self._twin is None:
            from foveate.pipeline.decoding.session import twin

            self._twin = twin(self.reader.model)
        return self._twin


def make_decoding(chosen: str | Mapping[str, Any], reader: Reader) -> Decoding:
    """Build a way of decoding by its name.

    Raises:
        UnknownComponent: if nothing has the name.
        ConfigError: for options that it does not take.
    """
    options: dict[str, Any] = {"use": chosen} if isinstance(chosen, str) else dict(chosen)
    name = options.pop("use", None)
    if not isinstance(name, str):
        raise ConfigError(f'[generate] decoding needs use = "<name>", got {chosen!r}')
    kind = registry.find("decoding", name)
    if name in ("prism", "focus"):
        options["reader"] = reader
    try:
        made: Decoding = kind(**options)
    except TypeError as error:
        raise ConfigError(f"[generate] decoding {name!r}: {error}") from error
    return made


def repeats(ids: Sequence[int]) -> bool:
    """Whether the tokens end in the same run again and again."""
    for n in range(1, min(LONGEST_REPEAT, len(ids) // REPEATS) + 1):
        # a short run may be honest, as in "no, no, no": ask for more of them
        times = REPEATS if n >= 4 else 12 // n + REPEATS
        if len(ids) >= n * times and list(ids[-n:]) * times == list(ids[-n * times :]):
            return True
    return False
