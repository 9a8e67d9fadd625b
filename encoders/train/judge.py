"""How well weights do on queries that they were not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foveate.encoders.train.data import Example, Relevance, key_of
from foveate.encoders.train.images import recalls
from foveate.encoders.train.trainable import frozen_roles

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.train.trainable import Role, Trainable

K = 10


class Judge:
    """nDCG@10 of held-out queries over a pool: their documents, their negatives, and others.

    held: examples of the held-out queries, with mined negatives where there are any. others:
    further documents; `size` is how many the pool holds at most, if the rest are fewer. stored:
    as the trainer's.
    """

    def __init__(
        self,
        held: Sequence[Example],
        known: Relevance,
        others: Sequence[Any] = (),
        *,
        size: int = 1000,
        micro: int = 16,
        seed: int = 0,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._queries = list({key_of(e.query): e.query for e in held}.values())
        pool: dict[str, Any] = {}
        for example in held:
            for item in (example.positive, *example.negatives):
                pool.setdefault(key_of(item), item)
        order = np.random.default_rng(seed).permutation(len(others)).tolist()
        for row in order[: max(size - len(pool), 0)]:
            pool.setdefault(key_of(others[row]), others[row])
        self._pool = list(pool.values())
        places = {key: place for place, key in enumerate(pool)}
        self._grades = np.zeros((len(self._queries), len(self._pool)), dtype=np.float32)
        for number, query in enumerate(self._queries):
            for key, grade in known.grades.get(key_of(query), {}).items():
                if key in places:
                    self._grades[number, places[key]] = grade
        self._micro = micro
        self._stored = dict(stored or {})
        self._fixed: dict[str, Tensor] = {}

    @property
    def n_queries(self) -> int:
        return len(self._queries)

    def score(self, tower: Trainable, tell: Callable[[int, int], None] | None = None) -> float:
        """Return the mean nDCG@10 with linear gains."""
        total = len(self._queries) + len(self._pool)
        asked = self._vectors(tower, self._queries, "query", lambda n: _say(tell, n, total))
        n_asked = len(self._queries)
        stored = self._vectors(
            tower, self._pool, "passage", lambda n: _say(tell, n_asked + n, total)
        )
        return float(ndcg((asked @ stored.T).numpy(), self._grades).mean())

    def _vectors(
        self, tower: Trainable, inputs: Sequence[Any], role: Role, tell: Callable[[int], None]
    ) -> Tensor:
        fixed = role in frozen_roles(tower)
        if fixed and role in self._fixed:
            return self._fixed[role]
        if fixed and all(key_of(item) in self._stored for item in inputs):
            self._fixed[role] = torch.stack([self._stored[key_of(item)] for item in inputs])
            return self._fixed[role]
        order = sorted(range(len(inputs)), key=lambda i: len(key_of(inputs[i])))
        parts = []
        with torch.no_grad():
            for first in range(0, len(order), self._micro):
                some = [inputs[i] for i in order[first : first + self._micro]]
                parts.append(tower.embed(some, role).float().cpu())
                tell(first + len(some))
        found = torch.cat(parts)
        vectors = torch.empty_like(found)
        vectors[torch.tensor(order)] = found
        if fixed:
            self._fixed[role] = vectors
        return vectors


def picture_recalls(
    tower: Trainable, held: Sequence[Example], *, micro: int = 16
) -> dict[str, float]:
    """Return R@k of captions among their pictures, and the reverse; ties count against."""
    captions: dict[str, list[str]] = {}
    pictures = {key_of(example.positive): example.positive for example in held}
    for example in held:
        captions.setdefault(key_of(example.positive), []).append(example.query)

    def vectors(inputs: Sequence[Any], role: Role) -> np.ndarray:
        parts = [tower.embed(inputs[i : i + micro], role) for i in range(0, len(inputs), micro)]
        return np.asarray(torch.cat(parts).float().cpu().numpy())

    with torch.no_grad():
        stored = vectors(list(pictures.values()), "passage")
        asked = vectors([text for key in pictures for text in captions[key]], "query")
    ends = np.cumsum([len(captions[key]) for key in pictures])
    return recalls(stored, np.split(asked, ends[:-1]))


def _say(tell: Callable[[int, int], None] | None, done: int, total: int) -> None:
    if tell is not None:
        tell(done, total)


def ndcg(scores: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """Return (q,) float64: nDCG@10 of each row, linear gains.

    scores: (q, n). grades: (q, n), a row of zeros scores 0.
    """
    k = min(K, scores.shape[1])
    # of equal scores the relevant one comes last, so that vectors that are all alike find nothing
    order = np.lexsort((grades, -scores), axis=1)[:, :k]
    discounts = 1 / np.log2(np.arange(k) + 2)
    gains = (np.take_along_axis(grades, order, axis=1) * discounts).sum(1)
    best = (-np.sort(-grades, axis=1)[:, :k] * discounts).sum(1)
    return np.asarray(np.where(best > 0, gains / np.where(best > 0, best, 1), 0), dtype=np.float64)
