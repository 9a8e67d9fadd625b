"""What is known of a clause, as numbers: how near, how linked, and whether it could answer.

A question of two hops is answered where its words do not stand. So beside nearness a clause has
links: its passage's title stands in a sentence that is near (`link_in`), it names the title of
such a passage (`link_out`), or it is near one (`hop`); and `spread` follows such links between
passages from the near ones (personalised PageRank).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foveate.rerank.compress import clauses
from foveate.rerank.compress.words import bm25, cover, plain, rarity, stems

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats
    from foveate.rerank.compress.clauses import Asked, Found
    from foveate.rerank.compress.units import Span

N_SEEDS = 4
DAMPING, N_STEPS = 0.5, 4
HELD = ("time", "number", "several", "name", "quoted", "place", "none")
OF_SENTENCE = (
    "cosine",
    "nearness",
    "overlap",
    "title_overlap",
    "bm25",
    "passage",
    "rank",
    "hop",
    "link_in",
    "link_out",
    "spread",
    "rest",
    "first",
    "position",
)
OF_CLAUSE = (
    "own_overlap",
    "own_relation",
    "fresh",
    "length",
    "n_new",
    "shouts",
    "opens",
    "closes",
    "brackets",
    "df_low",
    "df_high",
    "is_title",
    "support",
    "around",
    "company",
    "bridge",
)
NAMES = (
    *OF_SENTENCE,
    *OF_CLAUSE,
    *(f"{kind}:{held}" for kind in clauses.ASKED for held in HELD),
    *(f"{kind}:{name}" for kind in clauses.ASKED for name in ("first", "own_relation", "spread")),
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or a row or record, of a passage. passage: its number. pieces: its clauses."""

    passage: int
    text: str
    pieces: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Features (n, f) float32 of every clause; found: what each holds that is new."""

    features: Floats
    found: tuple[frozenset[str], ...]
    sentence: NDArray[np.int64]
    nearness: Floats


def measure(
    question: str,
    titles: Sequence[str],
    sentences: Sequence[Sentence],
    vectors: Floats,
    query: Floats,
) -> Measured:
    """Measure every clause of every sentence, in order.

    titles: of each passage, best passage first. sentences: in the passages' order.
    vectors: (s, d) float32, L2-normalised, of the sentences; query: (d,), of the question.
    """
    whole = _Sentences(question, titles, sentences, vectors, query)
    table = whole.table()
    kind = clauses.asked(question)
    named = frozenset(stems(" ".join(clauses.names(question))))
    inside = [[clauses.find(one.text[slice(*piece)]) for piece in one.pieces] for one in sentences]
    known = " ".join(plain(question).split())
    new = [[_new(found, known) for found in row] for row in inside]
    spread = Counter[str]()
    per_passage = defaultdict[int, set[str]](set)
    support = Counter[str]()
    for sentence, row, weight in zip(sentences, new, whole.weight.tolist(), strict=True):
        held = set[str]().union(*row)
        per_passage[sentence.passage] |= held
        for key in held:
            support[key] += weight
    for held in per_passage.values():
        spread.update(held)
    relation = {w: x for w, x in whole.asked.items() if w not in named}
    names = {" ".join(plain(title).split()) for title in titles}
    rows, keys, owner = [], [], []
    for s, sentence in enumerate(sentences):
        around = cover(relation, whole.own_words[s])
        inside_it = frozenset[str]().union(*new[s])
        title = " ".join(plain(titles[sentence.passage]).split())
        for c, piece in enumerate(sentence.pieces):
            text = sentence.text[slice(*piece)]
            own = {
                **_shape(text, c, len(sentence.pieces)),
                **_words(text, whole.asked, relation),
                **_answers(new[s][c], spread, support, names),
                "around": around,
                # the best known name beside it in its sentence, and that of its passage
                "company": max((support[k] for k in inside_it - new[s][c]), default=0.0) ** 0.5,
                "bridge": support[title] ** 0.5,
            }
            rows.append(_row(table[s], own, kind, _holds(inside[s][c], new[s][c], text)))
            keys.append(new[s][c])
            owner.append(s)
    features = np.asarray(rows, dtype=np.float32).reshape(-1, len(NAMES))
    return Measured(features, tuple(keys), np.asarray(owner, dtype=np.int64), whole.nearness)


def _row(
    sentence: Floats, own: dict[str, float], kind: Asked, holds: frozenset[str]
) -> list[float]:
    values = [*(float(x) for x in sentence), *(own[name] for name in OF_CLAUSE)]
    for other in clauses.ASKED:
        values += [float(other == kind and held in holds) for held in HELD]
    of = dict(zip(OF_SENTENCE, values, strict=False)) | own
    for other in clauses.ASKED:
        values += [of[x] if other == kind else 0.0 for x in ("first", "own_relation", "spread")]
    return values


def _shape(text: str, number: int, n_pieces: int) -> dict[str, float]:
    words = text.split()
    return {
        "length": float(np.log1p(len(words))),
        "shouts": sum(w[:1].isupper() for w in words) / max(1, len(words)),
        "opens": float(number == 0),
        "closes": float(number == n_pieces - 1),
        "brackets": float(text.startswith("(")),
    }


def _words(
    text: str, asked: Mapping[str, float], relation: Mapping[str, float]
) -> dict[str, float]:
    words = stems(text)
    held = frozenset(words)
    return {
        "own_overlap": cover(asked, held),
        "own_relation": cover(relation, held),
        "fresh": sum(w not in asked for w in words) / max(1, len(words)),
    }


def _answers(
    new: frozenset[str], spread: Counter[str], support: Counter[str], names: set[str]
) -> dict[str, float]:
    counts = [spread[key] for key in new] or [0]
    return {
        "n_new": float(np.log1p(len(new))),
        "df_low": float(np.log1p(min(counts))),
        "df_high": float(np.log1p(max(counts))),
        "is_title": float(bool(new & names)),
        "support": float(np.log1p(max((support[key] for key in new), default=0.0))),
    }


def _new(found: Found, known: str) -> frozenset[str]:
    return frozenset(key for key in found.keys if key not in known)


def _holds(found: Found, new: frozenset[str], text: str) -> frozenset[str]:
    names = found.names & new
    held = {
        "time": bool(found.times & new),
        "number": bool(found.numbers & new),
        "several": any(" " in name for name in names),
        "name": bool(names),
        "quoted": bool(found.quoted & new),
        "place": bool(clauses.PLACE.search(text)) and bool(names),
        "none": not new,
    }
    return frozenset(name for name, is_held in held.items() if is_held)


class _Sentences:
    """Features of the sentences, and what they are made of."""

    def __init__(
        self,
        question: str,
        titles: Sequence[str],
        sentences: Sequence[Sentence],
        vectors: Floats,
        query: Floats,
    ) -> None:
        self.sentences = sentences
        self.n = len(sentences)
        self.passage = np.asarray([s.passage for s in sentences], dtype=np.int64)
        self.titles = [frozenset(stems(title)) for title in titles]
        stemmed = [stems(s.text) for s in sentences]
        self.own_words = [frozenset(words) for words in stemmed]
        self.words = [
            own | self.titles[s.passage] for s, own in zip(sentences, self.own_words, strict=True)
        ]
        texts = [stems(title) for title in titles]
        for sentence, words in zip(sentences, stemmed, strict=True):
            texts[sentence.passage] += words
        idf = rarity(texts)
        top = max(idf.values(), default=1.0)
        self.asked = {w: idf.get(w, top) for w in dict.fromkeys(stems(question))}
        self.cosine = vectors @ query
        self.nearness = _standard(self.cosine)
        self.bm25 = _standard(bm25(list(self.asked), texts))
        self.overlap = np.asarray([cover(self.asked, w) for w in self.words], dtype=np.float32)
        near = self.nearness + 2 * self.overlap
        self.weight = np.exp(near - near.max(initial=-np.inf)) if self.n else near
        self.best = self._best_of_passages(len(titles))
        self.vectors = vectors

    def table(self) -> Floats:
        """Return (s, features) float32."""
        n_passages = len(self.titles)
        links = self._links()
        spread = _standard(_spread(links, self.best))
        seeds = self._seeds()
        columns = {
            "cosine": self.cosine,
            "nearness": self.nearness,
            "overlap": self.overlap,
            "title_overlap": self._of_passages([cover(self.asked, title) for title in self.titles]),
            "bm25": self.bm25[self.passage],
            "passage": _standard(self.best)[self.passage],
            "rank": self._of_passages([1 / (1 + i) for i in range(n_passages)]),
            "hop": self._hop(seeds),
            "link_in": links.max(axis=0, initial=0.0)[self.passage],
            "link_out": self._link_out(),
            "spread": spread[self.passage],
            "rest": self._rest(seeds),
            "first": self._position() == 0,
            "position": np.minimum(self._position(), 10) / 10,
        }
        return np.stack([np.asarray(columns[n], np.float32) for n in OF_SENTENCE], axis=1)

    def _of_passages(self, values: Sequence[float]) -> Floats:
        found: Floats = np.asarray(values, dtype=np.float32)[self.passage]
        return found

    def _best_of_passages(self, n_passages: int) -> Floats:
        best = np.full(n_passages, self.weight.min(initial=0.0), dtype=np.float32)
        np.maximum.at(best, self.passage, self.weight.astype(np.float32))
        return best

    def _links(self) -> Floats:
        """Return (p, p) float32: how far sentences of a passage that are near name another's title.

        A title whose words all stand in the question leads nowhere new.
        """
        n = len(self.titles)
        links = np.zeros((n, n), dtype=np.float32)
        open_titles = [title - self.asked.keys() for title in self.titles]
        for s, words in enumerate(self.own_words):
            a = self.passage[s]
            for b in range(n):
                if b != a and open_titles[b] and self.titles[a] != self.titles[b]:
                    share = len(open_titles[b] & words) / len(open_titles[b])
                    if share >= 0.5:
                        links[a, b] = max(links[a, b], share * self.weight[s])
        return links

    def _link_out(self) -> Floats:
        """Return (s,): the weight of the nearest passage, not its own, whose title it names."""
        found = np.zeros(self.n, dtype=np.float32)
        for s, (sentence, words) in enumerate(zip(self.sentences, self.own_words, strict=True)):
            for b, title in enumerate(self.titles):
                if b != sentence.passage and title and title <= words:
                    found[s] = max(found[s], self.best[b])
        return found

    def _seeds(self) -> list[int]:
        """Return the nearest sentence of each of the nearest passages."""
        chosen: list[int] = []
        for s in np.argsort(-self.weight, kind="stable").tolist():
            if all(self.passage[s] != self.passage[t] for t in chosen):
                chosen.append(s)
            if len(chosen) == N_SEEDS:
                break
        return chosen

    def _hop(self, seeds: Sequence[int]) -> Floats:
        found = np.zeros(self.n, dtype=np.float32)
        for s in seeds:
            likeness = self.vectors @ self.vectors[s] * float(self.weight[s]) ** 0.5
            likeness[self.passage == self.passage[s]] = 0
            found = np.maximum(found, likeness)
        return found

    def _rest(self, seeds: Sequence[int]) -> Floats:
        """Return (s,): which part of the question that the best seed leaves open it covers."""
        if not seeds:
            return np.zeros(self.n, dtype=np.float32)
        left = {w: x for w, x in self.asked.items() if w not in self.words[seeds[0]]}
        return np.asarray([cover(left, words) for words in self.words], dtype=np.float32)

    def _position(self) -> NDArray[np.int64]:
        found = np.zeros(self.n, dtype=np.int64)
        for s in range(1, self.n):
            if self.passage[s] == self.passage[s - 1]:
                found[s] = found[s - 1] + 1
        return found


def _spread(links: Floats, start: Floats) -> Floats:
    """Follow links between passages from the near ones."""
    total = float(start.sum()) or 1.0
    begin = start / total
    steps = links / np.maximum(links.sum(axis=1, keepdims=True), 1e-6)
    found = begin
    for _ in range(N_STEPS):
        found = (1 - DAMPING) * begin + DAMPING * (found @ steps)
    return np.asarray(found, dtype=np.float32)


def _standard(values: Floats) -> Floats:
    """Return the values with mean 0 and deviation 1."""
    if not len(values):
        return np.asarray(values, dtype=np.float32)
    return np.asarray((values - values.mean()) / (values.std() + 1e-6), dtype=np.float32)
