"""Fit what a stage must know beforehand to labelled questions: clause chances, a probe, a profile.

A set's own documents are the candidates of each question; a clause is right where it holds an
answer that the documents hold. Figures come from folds: no question is scored by what was fitted
on it.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.protocols import Resources
from foveate.pipeline.types import Hit, Locator, Passage, Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from foveate.pipeline.config import Config
    from foveate.pipeline.evaluate.sets import Question
    from foveate.pipeline.types import Context, Floats

N_FOLDS = 5
RATIO = 5.0  # compression at which folds are scored
PLACES = (5, 10, 20)  # of a position profile
RANK = 60  # of reciprocal rank fusion (Cormack et al. 2009)

Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A question of a set, and its documents as hits."""

    set: str
    question: Question
    hits: tuple[Hit, ...]

    @property
    def fold(self) -> int:
        return int(hashlib.sha1(self.question.id.encode()).hexdigest(), 16) % N_FOLDS

    def holds(self, text: str) -> bool:
        from foveate.pipeline.evaluate.metrics import contains

        return any(contains(text, answer) for answer in self.question.answers)


@dataclass(frozen=True, slots=True)
class Fitted:
    """table: what is saved, JSON-able. kept: {set: (share of answers kept at 5x, questions)}."""

    table: Mapping[str, Any]
    kept: Mapping[str, tuple[float, int]]


def lend(config: Config) -> Resources:
    """Return what stages are lent when there is no index."""
    from foveate.pipeline import registry
    from foveate.pipeline.ingest.sentences import sentences
    from foveate.pipeline.reader import Reader

    name, options = config.component("encoders.text")
    reader = Reader(**config.table("reader"))

    def missing(*_: Any) -> Any:
        raise ConfigError("fitting has no index, so nothing that needs one can be fitted")

    return Resources(
        encoders={"text": registry.find("encoder", name)(**options)},
        index=None,
        folder=Path(),
        text=missing,
        image=missing,
        sentences=sentences,
        reader=lambda: reader,
        generator=missing,
    )


def cases(names: Sequence[str], resources: Resources, n: int | None = None) -> Iterator[Case]:
    """Yield the questions that can be learnt from: a written answer stands in the documents.

    n: of each set at most, chosen by the hash of their ids.

    Raises:
        ConfigError: for a set without questions.
    """
    from foveate.pipeline.evaluate import datasets
    from foveate.pipeline.evaluate.sets import Questions, sample

    for name in names:
        found = [d for d in datasets.load(name) if isinstance(d, Questions)]
        if not found:
            raise ConfigError(f"{name!r} holds no questions: fit from a question set")
        for dataset in found:
            chosen = sample(dataset, n)
            assert isinstance(chosen, Questions)
            for question in chosen.questions:
                if question.yes_no or not question.answerable:
                    continue
                case = Case(dataset.name, question, tuple(hits_of(question, resources)))
                if case.holds("\n".join(hit.passage.text for hit in case.hits)):
                    yield case


def hits_of(question: Question, resources: Resources) -> list[Hit]:
    """Rank a question's own documents by BM25 and by vectors, fused by rank."""
    import numpy as np

    from foveate.rerank.compress.words import bm25, stems

    docs = [doc for doc in question.docs if doc.text.strip()]
    if not docs:
        return []
    encoder = resources.encoders["text"]
    texts = [f"{doc.title}\n{doc.text}" for doc in docs]
    dense = encoder.encode(texts) @ encoder.encode_queries([question.text])[0]
    words = bm25(stems(question.text), [stems(text) for text in texts])
    score = np.zeros(len(docs))
    for values in (dense, words):
        score[np.argsort(-values, kind="stable")] += 1 / (RANK + np.arange(1, len(docs) + 1))
    found = []
    for i in np.argsort(-score, kind="stable").tolist():
        doc = docs[i]
        digest = hashlib.sha256(f"{question.id} {i}".encode()).hexdigest()
        source = Source(digest[:32], (f"/{i}",), "text/plain", "text", len(doc.text), 0.0)
        place = Locator((0, len(doc.text)))
        passage = Passage(i + 1, 0, source, "text", doc.text, place, doc.title)
        found.append(Hit(passage, float(score[i]) * RANK / 2))
    return found


def fit_clauses(found: Sequence[Case], resources: Resources, tell: Tell | None = None) -> Fitted:
    """Fit the network of the compressor 'clauses'."""
    from foveate.rerank.compress import features, network, packing
    from foveate.rerank.compress.clausal import Clausal, chances_of, read_hits

    compressor = Clausal(resources)
    count = resources.reader().count_tokens
    reads, labels = [], []
    for done, case in enumerate(found, start=1):
        reads.append(read_hits(resources, case.question.text, case.hits))
        labels.append(_right(case, [piece.text for piece in reads[-1].pieces]))
        if tell is not None:
            tell(done, len(found))

    def fit(chosen: Sequence[int]) -> network.Network:
        return network.fit(
            features.NAMES,
            [reads[i].measured.features for i in chosen],
            [labels[i] for i in chosen],
        )

    def compress(i: int, made: network.Network) -> Context:
        hits = found[i].hits
        kept = packing.Packing(hits, _budget(found[i], count), count)
        compressor.fill(reads[i], chances_of(made.scores(reads[i].measured.features)), kept)
        return kept.context({}, {})

    useful = [i for i, row in enumerate(labels) if row.any()]
    kept = _folds(found, useful, fit, compress)
    return Fitted({**fit(useful).as_dict(), **_facts(found, kept)}, kept)


def fit_sentinel(found: Sequence[Case], resources: Resources, tell: Tell | None = None) -> Fitted:
    """Fit the probe of the compressor 'sentinel' to the configured reader."""
    import numpy as np

    from foveate.rerank.compress import sentinel, units, valued

    count = resources.reader().count_tokens
    cut, seen, labels = [], [], []
    for done, case in enumerate(found, start=1):
        cut.append(units.cut(case.hits, resources.sentences))
        seen.append(sentinel.features(resources, case.question.text, case.hits, cut[-1]))
        labels.append(_right(case, [unit.text for unit in cut[-1]]))
        if tell is not None:
            tell(done, len(found))

    def fit(chosen: Sequence[int]) -> sentinel.Probe:
        return sentinel.fit(
            resources.reader().name, [seen[i] for i in chosen], [labels[i] for i in chosen]
        )

    def compress(i: int, probe: sentinel.Probe) -> Context:
        values = probe.chances(np.asarray(seen[i]))
        budget = _budget(found[i], count)
        return valued.keep("sentinel", found[i].hits, cut[i], valued.Valued(values), budget, count)

    useful = [i for i, row in enumerate(labels) if row.any()]
    kept = _folds(found, useful, fit, compress)
    return Fitted({**fit(useful).as_dict(), **_facts(found, kept)}, kept)


def fit_profile(
    found: Sequence[Case], resources: Resources, tell: Tell | None = None
) -> dict[int, Floats]:
    """Measure where the configured reader looks, for several numbers of places."""
    from foveate.rerank.order import profile

    measured = {}
    for number, n_places in enumerate(PLACES):
        texts = [
            (case.question.text, [f"{h.passage.context}\n{h.passage.text}" for h in case.hits])
            for case in found
            if len(case.hits) >= n_places
        ]
        if texts:
            before = number * len(found)
            told = (
                None if tell is None else lambda i, b=before: tell(b + i, len(PLACES) * len(found))
            )
            measured[n_places] = profile.measure(resources, texts, n_places, tell=told)
    return measured


def _right(case: Case, texts: Sequence[str]) -> NDArray[np.bool_]:
    import numpy as np

    return np.asarray([case.holds(text) for text in texts], dtype=bool)


def _budget(case: Case, count: Callable[[str], int]) -> int:
    return int(sum(count(hit.passage.text) for hit in case.hits) / RATIO)


def _folds(
    found: Sequence[Case],
    useful: Sequence[int],
    fit: Callable[[Sequence[int]], Any],
    compress: Callable[[int, Any], Context],
) -> dict[str, tuple[float, int]]:
    """Return {set: (share of answers kept, questions)}, each question by the other folds' fit."""
    outcomes = defaultdict[str, list[bool]](list)
    for fold in range(N_FOLDS):
        asked = [i for i, case in enumerate(found) if case.fold == fold]
        chosen = [i for i in useful if found[i].fold != fold]
        if not asked or not chosen:
            continue
        made = fit(chosen)
        for i in asked:
            outcomes[found[i].set].append(found[i].holds(text_of(compress(i, made))))
    return {name: (statistics.fmean(kept), len(kept)) for name, kept in outcomes.items()}


def text_of(context: Context) -> str:
    """Return what is kept, a line a span."""
    parts = []
    for kept in context.kept:
        base = kept.hit.passage.locator.span[0] if kept.hit.passage.locator.span else 0
        parts += [kept.hit.passage.text[a - base : b - base] for a, b in kept.spans]
    return "\n".join(parts)


def _facts(found: Sequence[Case], kept: Mapping[str, tuple[float, int]]) -> dict[str, Any]:
    sets = {name: sum(case.set == name for case in found) for name in {c.set for c in found}}
    return {
        "fitted_on": dict(sorted(sets.items())),
        "answers_kept_at_5x_by_folds": {
            name: [round(share, 4), n] for name, (share, n) in sorted(kept.items())
        },
    }
