"""InfiniRetri: read what is longer than the window, carrying the sentences looked at (2502.12962).

Window after window, the reader is shown what it has kept, the next sentences and the question.
The last layer's attention of the question, summed over heads and smoothed over a phrase, names the
tokens that matter; their whole sentences are carried on as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Hit
from foveate.rerank.compress.valued import ByValue, Valued

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.attention import AttentionScan
    from foveate.rerank.compress.units import Unit


class InfiniRetri(ByValue):
    """Sentences that survive every window.

    Args:
        resources: what the engine lends.
        window_tokens: of new sentences a window.
        carry_tokens: the best so many tokens of a window carry their sentences on.
        phrase_tokens: attention is summed over so many neighbours.
    """

    name = "infini"

    def __init__(
        self,
        resources: Resources,
        *,
        window_tokens: int = 1024,
        carry_tokens: int = 300,
        phrase_tokens: int = 15,
    ) -> None:
        if min(window_tokens, carry_tokens, phrase_tokens) < 1:
            raise ConfigError("compressor 'infini' needs all numbers of tokens >= 1")
        super().__init__(resources)
        self.window_tokens = window_tokens
        self.carry_tokens = carry_tokens
        self.phrase_tokens = phrase_tokens

    def value(self, query: str, hits: Sequence[Hit], found: Sequence[Unit]) -> Valued:
        """Return what `read` does, above 0 for what was carried to the end."""
        values, n_windows = self.read(query, found)
        return Valued(values, {"windows": n_windows, "carried": int((values > 0).sum())})

    def read(self, query: str, found: Sequence[Unit]) -> tuple[Floats, int]:
        """Read every window. Returns (n,) float32, above 0 where a unit is carried; windows read.

        What was dropped keeps its last value less a constant, so that it still ranks below.
        """
        scan = self._scan()
        counts = [max(1, self._resources.reader().count_tokens(unit.text)) for unit in found]
        values = np.zeros(len(found), dtype=np.float32)
        carried: list[int] = []
        at = n_windows = 0
        while at < len(found):
            end, size = at, 0
            while end < len(found) and (end == at or size + counts[end] <= self.window_tokens):
                size += counts[end]
                end += 1
            shown = [*carried, *range(at, end)]
            scores = self._scores(scan, query, [found[i].text for i in shown])
            keep = carry(scores, self.carry_tokens)
            # a phrase reaches into its neighbours, so the best token does not tell them apart
            means = [float(s.mean()) if len(s) else 0.0 for s in scores]
            top = max(means) or 1.0
            for i, mean, kept in zip(shown, means, keep, strict=True):
                values[i] = mean / top + (1e-6 if kept else -2)
            carried = [i for i, kept in zip(shown, keep, strict=True) if kept]
            at = end
            n_windows += 1
        return values, n_windows

    def _scan(self) -> AttentionScan:
        from foveate.rerank.attention import shared_scan

        config: Any = self._resources.reader().model.config
        last = int(config.num_hidden_layers) - 1
        heads = [(last, head) for head in range(int(config.num_attention_heads))]
        return shared_scan(
            self._resources,
            heads=heads,
            mode="causal",
            rows="question",
            calibrate=False,
            mask_deviations=None,
            share="prompt",
            read_tokens=2 * (self.window_tokens + self.carry_tokens) + 1024,
        )

    def _scores(self, scan: AttentionScan, query: str, texts: Sequence[str]) -> list[Floats]:
        """Return each text's token scores, smoothed over phrases across the texts."""
        look = scan.look(query, texts)
        lengths = [len(scores) for scores in look.token_scores]
        flat = np.concatenate([*look.token_scores, np.zeros(0, dtype=np.float32)])
        if not len(flat):
            return [np.zeros(0, dtype=np.float32) for _ in texts]
        smooth = np.convolve(flat, np.ones(self.phrase_tokens, dtype=np.float32), mode="same")
        smooth = smooth[: len(flat)].astype(np.float32)
        return list(np.split(smooth, np.cumsum(lengths)[:-1]))


def carry(scores: Sequence[Floats], n_tokens: int) -> list[bool]:
    """Say which texts hold one of the n best tokens; all of them where there are no more than n."""
    flat = np.concatenate([*scores, np.zeros(0, dtype=np.float32)])
    if len(flat) <= n_tokens:
        return [True] * len(scores)
    owners = np.repeat(np.arange(len(scores)), [len(s) for s in scores])
    chosen = set(owners[np.argsort(-flat, kind="stable")[:n_tokens]].tolist())
    return [i in chosen for i in range(len(scores))]
