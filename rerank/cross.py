"""Rerank by a cross-encoder that reads the question and one passage together (monoBERT)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError, ModelError
from foveate.rerank.in_context import by_score

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Hit


class CrossEncoder:
    """Order hits by a model of sentence-transformers' `CrossEncoder` class.

    `scores["cross-encoder"]` is its logit; `score` is the logistic function of it. What does not
    fit the model's window is cut at its end.

    Args:
        model: a folder, or a hub name with hub = true.
        hub: let a name be fetched from the hub; else only what is on this machine is used.
        batch: pairs computed together.
        max_tokens: of a pair; the model's own window by default.
    """

    name = "cross-encoder"
    reads = frozenset({"text", "table"})

    def __init__(
        self,
        resources: Resources,
        *,
        model: str | None = None,
        hub: bool = False,
        batch: int = 16,
        max_tokens: int | None = None,
        device: str | None = None,
    ) -> None:
        if not model:
            raise ConfigError("reranker 'cross-encoder' needs model = a folder or a hub name")
        self._model, self._hub, self._batch = model, hub, batch
        self._max_tokens, self._device = max_tokens, device
        self._lock = threading.Lock()
        self._made: Any = None

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first, ties by passage id."""
        if not hits:
            return []
        pairs = [(query, encoded(hit)) for hit in hits]
        with self._lock:
            values = self._load().predict(
                pairs, batch_size=self._batch, show_progress_bar=False, activation_fn=_identity()
            )
        if getattr(values, "ndim", 1) != 1:
            raise ModelError(f"{self._model!r} gives several numbers a pair: expected one logit")
        return by_score(hits, values, self.name, logistic)[:k]

    def _load(self) -> Any:
        if self._made is None:
            import sentence_transformers

            try:
                self._made = sentence_transformers.CrossEncoder(
                    self._model,
                    device=self._device,
                    max_length=self._max_tokens,
                    local_files_only=not self._hub,
                    model_kwargs={"use_safetensors": True},
                )
            except (OSError, ValueError, RuntimeError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise ModelError(
                    f"cannot load the cross-encoder {self._model!r}: {reason}"
                ) from error
        return self._made


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))


def encoded(hit: Hit) -> str:
    """Return what a model reads of a hit: its context, then its text."""
    passage = hit.passage
    return f"{passage.context}\n{passage.text}" if passage.context else passage.text


def _identity() -> Any:
    import torch

    return torch.nn.Identity()
