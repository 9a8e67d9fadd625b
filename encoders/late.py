"""Late interaction from a sentence encoder's own token vectors, without more training.

A text becomes one vector a token: the last layer's states, centred and turned by a rotation that
was learned without labels (encoders/rotation.py), each of length 1. Passages of any length are
taken whole, in windows. Scores are MaxSim's (foveate.kernels.maxsim): ColBERT, arXiv 2004.12832.

A query's vectors have lengths, their weights: a rare word says more than a common one. A BERT
vocabulary lists its words by falling frequency, so a token's rank r stands for its frequency
(Zipf's law: 1 / r), and log r for the logarithm of its inverse: w = (log r / log r_max)^2.
"""

from __future__ import annotations

import string
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.minilm import MiniLM, pack
from foveate.encoders.rotation import SHIPPED, Rotation
from foveate.encoders.windows import as_texts, even_bounds
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.encoders.bert import Bert
    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats, Ints

SKIPS = ("nothing", "punctuation")
CODES = ("onebit", "int8")
WEIGHTS = ("rank", "even")
DIM = 256
_HEAD = 9  # the rank from which the most frequent word starts: it does weigh something
_BATCH_TOKENS = {"cpu": 512, "cuda": 16_384}


class LateMiniLM:
    """Encode texts as one vector a token with MiniLM or another BERT-type sentence encoder.

    path, name, device, dtype, window_tokens, threads, batch_tokens: as MiniLM's. texts: an encoder
    whose weights are shared, in the place of these. rotation: a file made by
    `foveate.encoders.rotation`; None is the one that ships for the packaged model, 'none' keeps
    the states as they are. dim: leading dimensions of the rotation that are kept, 256 if none is
    said. skip: what has no vector: 'punctuation' or 'nothing'. weights: of a query's tokens,
    'rank' (rare words weigh more) or 'even'. code: how an index keeps a vector:
    'onebit' (the sign of each dimension, and a scale) or 'int8'.
    """

    reads: frozenset[str] = frozenset({"text"})

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        texts: MiniLM | None = None,
        rotation: str | Path | None = None,
        dim: int | None = None,
        skip: str = "punctuation",
        weights: str = "rank",
        code: str = "onebit",
        batch_tokens: int | None = None,
        **options: Any,
    ) -> None:
        if skip not in SKIPS:
            raise ConfigError(f"unknown skip {skip!r} (known: {', '.join(map(repr, SKIPS))})")
        self.texts = texts if texts is not None else MiniLM(path, **options)
        self._packaged = path is None and (texts is None or texts._path is None)
        if weights not in WEIGHTS:
            raise ConfigError(f"unknown weights {weights!r} (known: {', '.join(WEIGHTS)})")
        if code not in CODES:
            raise ConfigError(f"unknown code {code!r} (known: {', '.join(map(repr, CODES))})")
        self.code = code
        self._rotation_path, self._dim, self._skip = rotation, dim, skip
        self._weighting = weights
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()

    @cached_property
    def _rotation(self) -> Rotation | None:
        place = self._rotation_path
        if place is None and self._packaged:
            place = SHIPPED
        if place is None or str(place) == "none":
            if self._dim is not None:
                raise ConfigError("dim needs a rotation: make one with encoders/rotation.py")
            return None
        return Rotation.read(Path(place).expanduser()).keep(self._dim or DIM)

    @property
    def dim(self) -> int:
        return self.texts.dim if self._rotation is None else self._rotation.dim

    @property
    def space(self) -> str:
        name = self.texts.space.rpartition("/")[0]
        return f"{name}-tokens/{self.dim}"

    @property
    def window_tokens(self) -> int | None:
        return self.texts.window_tokens

    @cached_property
    def tower(self) -> str:
        """The model's tower, the rotation, and what is skipped."""
        turned = "none" if self._rotation is None else self._rotation.digest
        return (
            f"{self.texts.tower} tokens rotation={turned} dim={self.dim} "
            f"skip={self._skip} code={self.code}"
        )

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> MultiVectors:
        """Encode passages, each whole, however long.

        Args:
            inputs: n texts.
            progress: is called with the number of texts done so far.

        Returns:
            n items of (t_i, d) float32, L2-normalised; an item may have no vector.
        """
        return self._encode(as_texts(self.texts._prompts[1], inputs), self._silent, progress)

    def encode_queries(self, queries: Sequence[Input]) -> MultiVectors:
        """Encode queries, of any length; a vector's length is its weight."""
        texts = as_texts(self.texts._prompts[0], queries)
        found = self._encode(texts, self._silent, None)
        if self._weighting == "even":
            return found
        ids = [i for some in self.texts._pieces.ids(texts) for i in some]
        weights = self._weights[[i for i in ids if not self._silent[i]]]
        return MultiVectors(found.vectors * weights[:, None], found.offsets)

    @cached_property
    def _weights(self) -> Floats:
        """(vocabulary,) float32: each token's weight in a query."""
        words = self.texts._pieces.vocabulary
        # in front stand signs and single letters
        first = words.index("the") if "the" in words else 0
        ranks = np.maximum(np.arange(len(words)) - first, 0) + _HEAD
        return np.asarray((np.log(ranks) / np.log(ranks[-1])) ** 2, dtype=np.float32)

    def spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of what each stored vector stands for.

        text: as it is given to `encode`.
        """
        return self._kept_spans(self.texts._prompts[1], text)

    def query_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: what each vector of a query stands for."""
        return self._kept_spans(self.texts._prompts[0], text)

    def _kept_spans(self, prompt: str, text: str) -> NDArray[np.int32]:
        ids = self.texts._pieces.ids([prompt + text])[0]
        spans = self.texts.token_spans(prompt + text)[: len(ids)] - np.int32(len(prompt))
        return spans[~self._silent[ids]].clip(min=0)

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) of every token, as MiniLM reads the text."""
        return self.texts.token_spans(text)

    @cached_property
    def _silent(self) -> NDArray[np.bool_]:
        """(vocabulary,) bool: the tokens that are not stored."""
        words = self.texts._pieces.vocabulary
        silent = np.zeros(len(words), dtype=np.bool_)
        if self._skip == "punctuation":
            signs = set(string.punctuation)
            silent[:] = [set(word.removeprefix("##")) <= signs for word in words]
        return silent

    def _encode(
        self,
        texts: list[str],
        silent: NDArray[np.bool_],
        progress: Callable[[int], None] | None,
    ) -> MultiVectors:
        windows: list[list[int]] = []
        owners: list[int] = []
        for owner, ids in enumerate(self.texts._pieces.ids(texts)):
            bounds = even_bounds(len(ids), self.texts.window_tokens - 2) if ids else []
            windows += [ids[a:b] for a, b in bounds]
            owners += [owner] * len(bounds)
        kept = [~silent[ids] for ids in windows]
        counts = np.array([int(k.sum()) for k in kept], dtype=np.int64)
        places = np.concatenate([[0], np.cumsum(counts)])
        vectors = np.empty((int(places[-1]), self.dim), dtype=np.float32)
        done = 0
        for future in self._submit(windows, kept, places, vectors):
            done += future.result()
            if progress:
                progress(done * len(texts) // len(windows))
        sizes = np.bincount(np.array(owners, dtype=np.int64), counts, len(texts)).astype(np.int64)
        return MultiVectors(vectors, np.concatenate([[0], np.cumsum(sizes)]))

    def _submit(
        self, windows: list[list[int]], kept: list[NDArray[np.bool_]], places: Ints, out: Floats
    ) -> list[Future[int]]:
        """Start encoding windows into rows of `out`; each future gives how many are done."""
        from foveate.encoders.minilm import _run_now
        from foveate.encoders.threads import compute_pool

        if not windows:
            return []
        bert = self.texts._load()
        budget = self._batch_tokens or _BATCH_TOKENS.get(bert.device.type, 4096)
        packs = list(pack([len(ids) + 2 for ids in windows], budget))

        def run(rows: list[int]) -> int:
            self._fill(
                bert, windows, kept, places, out, sorted(rows, key=lambda r: len(windows[r]))
            )
            return len(rows)

        if bert.device.type != "cpu":
            return [_run_now(run, rows) for rows in packs]
        pool = compute_pool("corpus" if len(packs) > 1 else "query")
        return [pool.submit(run, rows) for rows in packs]

    def _fill(
        self,
        bert: Bert,
        windows: list[list[int]],
        kept: list[NDArray[np.bool_]],
        places: Ints,
        out: Floats,
        rows: list[int],
    ) -> None:
        start, end = self.texts._pieces.start, self.texts._pieces.end
        states = bert.hidden([[start, *windows[row], end] for row in rows]).cpu().numpy()
        # the special tokens stand for the whole text and match everything
        mask = np.concatenate([[False, *kept[row].tolist(), False] for row in rows]).astype(bool)
        vectors = _unit(states[mask])
        if self._rotation is not None:
            vectors = _unit(self._rotation.turn(vectors))
        at = 0
        for row in rows:
            n = int(places[row + 1] - places[row])
            out[places[row] : places[row + 1]] = vectors[at : at + n]
            at += n


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / lengths.clip(min=1e-12), dtype=np.float32)
