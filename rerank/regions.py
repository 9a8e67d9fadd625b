"""Rerank pictures by the regions that the query looks at, and say which those are.

    a_j = softmax_j([<t, v_j> / temperature, 0])   the 0 is a key that lets the query see nothing
    s   = (1 - share) <t, v> + share <t, normalise(sum_j a_j v_j)>

t: the query. v: the picture's stored vector. v_j: its patches, of any image tower that has
`encode_regions`. Text-conditioned pooling: FLAIR, arXiv 2412.03561, without its trained
projections. The a_j are the heat map.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Hit

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder, Resources
    from foveate.pipeline.types import Floats, Passage

    Regions = tuple[Floats, Floats]

PICTURES = frozenset({"image", "page"})
ROLE = "image"


class Conditioned:
    """Order pictures by their vector and by what the query pools from their patches.

    share: weight of the pooled patches. temperature: of the softmax; smaller looks at fewer.
    keep: pictures whose patches are kept in memory. `scores["regions"]` is s, -1..1; `score` is
    (s + 1) / 2.
    """

    name = "regions"
    reads = PICTURES

    def __init__(
        self,
        resources: Resources,
        *,
        share: float = 0.4,
        temperature: float = 0.07,
        keep: int = 512,
    ) -> None:
        if not 0 <= share <= 1 or temperature <= 0 or keep < 1:
            raise ConfigError(
                "reranker 'regions' wants share in 0..1, temperature > 0 and keep >= 1, "
                f"got {share}, {temperature}, {keep}"
            )
        self._resources = resources
        self._share, self._temperature, self._keep = share, temperature, keep
        self._lock = threading.Lock()
        self._seen: OrderedDict[int, Regions] = OrderedDict()

    @property
    def encoder(self) -> Encoder:
        """The index's image tower.

        Raises:
            ConfigError: if there is none, or it gives no patches.
        """
        found = self._resources.encoders.get(ROLE)
        if found is None or not hasattr(found, "encode_regions"):
            what = "an index without an image tower" if found is None else repr(found.tower)
            raise ConfigError(
                f"reranker 'regions' needs patches of pictures, and {what} gives none"
            )
        return found

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
        """Return (n,) float32: s of each hit."""
        import numpy as np
        import torch

        from foveate.kernels.attention import Score, Softmax
        from foveate.kernels.pooled_attention import pooled_attention

        asked = self.encoder.encode_queries([query])
        stored = self._resources.index.vectors([hit.passage.id for hit in hits], ROLE)
        patches = [self.regions(hit.passage)[0] for hit in hits]
        offsets = np.cumsum([0, *map(len, patches)])
        flat = torch.from_numpy(np.concatenate(patches))
        with torch.no_grad():
            pooled = pooled_attention(
                torch.from_numpy(asked),
                flat,
                flat,
                torch.from_numpy(offsets),
                score=Score(1 / self._temperature),
                normaliser=Softmax(zero=True),
            )[:, 0]
            seen = torch.nn.functional.normalize(pooled, dim=1).numpy() @ asked[0]
        mixed = (1 - self._share) * (stored @ asked[0]) + self._share * seen
        # a picture without a stored vector is judged by its patches alone
        scores: Floats = np.where(np.isnan(mixed), seen, mixed).clip(-1, 1).astype(np.float32)
        return scores

    def heat(self, query: str, passage: Passage) -> Regions:
        """Return where the query looks: weights (c,) that sum to at most 1, boxes (c, 4)."""
        import numpy as np
        import torch

        from foveate.kernels.attention import Softmax

        vectors, boxes = self.regions(passage)
        logits = vectors @ self.encoder.encode_queries([query])[0] / self._temperature
        weights, _ = Softmax(zero=True).weights(torch.from_numpy(logits)[None])
        return np.asarray(weights[0].numpy(), dtype=np.float32), boxes

    def regions(self, passage: Passage) -> Regions:
        """Return vectors (c, d) and boxes (c, 4) of a picture's patches."""
        with self._lock:
            if passage.id in self._seen:
                self._seen.move_to_end(passage.id)
                return self._seen[passage.id]
        encoder: Any = self.encoder
        made: Regions = encoder.encode_regions(self._resources.image(passage))
        with self._lock:
            self._seen[passage.id] = made
            while len(self._seen) > self._keep:
                self._seen.popitem(last=False)
        return made


def grid(weights: Floats, boxes: Floats) -> Floats:
    """Return the heat (rows, columns) float32 on even cells over the picture, its largest 1.

    Cells may be cut at the edges of a padded picture; each even cell takes the box that its middle
    lies in.
    """
    import numpy as np

    columns, rows = (len(np.unique(boxes[:, axis].round(4))) for axis in (0, 1))
    x, y = (np.arange(columns) + 0.5) / columns, (np.arange(rows) + 0.5) / rows
    inside = (
        (boxes[:, 0] <= x[None, :, None])
        & (x[None, :, None] < boxes[:, 2])
        & (boxes[:, 1] <= y[:, None, None])
        & (y[:, None, None] < boxes[:, 3])
    )
    heat = np.asarray(weights[inside.argmax(axis=2)], dtype=np.float32)
    return heat / max(float(heat.max()), 1e-12)
