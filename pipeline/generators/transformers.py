"""A local causal language model, decoded greedily. Nothing leaves the machine."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.completion import until
from foveate.pipeline.errors import ModelError
from foveate.pipeline.reader import DEFAULT, Reader

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PREFILL = 512  # tokens read between two looks at the clock
REPEATS = 3  # the same tokens so often in a row are an endless repeat
LONGEST_REPEAT = 48  # tokens


class Transformers:
    """Stream the greedy answer of a `Reader`.

    Args:
        reader: a loaded reader to share; else one is made of the other options.
        model: name of the model, as of `Reader`. path, dtype, device, hub, cache: as of `Reader`.
    """

    def __init__(
        self, model: str = DEFAULT, *, reader: Reader | None = None, **options: Any
    ) -> None:
        self.reader = reader if reader is not None else Reader(model, **options)
        self.name = f"transformers:{self.reader.name}"
        self._busy = threading.Lock()

    @property
    def window_tokens(self) -> int:
        return self.reader.window_tokens

    def count_tokens(self, text: str) -> int:
        return self.reader.count_tokens(text)

    def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Iterator[str]:
        """Yield the answer piece by piece; closing the iterator stops the work.

        Raises:
            ModelError: if the prompt and max_tokens do not fit into the model's window.
        """
        _ = self.reader.model  # loading is not the answer's time
        deadline = time.monotonic() + timeout_s
        ids = self.reader.encode_chat(messages)
        if len(ids) + max_tokens > self.window_tokens:
            raise ModelError(
                f"expected at most {self.window_tokens - max_tokens} prompt tokens, got {len(ids)}"
            )
        # one answer at a time: two would only share the same cores
        with self._busy:
            yield from until(self._pieces(ids, max_tokens, deadline), stop)

    def _pieces(self, prompt: list[int], max_tokens: int, deadline: float) -> Iterator[str]:
        """Decode token ids as they come; an unfinished character waits for its rest."""
        ids: list[int] = []
        begin = 0
        for token in self._tokens(prompt, max_tokens, deadline):
            ids.append(token)
            piece = self.reader.decode(ids[begin:])
            if piece and not piece.endswith("\ufffd"):
                # what is still undecodable inside never becomes a character
                yield piece.replace("\ufffd", "")
                begin = len(ids)

    def _tokens(self, prompt: list[int], max_tokens: int, deadline: float) -> Iterator[int]:
        """Yield greedy token ids until the end, the limit, the deadline or a repeat."""
        import torch

        model, ends = self.reader.model, self.reader.end_tokens()
        out: list[int] = []
        with torch.inference_mode():
            cache = new_cache(model)
            logits = read_prompt(model, prompt, cache, deadline)
            while logits is not None and len(out) < max_tokens and time.monotonic() < deadline:
                token = int(logits.argmax())
                if token in ends:
                    return
                out.append(token)
                yield token
                if repeats(out):
                    return
                step = torch.tensor([[token]], device=model.device)
                logits = model(input_ids=step, use_cache=True, **cache).logits[0, -1]


def new_cache(model: PreTrainedModel) -> dict[str, Any]:
    """Return an empty key-value cache under the name that this version's models take it by."""
    from transformers import DynamicCache

    taken = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in taken else "past_key_values"
    return {name: DynamicCache(config=model.config)}


def read_prompt(
    model: PreTrainedModel, prompt: Sequence[int], cache: Mapping[str, Any], deadline: float
) -> torch.Tensor | None:
    """Read a prompt in blocks. Returns (v,) logits of the next token, None at the deadline."""
    import torch

    ids = torch.tensor([list(prompt)], device=model.device)
    logits = None
    for start in range(0, ids.shape[1], PREFILL):
        if time.monotonic() >= deadline:
            return None
        block = ids[:, start : start + PREFILL]
        logits = model(input_ids=block, use_cache=True, logits_to_keep=1, **cache).logits[0, -1]
    return logits


def repeats(ids: Sequence[int]) -> bool:
    """Whether the tokens end in the same run again and again."""
    for n in range(1, min(LONGEST_REPEAT, len(ids) // REPEATS) + 1):
        # a short run may be honest, as in "no, no, no": ask for more of them
        times = REPEATS if n >= 4 else 12 // n + REPEATS
        if len(ids) >= n * times and list(ids[-n:]) * times == list(ids[-n * times :]):
            return True
    return False
