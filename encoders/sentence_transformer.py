"""Any sentence-transformers model, by name or path."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.calibration import Calibration, attach
from foveate.encoders.library import LibraryModel
from foveate.encoders.packages import fingerprint_state
from foveate.encoders.windows import as_texts, merge_windows, split_text
from foveate.encoders.wordpieces import WordPieces
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats

_CALL_TEXTS = 512
_WORD = re.compile(r"\w+|[^\w\s]")


class SentenceTransformer:
    """A model run by the library itself.

    model: a folder or a hub name. query_prompt, passage_prompt: None means what the model's own
    configuration says for queries and documents. local_files_only: use only what is on disk;
    HF_HUB_OFFLINE=1 does the same. Weights are safetensors, or torch.load(weights_only=True) by
    the library; code that comes with a model is never run. calibration: 0..1, how far the last
    layers' attention is levelled over a text's positions (`calibration`), in baskets of
    calibration_basket tokens, in calibration_layers layers, by default half. A stored text
    longer than the window is cut there; a longer query is the mean of its windows, weighted by
    tokens.
    """

    reads: frozenset[str] = frozenset({"text"})

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        window_tokens: int | None = None,
        query_prompt: str | None = None,
        passage_prompt: str | None = None,
        dim: int | None = None,
        calibration: float = 0.0,
        calibration_basket: int = 128,
        calibration_layers: int | None = None,
        batch_size: int = 32,
        local_files_only: bool = False,
        threads: int | None = None,
    ) -> None:
        if model is None:
            raise ConfigError("encoder 'sentence-transformers' needs model = a folder or hub name")
        self._library = LibraryModel(
            "SentenceTransformer",
            model,
            name=name,
            revision=revision,
            device=device,
            dtype=dtype,
            local_files_only=local_files_only,
            threads=threads,
            ready=self._prepare,
            truncate_dim=dim,
        )
        self._window, self._batch_size = window_tokens, batch_size
        self._given_prompts = (query_prompt, passage_prompt)
        self._calibration = Calibration(calibration, calibration_basket, calibration_layers)

    def _prepare(self, model: Any) -> None:
        if self._window:
            model.max_seq_length = self._window
        if self._calibration.strength:
            attach(transformer_of(model), self._calibration, pooling_of(model))

    @property
    def _model(self) -> Any:
        return self._library.model

    @property
    def dim(self) -> int:
        return int(self._model.get_embedding_dimension())

    @property
    def space(self) -> str:
        return f"{self._library.name}/{self.dim}"

    @property
    def window_tokens(self) -> int | None:
        window = self._model.max_seq_length
        return int(window) if window else None

    @cached_property
    def tower(self) -> str:
        """Model, sampled weights, modules, window, dimension and prompts."""
        modules = ",".join(type(module).__name__ for module in self._model)
        digest = fingerprint_state(self._model.state_dict())
        query, passage = self._prompts
        return (
            f"{self._library.name}@{digest} modules={modules} norm=l2 window={self.window_tokens} "
            f"dim={self.dim} prompts={query!r}/{passage!r}"
            + (f" calibrated={self._calibration}" if self._calibration.strength else "")
        )

    @cached_property
    def _prompts(self) -> tuple[str, str]:
        known: dict[str, str] = self._model.prompts or {}
        default = known.get(self._model.default_prompt_name or "", "")
        query, passage = self._given_prompts
        if query is None:
            query = known.get("query") or default
        if passage is None:
            documents = (known.get(key) for key in ("document", "passage", "corpus"))
            passage = next((prompt for prompt in documents if prompt), default)
        return query, passage

    @cached_property
    def _pieces(self) -> WordPieces | None:
        backend = getattr(self._model.tokenizer, "backend_tokenizer", None)
        return WordPieces(backend) if backend is not None else None

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode passages.

        Args:
            inputs: n texts.
            progress: is called with the number of texts done so far.

        Returns:
            (n, d) float32, L2-normalised.
        """
        texts = as_texts("", inputs)
        parts: list[Floats] = []
        for first in range(0, len(texts), _CALL_TEXTS):
            part = texts[first : first + _CALL_TEXTS]
            parts.append(self._run(part, self._prompts[1]))
            if progress:
                progress(first + len(part))
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), dtype=np.float32)

    def encode_queries(self, queries: Sequence[Input]) -> Floats:
        """Encode queries; one longer than the window is the weighted mean of its windows.

        Args:
            queries: q texts.

        Returns:
            (q, d) float32, L2-normalised.
        """
        texts = as_texts("", queries)
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        prompt = self._prompts[0]
        windows: list[tuple[str, int]] = []
        owners: list[int] = []
        for owner, text in enumerate(texts):
            spans = self.token_spans(text)
            room = (self.window_tokens or len(spans) + 8) - 2 - len(self.token_spans(prompt))
            cut = split_text(text, spans, max(room, 8))
            windows += cut
            owners += [owner] * len(cut)
        vectors = self._run([text for text, _ in windows], prompt)
        if len(windows) == len(texts):
            return vectors
        return merge_windows(vectors, owners, [weight for _, weight in windows], len(texts))

    def _run(self, texts: list[str], prompt: str) -> Floats:
        with self._library.lock:
            vectors = self._model.encode(
                texts,
                prompt=prompt,
                batch_size=self._batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of each token, no special tokens.

        A model whose tokenizer gives no offsets counts words and single signs.
        """
        if self._pieces is not None:
            return self._pieces.spans(text)
        spans = [match.span() for match in _WORD.finditer(text)]
        return np.array(spans, dtype=np.int32).reshape(-1, 2)


def transformer_of(model: Any) -> Any:
    """Return the transformers model inside one of the library's.

    Raises:
        ModelError: if its first module is of another kind.
    """
    inner = getattr(model[0], "auto_model", None) or getattr(model[0], "model", None)
    if inner is None:
        raise ModelError(f"cannot calibrate a model that begins with {type(model[0]).__name__}")
    return inner


def pooling_of(model: Any) -> str:
    """Return how a model of the library pools.

    Raises:
        ModelError: for a way that calibration does not know.
    """
    for module in model:
        mode = getattr(module, "pooling_mode", None) or (
            module.get_pooling_mode_str() if hasattr(module, "get_pooling_mode_str") else None
        )
        if mode is not None:
            if mode not in ("mean", "cls", "lasttoken"):
                raise ModelError(f"expected mean, cls or lasttoken pooling, got {mode!r}")
            return "last" if mode == "lasttoken" else str(mode)
    raise ModelError("cannot calibrate a model without a pooling module")
