"""Embed texts with a causal language model that is asked what they mean: no training, any reader.

A text stands in a prompt (`This sentence: "TEXT" means in one word: "`), and its vector is the
state of the last token, from which the model would say that word: PromptEOL, Jiang et al. 2023,
arXiv:2307.16645. Contrastive prompting takes out what is beside the point: with v the attended
values of the last token in one layer (what its output matrix reads), and v' the same where the
prompt asks for the irrelevant,

    v <- (v - alpha v') |v| / |v - alpha v'|

alpha = 1 is eq. 3 (norm recovering) of Cheng et al. 2025, arXiv:2505.12831; 0 switches it off.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foveate.encoders.minilm import pack
from foveate.encoders.windows import as_texts, merge_windows, split_windows
from foveate.encoders.wordpieces import WordPieces
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.encoders.causal import Network
    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats

log = logging.getLogger(__name__)

PROMPT = 'This sentence: "{text}" means in one word: "'
AGAINST = 'The irrelevant information of this sentence: "{text}" means in one word: "'
ECHO = "Rewrite the sentence: {text}, rewritten sentence: {text}"
SLOT = "{text}"
POOLINGS = ("last", "mean")
DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16"}
_BATCH_TOKENS = {"cpu": 1024, "cuda": 16_384}


class Reader(Protocol):
    """What is needed of the language model (`foveate.pipeline.reader.Reader` has it)."""

    name: str

    @property
    def model(self) -> Any: ...
    @property
    def tokenizer(self) -> Any: ...
    def defuse(self, text: str) -> str: ...


class Prompted:
    """Encode texts with a reader: the state from which it would name their meaning.

    model: the reader's name. path: a folder or .gguf file, before `model`. hub: may fetch it.
    reader: a loaded one to share, in the place of these. name: what the space is called. prompt: a
    template with {text}; where {text} stands twice, 'mean' is over the second (echo embeddings,
    arXiv:2402.15449: ECHO). pooling: 'last' (token of the prompt) or 'mean' (tokens of the text).
    layer: how many layers are run; None is all of them and the final norm. alpha: how much of the
    auxiliary prompt `against` is taken out, of the last token's values, in contrast_layer (from 1;
    None is a sixth of all layers); 0 is none. query_prompt, passage_prompt: an instruction, put
    before the prompt. window_tokens: tokens of one window, without the prompt's; a longer stored
    text is cut there, a longer query is the mean of windows of equal size, weighted by tokens.
    batch_tokens: tokens that are computed together.
    """

    reads: frozenset[str] = frozenset({"text"})

    def __init__(
        self,
        model: str | None = None,
        *,
        path: str | Path | None = None,
        reader: Reader | None = None,
        name: str | None = None,
        prompt: str = PROMPT,
        pooling: str = "last",
        layer: int | None = None,
        alpha: float = 0.0,
        against: str = AGAINST,
        contrast_layer: int | None = None,
        query_prompt: str = "",
        passage_prompt: str = "",
        window_tokens: int = 512,
        device: str = "auto",
        dtype: str = "auto",
        hub: bool = False,
        threads: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if pooling not in POOLINGS:
            raise ConfigError(f"unknown pooling {pooling!r} (known: {', '.join(POOLINGS)})")
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r} (known: {', '.join(DTYPES)})")
        for template in (prompt, against):
            if SLOT not in template:
                raise ConfigError(
                    f"the prompt {template!r} has no place for the text: write {SLOT}"
                )
        if alpha and pooling != "last":
            raise ConfigError("alpha contrasts the last token: it needs pooling = 'last'")
        if window_tokens < 1:
            raise ConfigError(f"expected window_tokens of at least 1, got {window_tokens}")
        options = {"path": path, "device": device, "dtype": DTYPES[dtype], "hub": hub}
        self._options = options if model is None else options | {"name": model}
        self._given_reader, self._given_name = reader, name
        self._prompt, self._against, self._pooling = prompt, against, pooling
        self._layer, self._alpha, self._contrast_layer = layer, alpha, contrast_layer
        self._prompts = (query_prompt, passage_prompt)
        self.window_tokens, self._batch_tokens, self._threads = window_tokens, batch_tokens, threads
        self._lock = threading.RLock()
        self._made: Network | None = None

    @cached_property
    def _reader(self) -> Reader:
        if self._given_reader is not None:
            return self._given_reader
        # found by name when it is needed: an encoder imports nothing of the pipeline but types
        made: Reader = importlib.import_module("foveate.pipeline.reader").Reader(**self._options)
        return made

    @property
    def _network(self) -> Network:
        with self._lock:
            if self._made is None:
                from foveate.encoders.causal import Network
                from foveate.encoders.threads import set_threads

                set_threads(self._threads)
                self._made = Network(
                    self._reader.model, self._layer, self._contrast_layer, self._alpha
                )
            return self._made

    @cached_property
    def _pieces(self) -> WordPieces:
        backend = getattr(self._reader.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                f"the tokenizer of {self._reader.name!r} cannot say where its tokens stand"
            )
        return WordPieces(backend)

    @property
    def _name(self) -> str:
        return self._given_name or Path(self._reader.name).name

    @property
    def dim(self) -> int:
        return int(self._reader.model.config.get_text_config().hidden_size)

    @property
    def space(self) -> str:
        return f"{self._name}/{self.dim}"

    @cached_property
    def tower(self) -> str:
        """Model, sampled weights, prompt, pooling, layers, contrast, window and instructions."""
        query, passage = self._prompts
        network = self._network
        made = (
            f"{self._name}@{network.digest} prompt={self._prompt!r} pool={self._pooling} "
            f"layer={self._layer or 'all'} norm=l2 window={self.window_tokens} "
            f"prompts={query!r}/{passage!r}"
        )
        if not self._alpha:
            return made
        return f"{made} less={self._alpha:g}*{self._against!r} at={network.contrast_layer}"

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode passages.

        Args:
            inputs: n texts.
            progress: is called with the number of texts done so far.

        Returns:
            (n, d) float32, L2-normalised, in the inputs' order.
        """
        texts = self._clean(inputs)
        ids = self._pieces.ids(texts, self.window_tokens + 1)
        n_cut = sum(len(some) > self.window_tokens for some in ids)
        if n_cut:
            log.info("%d of %d texts were cut at %d tokens", n_cut, len(ids), self.window_tokens)
        return self._run([some[: self.window_tokens] for some in ids], self._prompts[1], progress)

    def encode_queries(self, queries: Sequence[Input]) -> Floats:
        """Encode queries; one longer than the window is the weighted mean of its windows.

        Args:
            queries: q texts.

        Returns:
            (q, d) float32, L2-normalised.
        """
        windows: list[list[int]] = []
        owners: list[int] = []
        for owner, ids in enumerate(self._pieces.ids(self._clean(queries))):
            cut = split_windows(ids, self.window_tokens)
            windows += cut
            owners += [owner] * len(cut)
        vectors = self._run(windows, self._prompts[0], None)
        if len(windows) == len(queries):
            return vectors
        return merge_windows(vectors, owners, [len(ids) for ids in windows], len(queries))

    def _clean(self, inputs: Sequence[Input]) -> list[str]:
        """Return texts that spell no special token."""
        return [self._reader.defuse(text) for text in as_texts("", inputs)]

    def _run(
        self, ids: list[list[int]], instruction: str, progress: Callable[[int], None] | None
    ) -> Floats:
        """Return (n, d) float32, L2-normalised. ids: of each text."""
        vectors = np.zeros((len(ids), self.dim), dtype=np.float32)
        if not ids:
            return vectors
        network = self._network
        frame, auxiliary = (self._frame(t, instruction) for t in (self._prompt, self._against))
        asked = [frame.around(some) for some in ids]
        budget = self._batch_tokens or _BATCH_TOKENS.get(network.device.type, 4096)
        done = 0
        for rows in pack([len(sequence) for sequence, _ in asked], budget):
            against = [auxiliary.around(ids[row])[0] for row in rows] if self._alpha else None
            spans = [asked[row][1] for row in rows] if self._pooling == "mean" else None
            vectors[rows] = network.embed([asked[row][0] for row in rows], spans, against)
            done += len(rows)
            if progress:
                progress(done)
        return vectors

    def _frame(self, template: str, instruction: str) -> Frame:
        first, *rest = template.split(SLOT)
        tokenizer = self._reader.tokenizer
        starts = [i for i in tokenizer("")["input_ids"] if i == tokenizer.bos_token_id][:1]
        parts = self._pieces.ids([instruction + first, *rest])
        return Frame((starts + parts[0], *parts[1:]))

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of each token, no special tokens."""
        return self._pieces.spans(text)


@dataclass(frozen=True, slots=True)
class Frame:
    """Token ids of a prompt between which a text is put, as often as there are gaps."""

    parts: tuple[list[int], ...]

    def around(self, ids: list[int]) -> tuple[list[int], tuple[int, int]]:
        """Return the sequence, and [start, end) of the text where it stands last."""
        sequence = list(self.parts[0])
        start = len(sequence)
        for part in self.parts[1:]:
            start = len(sequence)
            sequence += ids + part
        return sequence, (start, start + len(ids))
