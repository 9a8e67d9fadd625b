"""Published baselines that go through the same harness, to show that it measures right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foveate.pipeline.errors import MissingExtra
from foveate.pipeline.evaluate.sets import Questions, Retrieval, own_name

BASELINES = ("bm25", "bm25/pooled")


class BM25:
    """bm25s as the data sets' own figures were made: lucene, k1 1.5, b 0.75, stems, stop words.

    Chinese is cut into the character bigrams, in lower case, of each run without a space.
    """

    def __init__(self, texts: Sequence[str], language: str = "en") -> None:
        bm25s, stemmer = _packages()
        self._tokenize = bm25s.tokenize
        self._bigrams = language == "zh"
        self._stemmer = stemmer.Stemmer("english")
        self._n = len(texts)
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        tokens = self._tokens(texts, ids=True)
        self._empty = not (any(tokens) if self._bigrams else tokens.vocab)
        if not self._empty:
            self._index.index(tokens, show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> list[list[int]]:
        """Return for each query the numbers of its k best texts, without those that score 0."""
        if self._empty:
            return [[] for _ in queries]
        tokens = self._tokens(queries, ids=False)
        ids, scores = self._index.retrieve(
            tokens, k=min(k, self._n), show_progress=False, n_threads=1
        )
        return [
            [int(i) for i, s in zip(row, values, strict=True) if s > 0]
            for row, values in zip(ids, scores, strict=True)
        ]

    def _tokens(self, texts: Sequence[str], *, ids: bool) -> Any:
        if self._bigrams:
            return [_bigrams(text) for text in texts]
        return self._tokenize(
            list(texts),
            stopwords="en",
            stemmer=self._stemmer,
            return_ids=ids,
            show_progress=False,
        )


def bm25_run(dataset: Retrieval, k: int) -> dict[str, list[str]]:
    """Return {query id: the ids of its k best documents}."""
    model = BM25([record.joined for record in dataset.corpus], dataset.language)
    ids = [record.id for record in dataset.corpus]
    found = model.search(list(dataset.queries.values()), k)
    return {q: [ids[i] for i in row] for q, row in zip(dataset.queries, found, strict=True)}


def bm25_orders(dataset: Questions) -> dict[str, list[str]]:
    """Return {question id: the names of its own documents, best first}."""
    found = {}
    for i, question in enumerate(dataset.questions):
        model = BM25([d.joined for d in question.docs], dataset.language)
        (order,) = model.search([question.text], len(question.docs))
        found[question.id] = [own_name(i, j) for j in order]
    return found


def _bigrams(text: str) -> list[str]:
    return [word[i : i + 2] for word in text.lower().split() for i in range(len(word) - 1)]


def _packages() -> tuple[Any, Any]:
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise MissingExtra(
            "the bm25 baseline", "bm25s and PyStemmer", "pip install 'foveate[peers]'"
        ) from error
    return bm25s, Stemmer
