"""Which tokens of a prompt stand where in its text, and what was looked at while writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foveate.pipeline.looks import Attended

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.pipeline.reader import Reader
    from foveate.pipeline.types import Ints


def spans_of(reader: Reader, messages: Sequence[Mapping[str, Any]], ids: Sequence[int]) -> Ints:
    """Return (t, 2) int64: [start, end) of each prompt token in the last message, -1 elsewhere.

    All are -1 where the tokenizer keeps no offsets or had to change the text.
    """
    none = np.full((len(ids), 2), -1, np.int64)
    content = str(messages[-1]["content"])
    tokenizer: Any = reader.tokenizer
    if not tokenizer.is_fast or reader.defuse(content) != content:
        return none
    safe = [{"role": m["role"], "content": reader.defuse(str(m["content"]))} for m in messages]
    rendered = str(tokenizer.apply_chat_template(safe, tokenize=False, add_generation_prompt=True))
    at = rendered.rfind(content)
    read = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    if at < 0 or list(read["input_ids"]) != list(ids):
        return none
    spans = np.asarray(read["offset_mapping"], np.int64).reshape(-1, 2) - at
    outside = (spans[:, 0] < 0) | (spans[:, 1] > len(content))
    spans[outside] = -1
    return spans


def marked(spans: Ints, places: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each token whether it stands in one of some places of the text."""
    inside = np.zeros(len(spans), bool)
    for start, end in places:
        inside |= (spans[:, 0] >= 0) & (spans[:, 0] < end) & (spans[:, 1] > start)
    return [bool(one) for one in inside]


@dataclass(slots=True, eq=False)
class Watch:
    """An edit that changes nothing and keeps the attention of each written token on the prompt.

    first: layers before it are not watched; they look at neighbours. rows: (t,) each, a mean over
    the heads of the watched layers.
    """

    n_prompt: int
    first: int
    rows: list[Tensor] = field(default_factory=list)
    _n: int = 0

    def __call__(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        # a prompt's own tokens and candidates side by side are not what was written
        if layer < self.first or query.shape[2] != 1 or key.shape[2] <= self.n_prompt:
            return query
        heads, d = query.shape[1], query.shape[3]
        keys = key[0].repeat_interleave(heads // key.shape[1], dim=0)  # (h, t, d)
        chances = (keys @ query[0, :, 0, :, None] / d**0.5)[..., 0].float().softmax(-1)
        mass = chances[:, : self.n_prompt].mean(0)
        if layer == self.first:
            self.rows.append(mass)
            self._n = 1
        else:
            self._n += 1
            self.rows[-1] += (mass - self.rows[-1]) / self._n
        return query

    def attended(self, spans: Ints, ends: Sequence[int]) -> Attended | None:
        """Return what was seen, None where nothing was."""
        n = min(len(self.rows), len(ends))
        if not n:
            return None
        mass = torch.stack(self.rows[:n]).cpu().numpy().astype(np.float32)
        return Attended(mass, spans, np.asarray(ends[:n], np.int64))
