"""The prompt of an attention scan as token blocks: prefix, passages, and what is asked.

    prefix | passage 1 | ... | passage n | question | calibration question

Every block's positions follow the prefix, and passages are blind to each other, so a passage's
keys are the same wherever it stands (BlockRank, arXiv 2510.05396). In the causal layout they
follow one another as in an ordinary prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from foveate.pipeline.errors import ModelError
from foveate.pipeline.types import Passage
from foveate.rerank.probe import Pack, Reader

if TYPE_CHECKING:
    from numpy.typing import NDArray


Mode = Literal["blind", "blocks", "causal"]
Rows = Literal["suffix", "question", "last"]

HEAD = "Here are some passages.\n"
TAIL = "\n\nFind what in the passages above answers this question.\nQuestion: "
NOTHING = "N/A"  # what the calibration asks (ICR, arXiv 2410.02642)
MARK = "\u2063passages\u2063"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One passage, or a window of one.

    ids: (t,) int64. spans: (t, 2) int32, in the passage's text; (-1, -1) for its context and for
    what is between. passage: its number.
    """

    ids: NDArray[np.int64]
    spans: NDArray[np.int32]
    passage: int


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The question block. rows: the tokens that score."""

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]


class Prompt:
    """The reader's prompt around passages, tokenised piece by piece."""

    def __init__(self, reader: Reader, *, head: str = HEAD, tail: str = TAIL) -> None:
        self.reader = reader
        self.tokenizer: Any = reader.tokenizer
        if not self.tokenizer.is_fast:
            raise ModelError(f"the tokenizer of {reader.name!r} cannot say where its tokens stand")
        before, after = head, tail
        self._end = ""
        if self.tokenizer.chat_template:
            rendered = str(
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": f"{head}{MARK}{tail}{MARK}"}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
            parts = rendered.split(MARK)
            if len(parts) != 3:
                raise ModelError(f"the chat template of {reader.name!r} changes what is said")
            before, after, self._end = parts
        self._tail = after
        self.prefix = self._ids(before)
        self._specials = [s for s in reader.special_tokens() if len(s) > 1]

    def asked(self, question: str, rows: Rows, *, limit: int = 512) -> Asked:
        """Tokenise what is asked; of a very long question the last `limit` tokens count."""
        head, body, end = (
            self._ids(self._tail),
            self._ids(self.plain(question)),
            self._ids(self._end),
        )
        body = body[-limit:]
        ids = np.concatenate([head, body, end])
        n = len(ids)
        first, last = {
            "suffix": (0, n),
            "question": (len(head), len(head) + len(body)),
            "last": (n - 1, n),
        }[rows]
        return Asked(ids, np.arange(first, last))

    def blocks(self, passages: Sequence[Passage | str], limit: int) -> Iterator[Block]:
        """Tokenise passages; one of more than `limit` tokens becomes several windows."""
        for number, passage in enumerate(passages):
            context = "" if isinstance(passage, str) else passage.context
            text = passage if isinstance(passage, str) else passage.text
            lead = f"\n\n{context}\n" if context else "\n\n"
            found = self.tokenizer(
                self.plain(lead + text), add_special_tokens=False, return_offsets_mapping=True
            )
            ids = np.asarray(found["input_ids"], dtype=np.int64)
            spans = np.asarray(found["offset_mapping"], dtype=np.int32).reshape(-1, 2) - len(lead)
            spans[spans[:, 1] <= 0] = -1
            n_windows = max(1, -(-len(ids) // limit))
            for part in np.array_split(np.arange(len(ids)), n_windows):
                yield Block(ids[part], spans[part].clip(min=-1), number)

    def plain(self, text: str) -> str:
        """Break every special token that a text spells out; its length stays."""
        while any(s in text for s in self._specials):
            for s in self._specials:
                text = text.replace(s, "\u00b7" + s[1:])
        return text.encode("utf-8", "replace").decode() if _lone(text) else text

    def _ids(self, text: str) -> NDArray[np.int64]:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.asarray(ids, dtype=np.int64)


def _lone(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Where the parts of a pack stand: [start, end) of the prefix, each block, each question."""

    pack: Pack
    prefix: tuple[int, int]
    blocks: tuple[tuple[int, int], ...]
    asked: tuple[tuple[int, int], ...]


def arrange(
    prefix: NDArray[np.int64],
    blocks: Sequence[Block],
    asked: Sequence[Asked],
    mode: Mode,
    *,
    longest: int = 0,
) -> Parts:
    """Put blocks and questions behind the prefix.

    blind: a question sees the prefix and itself. blocks: it sees the passages too, which are
    blind to each other. causal: passages see those before them as well. Questions never see each
    other, and stand at the same positions: behind the longest block, or one of `longest` tokens.
    """
    sequences = [prefix, *(b.ids for b in blocks), *(a.ids for a in asked)]
    edges = np.concatenate([[0], np.cumsum([len(s) for s in sequences])])
    places = [(int(a), int(b)) for a, b in pairwise(edges)]
    n_prefix, n_blocks = len(prefix), len(blocks)
    longest = max([longest, *(len(b.ids) for b in blocks)])
    content_end = int(edges[1 + n_blocks])
    after = content_end if mode == "causal" else n_prefix + longest
    positions, masks = [], []
    for number, (start, end) in enumerate(places):
        own = np.arange(end - start)
        is_block = 0 < number <= n_blocks
        if number == 0 or (is_block and mode == "causal"):
            positions.append(start + own)
        else:
            positions.append((n_prefix if is_block else after) + own)
        if number == 0 or (is_block and mode == "causal"):
            seen = 0, 0
            begin = 0
        else:
            reads_all = not is_block and mode != "blind"
            seen, begin = (0, content_end if reads_all else n_prefix), start
        runs = np.empty((end - start, 2, 2), dtype=np.int64)
        runs[:, 0] = seen
        runs[:, 1, 0], runs[:, 1, 1] = begin, start + own + 1
        masks.append(runs)
    scoring = places[1 + n_blocks :]
    rows = [start + a.rows for (start, _), a in zip(scoring, asked, strict=True)]
    pack = Pack(
        torch.from_numpy(np.concatenate(sequences)),
        torch.from_numpy(np.concatenate(positions)),
        torch.from_numpy(np.concatenate(masks)),
        torch.from_numpy(np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)),
    )
    return Parts(pack, places[0], tuple(places[1 : 1 + n_blocks]), tuple(scoring))
