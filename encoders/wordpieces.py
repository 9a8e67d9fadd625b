"""Tokens of a BERT-type tokenizer: ids for the encoder, spans for the chunker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

_SEGMENT_CHARS = 65_536
_SPACE = re.compile(r"\s")
_SURROGATE = re.compile("[\ud800-\udfff]")


class WordPieces:
    """A fast tokenizer without padding, truncation or special tokens. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        # a copy: padding and truncation are settings of the object that others may be using
        self._tokenizer: Tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @classmethod
    def read(cls, path: Path) -> WordPieces:
        """Read a tokenizer.json.

        Raises:
            ModelError: if the file is not one.
        """
        import tokenizers

        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"cannot read the tokenizer {str(path)!r}: {error}") from error

    @cached_property
    def start(self) -> int:
        return self._find("[CLS]", "<s>")

    @cached_property
    def end(self) -> int:
        return self._find("[SEP]", "</s>")

    @cached_property
    def vocabulary(self) -> list[str]:
        """The token of each id."""
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        words = [""] * (max(known.values()) + 1)
        for word, number in known.items():
            words[number] = word
        return words

    def _find(self, *tokens: str) -> int:
        for token in tokens:
            number = self._tokenizer.token_to_id(token)
            if number is not None:
                return int(number)
        raise ModelError(f"the tokenizer has no token {' or '.join(tokens)}")

    def ids(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        """Return each text's token ids, at most `limit`, no special tokens."""
        heads = list(texts) if limit is None else [_cut(text, limit * 16) for text in texts]
        found = self._read(heads)
        if limit is None:
            return found
        for i, ids in enumerate(found):
            if len(ids) < limit and len(heads[i]) < len(texts[i]):
                # a long text with few tokens: mostly white space or unbroken characters
                found[i] = self._read([texts[i]])[0]
        return [ids[:limit] for ids in found]

    def _read(self, texts: list[str]) -> list[list[int]]:
        readable = [clean_surrogates(text) for text in texts]
        batch = self._tokenizer.encode_batch_fast(readable, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of each token, ascending."""
        pieces = list(_segments(clean_surrogates(text)))
        parts: list[NDArray[np.int32]] = []
        for first in range(0, len(pieces), 32):  # bounded memory: an encoding is heavy
            group = pieces[first : first + 32]
            batch = self._tokenizer.encode_batch(
                [segment for _, segment in group], add_special_tokens=False
            )
            for (offset, _), encoding in zip(group, batch, strict=True):
                spans = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                parts.append(spans + np.int32(offset))
        return np.concatenate(parts) if parts else np.empty((0, 2), dtype=np.int32)


def clean_surrogates(text: str) -> str:
    """Replace lone surrogates, which no tokenizer takes, one for one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _cut(text: str, n_chars: int) -> str:
    """Return the head of a text, cut at white space, at least n_chars of it if there are any."""
    if len(text) <= n_chars:
        return text
    space = _SPACE.search(text, n_chars)
    return text[: space.start()] if space else text


def _segments(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, piece) of about 64k characters each, cut before white space."""
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + _SEGMENT_CHARS)
        end = space.start() if space else len(text)
        yield start, text[start:end]
        start = end
