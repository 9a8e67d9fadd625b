"""What an evaluation set is: a corpus with queries, captioned pictures, or questions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foveate.pipeline.errors import FoveateError


class DatasetError(FoveateError):
    """A data set that is not there or cannot be read."""


@dataclass(frozen=True, slots=True)
class Record:
    """One document of a corpus."""

    id: str
    title: str
    text: str

    @property
    def joined(self) -> str:
        """Title and text in one string, as the published BM25 baselines index them."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A corpus, queries and judgments.

    buckets: {query id: where its evidence stands}. folder: where it was loaded from.
    """

    name: str
    corpus: tuple[Record, ...]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    language: str = "en"
    buckets: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    folder: Path | None = field(default=None, compare=False)

    kind = "retrieval"

    @property
    def n_queries(self) -> int:
        return len(self.queries)

    @property
    def digest(self) -> str:
        """A hash of all that is measured on, the same for the same content."""
        return _digest(
            [[r.id, r.title, r.text] for r in self.corpus],
            sorted(self.queries.items()),
            sorted((q, sorted(docs.items())) for q, docs in self.qrels.items()),
        )


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures with captions: each is asked for by the other."""

    name: str
    images: Mapping[str, Path]
    captions: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    kind = "pictures"

    @property
    def n_queries(self) -> int:
        return sum(map(len, self.captions.values())) + len(self.images)

    @property
    def digest(self) -> str:
        return _digest(
            [[name, path.stat().st_size] for name, path in sorted(self.images.items())],
            sorted((name, list(some)) for name, some in self.captions.items()),
        )


@dataclass(frozen=True, slots=True)
class QuestionDoc:
    """A document that comes with a question."""

    title: str
    text: str
    is_gold: bool

    @property
    def joined(self) -> str:
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its accepted answers and its own documents.

    required: groups of alternatives; one of each group must be given. Empty means that any of
    `answers` counts. falsehoods: what planted documents say in the answer's place.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    docs: tuple[QuestionDoc, ...]
    answerable: bool = True
    required: tuple[tuple[str, ...], ...] = ()
    falsehoods: tuple[str, ...] = ()

    @property
    def yes_no(self) -> bool:
        return bool(self.answers) and all(a.strip().lower() in ("yes", "no") for a in self.answers)


@dataclass(frozen=True, slots=True)
class Questions:
    """A question set; each question is asked of its own documents, or of those of all."""

    name: str
    questions: tuple[Question, ...]
    language: str = "en"
    notes: tuple[str, ...] = ()

    kind = "questions"

    @property
    def n_queries(self) -> int:
        return len(self.questions)

    @property
    def digest(self) -> str:
        return _digest(
            [
                [q.id, q.text, list(q.answers), [[d.title, d.text, d.is_gold] for d in q.docs]]
                for q in self.questions
            ]
        )


Dataset = Retrieval | Pictures | Questions


def sample(dataset: Dataset, n: int | None) -> Dataset:
    """Keep n queries, questions or pictures, chosen by the hash of their ids; the corpus stays."""
    if n is None:
        return dataset
    if isinstance(dataset, Retrieval):
        return sample_queries(dataset, n)
    if isinstance(dataset, Questions):
        ids = set(_chosen([q.id for q in dataset.questions], n))
        return replace(dataset, questions=tuple(q for q in dataset.questions if q.id in ids))
    kept = _chosen(dataset.images, n)
    return replace(
        dataset,
        images={name: dataset.images[name] for name in kept},
        captions={name: dataset.captions[name] for name in kept},
    )


def sample_queries(dataset: Retrieval, n: int) -> Retrieval:
    """Keep n queries, chosen by the hash of their ids; the corpus stays."""
    kept = _chosen(dataset.queries, n)
    return replace(
        dataset,
        queries={q: dataset.queries[q] for q in kept},
        qrels={q: dataset.qrels[q] for q in kept},
    )


def own_name(question: int, doc: int) -> str:
    """Name a document of a question, by the numbers of both."""
    return f"q{question}-{doc}"


def own_golds(dataset: Questions) -> dict[str, set[str]]:
    """Return {question id: the names of its gold documents}."""
    return {
        question.id: {own_name(i, j) for j, doc in enumerate(question.docs) if doc.is_gold}
        for i, question in enumerate(dataset.questions)
    }


def pool(dataset: Questions) -> Retrieval:
    """Put the documents of all questions together, each text once; gold ones are the judgments."""
    names: dict[tuple[str, str], str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for question in dataset.questions:
        judged = qrels.setdefault(question.id, {})
        for doc in question.docs:
            name = names.setdefault((doc.title, doc.text), f"p{len(names)}")
            if doc.is_gold:
                judged[name] = 1
    return Retrieval(
        f"{dataset.name}-pooled",
        tuple(Record(name, title, text) for (title, text), name in names.items()),
        {q.id: q.text for q in dataset.questions},
        qrels,
        dataset.language,
    )


def language_of(text: str) -> str:
    """Return 'zh' when most letters are CJK ideographs, else 'en': which BM25 analyser to use."""
    letters = [c for c in text if c.isalpha()]
    wide = sum("\u3400" <= c <= "\u9fff" for c in letters)
    return "zh" if letters and wide > len(letters) / 2 else "en"


def _chosen(ids: Mapping[str, Any] | Sequence[str], n: int) -> list[str]:
    order = sorted(ids, key=lambda key: hashlib.sha1(key.encode()).hexdigest())
    kept = set(order[:n])
    return [key for key in ids if key in kept]


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
