"""Keep the clauses likeliest to hold the answer, each possible answer once.

A small network reads what is known of a clause (features.py) and says how likely it holds the
answer. The best sentences are kept whole; the rest of the budget goes to single clauses by
likelihood per token, and what was kept already counts for less: the budget covers possible
answers, as in the maximum coverage of Filatova and Hatzivassiloglou (2004). The network was
fitted on question sets whose licence allows it (weights/README.md), `foveate fit clauses` fits it
to yours.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foveate.pipeline.types import Context, Hit
from foveate.rerank.compress import clauses, packing, units
from foveate.rerank.compress.extractive import MOST_UNITS, readable
from foveate.rerank.compress.words import bm25, stems

if TYPE_CHECKING:
    import os

    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats
    from foveate.rerank.compress.features import Measured
    from foveate.rerank.compress.network import Network
    from foveate.rerank.compress.units import Unit


TEMPERATURE = 2.0


@dataclass(frozen=True, slots=True)
class Read:
    """The hits as the compressor sees them.

    sentences: units, in the hits' order. pieces: their clauses, each a unit. measured: what is
    known of each piece.
    """

    sentences: tuple[Unit, ...]
    pieces: tuple[Unit, ...]
    measured: Measured


class Clausal:
    """Clauses by their chance to hold the answer.

    Args:
        resources: what the engine lends.
        whole: share of the budget for whole sentences, 0..1.
        brevity: chances are divided by tokens to this power.
        repeat: how much of a clause's worth goes when all it could answer is kept already, 0..1.
        weights: a file that `foveate fit clauses` wrote; the shipped one by default.
    """

    name = "clauses"

    def __init__(
        self,
        resources: Resources,
        *,
        whole: float = 0.0,
        brevity: float = 0.5,
        repeat: float = 0.6,
        weights: str | os.PathLike[str] | None = None,
    ) -> None:
        self._resources = resources
        self.whole, self.brevity, self.repeat = whole, brevity, repeat
        self._weights = weights
        self._network: Network | None = None
        self._lock = threading.Lock()

    @property
    def network(self) -> Network:
        from foveate.rerank.compress.network import load

        with self._lock:
            if self._network is None:
                self._network = load(self._weights)
            return self._network

    def compress(
        self,
        query: str,
        hits: Sequence[Hit],
        budget_tokens: int,
        *,
        count_tokens: Callable[[str], int],
    ) -> Context:
        """Return the likeliest clauses, of at most budget_tokens."""
        everything = packing.whole(hits, budget_tokens, count_tokens)
        if everything is not None:
            return everything
        read = read_hits(self._resources, query, hits)
        chances = chances_of(self.network.scores(read.measured.features))
        kept = packing.Packing(hits, budget_tokens, count_tokens)
        self.fill(read, chances, kept)
        if kept.n_tokens == 0:
            best = sorted(range(len(read.pieces)), key=lambda i: -float(chances[i]))
            any(kept.squeeze(read.pieces[i]) for i in best)
        scores: dict[int, float] = {}
        for piece, chance in zip(read.pieces, chances.tolist(), strict=True):
            if kept.holds(piece):
                scores[piece.hit] = max(scores.get(piece.hit, 0.0), chance)
        told = {"by": self.name, "clauses": len(read.pieces), "asks_for": clauses.asked(query)}
        return kept.context(scores, told)

    def fill(self, read: Read, chances: Floats, kept: packing.Packing) -> None:
        """Keep whole sentences, then single clauses, while they fit.

        chances: (n,) float32, of each piece to hold the answer.
        """
        self._keep_sentences(read, chances, kept, round(self.whole * kept.budget))
        self._keep_pieces(read, chances, kept)

    def _keep_sentences(
        self, read: Read, chances: Floats, kept: packing.Packing, budget_tokens: int
    ) -> None:
        """Keep the sentences with the likeliest clauses whole, within a part of the budget."""
        import numpy as np

        best = np.zeros(len(read.sentences), dtype=np.float32)
        np.maximum.at(best, read.measured.sentence, chances)
        for s in np.argsort(-best, kind="stable").tolist():
            unit = read.sentences[s]
            cost = kept.count(unit.hit, unit.span)
            if kept.n_tokens + cost <= budget_tokens:
                kept.add(unit)

    def _keep_pieces(self, read: Read, chances: Floats, kept: packing.Packing) -> None:
        """Keep single clauses, the one with the most new chance per token first."""
        import numpy as np

        n = len(read.pieces)
        tokens = np.asarray([kept.count(p.hit, p.span) for p in read.pieces], dtype=np.float32)
        value = chances / np.maximum(tokens, 3) ** self.brevity
        holders: dict[str, list[int]] = defaultdict(list)
        for i, keys in enumerate(read.measured.found):
            for key in keys:
                holders[key].append(i)
        n_held = np.zeros(n, dtype=np.float32)
        n_keys = np.asarray([max(1, len(keys)) for keys in read.measured.found], dtype=np.float32)
        covered: set[str] = set()

        def cover(i: int) -> None:
            for key in read.measured.found[i] - covered:
                covered.add(key)
                n_held[holders[key]] += 1

        left = np.ones(n, dtype=bool)
        for i, piece in enumerate(read.pieces):
            if kept.holds(piece):
                cover(i)
                left[i] = False
        while left.any():
            gain = np.where(left, value * (1 - self.repeat * n_held / n_keys), -np.inf)
            i = int(gain.argmax())
            left[i] = False
            if kept.add(read.pieces[i]):
                cover(i)
            left &= tokens <= kept.room + 2  # a joined span may take fewer tokens than its parts


def chances_of(scores: Floats) -> Floats:
    """Return (n,) float32 within 0..1, the best one 1: flatter than a softmax.

    The budget has room for many clauses, so that one nearly sure may not push aside the rest.
    """
    import numpy as np

    top = scores.max(initial=-np.inf)
    found: Floats = np.exp((scores - top) / TEMPERATURE).astype(np.float32)
    return found


def read_hits(resources: Resources, query: str, hits: Sequence[Hit]) -> Read:
    """Cut the hits into sentences and clauses, and measure every clause."""
    import numpy as np

    from foveate.rerank.compress import features

    found = likeliest(query, hits, units.cut(hits, resources.sentences))
    pieces: list[Unit] = []
    sentences = []
    for unit in found:
        spans = [(0, len(unit.text))]
        if unit.kind == "prose":
            spans = clauses.clauses(unit.text, spans[0])
        sentences.append(features.Sentence(unit.hit, unit.text, tuple(spans)))
        pieces += [part_of(unit, span) for span in spans]
    encoder = resources.encoders["text"]
    vectors = np.zeros((0, encoder.dim), dtype=np.float32)
    if found:
        vectors = encoder.encode([readable(hits[u.hit], u.text) for u in found])
    asked = encoder.encode_queries([query])[0]
    titles = [" ".join(hit.passage.context.split()) for hit in hits]
    measured = features.measure(query, titles, sentences, vectors, asked)
    return Read(tuple(found), tuple(pieces), measured)


def likeliest(query: str, hits: Sequence[Hit], found: list[Unit]) -> list[Unit]:
    """Return at most so many units as are encoded for one question, by their words."""
    import numpy as np

    if len(found) <= MOST_UNITS:
        return found
    scores = bm25(stems(query), [stems(readable(hits[u.hit], u.text)) for u in found])
    chosen = np.sort(np.argsort(-scores, kind="stable")[:MOST_UNITS])
    return [found[i] for i in chosen]


def part_of(unit: Unit, span: units.Span) -> Unit:
    start = unit.span[0]
    place = (start + span[0], start + span[1])
    return units.Unit(unit.hit, place, unit.text[slice(*span)], unit.kind, unit.needs)
