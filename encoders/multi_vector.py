"""Late-interaction models by name or path: ColBERT-style for texts, ColPali-style for pages.

Run by sentence-transformers' MultiVectorEncoder, which reads its own checkpoints, PyLate's,
Stanford's ColBERT and transformers' ColPali, ColQwen2 and ColModernVBert.
Khattab and Zaharia 2020, arXiv:2004.12832; Faysse et al. 2024, arXiv:2407.01449.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.late import CODES
from foveate.encoders.library import LibraryModel
from foveate.encoders.packages import fingerprint_state
from foveate.pipeline.errors import ConfigError, ModelError, ShapeError
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats

_CALL_INPUTS = 256


class MultiVector:
    """Encode texts and pictures as one vector a token or patch.

    model: a folder or a hub name. reads: what is stored, 'text', 'image' or both; None is what the
    model takes (a ColPali takes texts as queries only: give ['image']). code: how an index keeps a
    vector, 'onebit' or 'int8'. revision, device, dtype, batch_size, local_files_only: as
    'sentence-transformers'. Prompts, lengths, expansion of queries and skipped tokens are the
    model's own. A text longer than its window is cut there.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        reads: Sequence[str] | None = None,
        code: str = "int8",
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int = 32,
        local_files_only: bool = False,
        threads: int | None = None,
    ) -> None:
        if model is None:
            raise ConfigError("encoder 'multi-vector' needs model = a folder or hub name")
        if code not in CODES:
            raise ConfigError(f"unknown code {code!r} (known: {', '.join(map(repr, CODES))})")
        self.code = code
        self._library = LibraryModel(
            "MultiVectorEncoder",
            model,
            name=name,
            revision=revision,
            device=device,
            dtype=dtype,
            local_files_only=local_files_only,
            threads=threads,
        )
        self._reads, self._batch_size = reads, batch_size

    @property
    def _model(self) -> Any:
        return self._library.model

    @cached_property
    def reads(self) -> frozenset[str]:
        known = frozenset(m for m in ("text", "image") if self._model.supports(m))
        wanted = known if self._reads is None else frozenset(self._reads)
        if not wanted or not wanted <= known:
            raise ConfigError(
                f"model {self._library.place!r} takes {sorted(known)}, got reads = {sorted(wanted)}"
            )
        return wanted

    @cached_property
    def dim(self) -> int:
        dim = int(self._model.get_embedding_dimension())
        if self.code == "onebit" and dim % 8:
            raise ConfigError(f"code 'onebit' needs a dimension that 8 divides, got {dim}")
        return dim

    @property
    def space(self) -> str:
        return f"{self._library.name}-tokens/{self.dim}"

    @property
    def window_tokens(self) -> int | None:
        window = getattr(self._model[0], "document_length", None) or self._model.max_seq_length
        return int(window) if window else None

    @cached_property
    def tower(self) -> str:
        """Model, sampled weights, modules, prompts, and how vectors are kept."""
        modules = ",".join(type(module).__name__ for module in self._model)
        digest = fingerprint_state(self._model.state_dict())
        return (
            f"{self._library.name}@{digest} modules={modules} prompts={self._model.prompts!r} "
            f"reads={'+'.join(sorted(self.reads))} dim={self.dim} code={self.code}"
        )

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> MultiVectors:
        """Encode what is stored, texts or upright RGB pictures.

        Returns:
            n items of (t_i, d) float32, L2-normalised; tokens that the model skips have none.
        """
        for item in inputs:
            kind = "text" if isinstance(item, str) else "image"
            if kind not in self.reads:
                raise ShapeError(f"expected {' or '.join(sorted(self.reads))}, got {kind}")
        parts: list[Floats] = []
        for first in range(0, len(inputs), _CALL_INPUTS):
            some = list(inputs[first : first + _CALL_INPUTS])
            parts += self._run(self._model.encode_document, some)
            if progress:
                progress(first + len(some))
        return self._joined(parts)

    def encode_queries(self, queries: Sequence[Input]) -> MultiVectors:
        """Encode what is asked, its expansion included; every vector weighs the same."""
        return self._joined(self._run(self._model.encode_query, list(queries)))

    def _run(self, encode: Callable[..., Any], inputs: list[Any]) -> list[Floats]:
        if not inputs:
            return []
        with self._library.lock:
            found: list[Floats] = encode(
                inputs, batch_size=self._batch_size, convert_to_numpy=True,
                normalize_embeddings=True, show_progress_bar=False,
            )  # fmt: skip
        return found

    def _joined(self, parts: list[Floats]) -> MultiVectors:
        flat = np.concatenate([np.empty((0, self.dim), dtype=np.float32), *parts])
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        return MultiVectors(flat.astype(np.float32), np.concatenate([[0], np.cumsum(sizes)]))

    def spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of what each stored vector is of.

        Raises:
            ModelError: the model does not say where its tokens stand.
        """
        return self._spans(text, "document")

    def query_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32, the same of a query; tokens that expand it stand at (0, 0)."""
        return self._spans(text, "query")

    def _spans(self, text: str, task: str) -> NDArray[np.int32]:
        encode = self._model.encode_query if task == "query" else self._model.encode_document
        with self._library.lock:
            raw = encode([text], output_value=None, show_progress_bar=False)[0]
            backend = getattr(self._model.tokenizer, "backend_tokenizer", None)
            whole = None if backend is None else backend.encode(text)
        ids = raw["input_ids"].tolist() if "input_ids" in raw else []
        if whole is None or not ids:
            raise ModelError(f"model {self._library.place!r} does not say where its tokens stand")
        spans = _aligned(ids, whole.ids, whole.offsets)
        scored: NDArray[np.bool_] = raw["attention_mask"].bool().cpu().numpy()
        return spans[scored]

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) of every token of a text."""
        with self._library.lock:
            offsets = self._model.tokenizer.backend_tokenizer.encode(
                text, add_special_tokens=False
            ).offsets
        return np.array(offsets, dtype=np.int32).reshape(-1, 2)


def _aligned(ids: list[int], known: list[int], places: list[tuple[int, int]]) -> NDArray[np.int32]:
    """Return (len(ids), 2) int32: where each token stands, (0, 0) for those that were put in.

    ids: as the model read them, with prompts and expansion. known: the bare text's, with places.
    """
    import difflib

    spans = np.zeros((len(ids), 2), dtype=np.int32)
    matcher = difflib.SequenceMatcher(None, ids, known, autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        spans[a : a + size] = np.array(places[b : b + size], dtype=np.int32).reshape(-1, 2)
    return spans
