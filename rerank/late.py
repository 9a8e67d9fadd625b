"""Rerank by late interaction: every token of the query finds its best match in the passage.

    s(q, p) = sum_i |q_i| max_j cos(q_i, p_j) / sum_i |q_i|        (ColBERT, arXiv 2004.12832)

Token vectors come from the index where it keeps them; what it lacks is encoded on the fly.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Hit

if TYPE_CHECKING:
    from foveate.kernels.documents import Documents
    from foveate.pipeline.protocols import Resources, TokenEncoder
    from foveate.pipeline.types import Floats

TEXTS = frozenset({"text", "table"})
PICTURES = frozenset({"image", "page"})
ROLE = "tokens"
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Match:
    """A token of the query, and the token of a passage that it matched.

    asked: [start, end) in the query. found: [start, end) in `passage.text`, None where the match
    stands in the passage's context. share: its part of the passage's score.
    """

    asked: tuple[int, int]
    found: tuple[int, int] | None
    similarity: float
    share: float


class Late:
    """Order hits by MaxSim.

    `scores["late"]` is the weighted mean of the best cosines, -1..1; `score` is (s + 1) / 2.
    """

    name = "late"

    def __init__(self, resources: Resources, **options: Any) -> None:
        self._resources = resources
        self._options = options
        self._lock = threading.Lock()
        self._made: TokenEncoder | None = None

    @property
    def reads(self) -> frozenset[str]:
        """What the index's token encoder reads; texts where the index keeps no token vectors."""
        encoders: Any = self._resources.encoders
        kinds = encoders[ROLE].reads if ROLE in encoders else {"text"}
        return (TEXTS if "text" in kinds else _NONE) | (PICTURES if "image" in kinds else _NONE)

    @property
    def encoder(self) -> TokenEncoder:
        """The index's token encoder, else one that shares the weights of its text encoder."""
        with self._lock:
            if self._made is None:
                self._made = self._find()
            return self._made

    def _find(self) -> TokenEncoder:
        encoders: Any = self._resources.encoders
        if ROLE in encoders:
            if self._options:
                raise ConfigError(
                    f"reranker 'late' takes no {sorted(self._options)} on an index that keeps "
                    "token vectors: they are set in [encoders.tokens]"
                )
            found: TokenEncoder = encoders[ROLE]
            return found
        make = getattr(encoders["text"], "late", None)
        if make is None:
            raise ConfigError(
                f"reranker 'late' needs token vectors, and {encoders['text'].tower!r} gives none: "
                'build the index with [encoders.tokens] use = "late-minilm"'
            )
        made: TokenEncoder = make(**self._options)
        return made

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best hits, best first, ties by passage id."""
        if not hits:
            return []
        scores = self.score(query, hits)
        scored = [
            dataclasses.replace(
                hit, score=(float(s) + 1) / 2, scores={**hit.scores, self.name: float(s)}
            )
            for hit, s in zip(hits, scores, strict=True)
        ]
        return sorted(scored, key=lambda hit: (-hit.score, hit.passage.id))[:k]

    def score(self, query: str, hits: Sequence[Hit]) -> Floats:
        """Return (n,) float32, the weighted mean of the best cosines; -1 where nothing matches."""
        import numpy as np
        import torch

        from foveate.kernels.maxsim import maxsim

        asked = self.encoder.encode_queries([query])
        weight = float(np.linalg.norm(asked.vectors, axis=1).sum())
        if not weight:
            return np.full(len(hits), -1, dtype=np.float32)
        with torch.no_grad():
            found = maxsim(torch.from_numpy(asked.vectors), self._documents(hits))[0].numpy()
        scores: Floats = np.clip(found / weight, -1, 1).astype(np.float32)
        return scores

    def explain(self, query: str, hit: Hit) -> list[Match]:
        """Say which token of the query matched which of the passage, in the query's order."""
        import numpy as np
        import torch

        from foveate.kernels.maxsim import maxsim_matches

        asked = self.encoder.encode_queries([query])
        weights = np.linalg.norm(asked.vectors, axis=1)
        best, where = maxsim_matches(torch.from_numpy(asked.vectors), self._documents([hit]))
        passage = hit.passage
        head = len(passage.context) + 1 if passage.context else 0
        places = self.encoder.spans(_encoded(hit))  # none for a picture
        found = []
        for span, weight, value, at in zip(
            self.encoder.query_spans(query).tolist(), weights, best[:, 0].tolist(),
            where[:, 0].tolist(), strict=False,
        ):  # fmt: skip
            if at < 0 or not weight:
                continue
            place = None
            if at < len(places) and places[at][0] >= head:
                place = (int(places[at][0]) - head, int(places[at][1]) - head)
            share = value / float(weights.sum())
            found.append(Match(tuple(span), place, value / float(weight), share))
        return found

    def _documents(self, hits: Sequence[Hit]) -> Documents:
        """Return the hits' token vectors."""
        import torch

        from foveate.kernels.documents import Documents

        if ROLE in self._resources.encoders:
            made = self._resources.index.token_vectors([hit.passage.id for hit in hits])
        else:
            made = self.encoder.encode([_encoded(hit) for hit in hits])
        return Documents(torch.from_numpy(made.vectors), torch.from_numpy(made.offsets))


def _encoded(hit: Hit) -> str:
    passage = hit.passage
    return f"{passage.context}\n{passage.text}" if passage.context else passage.text
