"""LangChain's vector store over a foveate index. Only this file and langchain.py need it."""

from __future__ import annotations

import difflib
import os
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from foveate.pipeline import texts
from foveate.pipeline.engine import Engine
from foveate.pipeline.engine import open as open_index
from foveate.pipeline.errors import QueryError
from foveate.pipeline.places import content_of, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Hit

Filter = str | Mapping[str, Any]
FIELD = re.compile(r"[^\W\d][\w\-]*(?:\.[\w\-]+)*")
# what LangChain's own indexing gives; here all is one commit
PASSED_OVER = ("batch_size",)


class FoveateVectorStore(VectorStore):
    """Documents in a foveate index, found by meaning and words, filtered by their metadata.

    Documents that a program adds stand beside files that `foveate index` added; both are found.
    A filter is the filter language, or {field: value} with every pair to hold.

    Args:
        embedding: encodes texts in the place of the index's own encoder; give the same one each
            time. None takes the configured encoder.
        path: the index's folder, made if it is not there; None is `.foveate`.
        engine: an open index, instead of a path.
        mode: 'hybrid', 'dense' or 'words'.
    """

    def __init__(
        self,
        embedding: Embeddings | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        engine: Engine | None = None,
        mode: str = "hybrid",
    ) -> None:
        if engine is None:
            encoders = None if embedding is None else {"text": Embedded(embedding)}
            engine = open_index(path, create=True, encoders=encoders)
        self.engine = engine
        self.mode = mode
        self._embedding = embedding

    @property
    def embeddings(self) -> Embeddings:
        """What encodes texts here."""
        if self._embedding is None:
            from foveate.pipeline.langchain import FoveateEmbeddings

            self._embedding = FoveateEmbeddings(self.engine.encoders["text"])
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> FoveateVectorStore:
        """Open a store by the options of `__init__` and add texts to it."""
        store = cls(embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **options: Any,
    ) -> list[str]:
        """Index texts, one passage each; a text whose id is there already takes its place.

        Raises:
            TypeError: for an unknown keyword, one text in the place of a list, or one that is none.
            ValueError: for metadatas or ids of another number than the texts.
        """
        check_names("add_texts", options, ("texts", "metadatas", "ids"), also=PASSED_OVER)
        given = listed("texts", texts)
        for text in given:
            if not isinstance(text, str):
                raise TypeError(f"each of texts must be a text, got {text!r:.80}")
        facts = [{} for _ in given] if metadatas is None else listed("metadatas", metadatas)
        asked = listed("ids", ids) if ids else [None] * len(given)
        for name, some in (("metadatas", facts), ("ids", asked)):
            if len(some) != len(given):
                raise ValueError(
                    f"got {len(given)} texts and {len(some)} {name}: give one for each text, or "
                    f"leave {name} out"
                )
        for fact in facts:
            if not isinstance(fact, Mapping):
                raise TypeError(f"each of metadatas must be a mapping, got {fact!r:.80}")
        names = [name or uuid.uuid4().hex for name in asked]
        # a text given twice under one id counts as the last says
        items = {n: (t, m) for n, t, m in zip(names, given, facts, strict=True)}
        self._put([(name, text, meta) for name, (text, meta) in items.items()])
        return names

    def add_documents(self, documents: list[Document], **options: Any) -> list[str]:
        """Index documents under their own ids, or those of `ids=`."""
        ids = options.pop("ids", None) or [document.id for document in documents]
        contents = [document.page_content for document in documents]
        return self.add_texts(contents, [d.metadata for d in documents], ids=ids, **options)

    def _put(self, items: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        if items:
            texts.put(self.engine, [texts.Given(*item) for item in items])

    def delete(self, ids: list[str] | None = None, **options: Any) -> bool | None:
        """Take documents out by id; all that were added here where ids is None."""
        check_names("delete", options, ("ids",))
        texts.drop(self.engine, None if ids is None else listed("ids", ids))
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return documents by the ids under which they were added."""
        return [document_of(passage) for passage in texts.find(self.engine, listed("ids", ids))]

    def similarity_search(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[Document]:
        """Return the k documents that fit the words best."""
        return [document for document, _ in self._search(query, k, filter, **options)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """Return the k best with their scores, 0..1, higher is better."""
        return self._search(query, k, filter, **options)

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **options: Any,
    ) -> list[Document]:
        """Return k of the fetch_k best that repeat each other least (Carbonell, Goldstein 1998).

        lambda_mult: 1 counts the likeness to the query only, 0 the variety only.
        """
        import numpy as np
        from langchain_core.vectorstores.utils import maximal_marginal_relevance

        hits = self._hits(query, max(k, fetch_k), filter, **options)
        hits = [hit for hit in hits if hit.passage.modality in ("text", "table")]
        if not hits:
            return []
        vectors = self.engine.index.vectors([hit.passage.id for hit in hits], "text")
        asked = self.engine.encoders["text"].encode_queries([query])[0]
        rows = list(np.nan_to_num(vectors))
        chosen = maximal_marginal_relevance(asked, rows, lambda_mult=lambda_mult, k=k)
        return [document_of(hits[i].passage) for i in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return float  # a score is within 0..1 and rises already

    def _search(
        self, query: str, k: int, filter: Filter | None, **options: Any
    ) -> list[tuple[Document, float]]:
        found = self._hits(query, k, filter, **options)
        return [(document_of(hit.passage), hit.score) for hit in found]

    def _hits(self, query: str, k: int, filter: Filter | None, **options: Any) -> list[Hit]:
        chosen = {"mode": self.mode, "collapse": False, **options}
        return self.engine.search(query, k=k, where=condition(filter), **chosen)


def check_names(
    where: str, given: Iterable[str], known: Collection[str], *, also: Collection[str] = ()
) -> None:
    """Refuse keywords that nothing would heed. also: passed over, and not listed.

    Raises:
        TypeError: naming the first, the closest that is known, and all that are.
    """
    for name in given:
        if name not in known and name not in also:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{where} takes no {name!r}{hint} (known: {', '.join(known)})")


def listed(name: str, given: Iterable[Any]) -> list[Any]:
    """Return a list; one text is none, though it can be walked through. Raises TypeError."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a list, got {given!r:.80}: put it in one")
    return list(given)


def condition(given: Filter | None) -> str | None:
    """Return a filter in the filter language. Raises QueryError for what it cannot hold."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise QueryError(
            "filter must be {field: value}, or a text in the filter language such as "
            f"'meta.year >= 2020', got {given!r:.80}"
        )
    for name in given:
        if not isinstance(name, str) or not FIELD.fullmatch(name):
            raise QueryError(f"a filter's field must be a name such as 'year', got {name!r:.80}")
    return " and ".join(f"meta.{name} = {literal(value)}" for name, value in given.items()) or None


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = re.sub(r"(['\\])", r"\\\1", value)
        return f"'{escaped}'"
    raise QueryError(f"a filter cannot hold the value {value!r}: write it in the filter language")


def document_of(passage: Any) -> Document:
    """Return a document as it was added; of a file's passage, with its place in the metadata."""
    name = texts.id_of(passage)
    if name is None:
        metadata = {**passage.metadata, "foveate": place_of(passage)}
        return Document(page_content=content_of(passage), metadata=metadata, id=passage.label)
    return Document(page_content=passage.text, metadata=dict(passage.metadata), id=name)


class Embedded:
    """A LangChain embedding model as an encoder."""

    reads = frozenset({"text"})
    window_tokens = None

    def __init__(self, embedding: Embeddings) -> None:
        self._embedding = embedding
        name = getattr(embedding, "model_name", None) or getattr(embedding, "model", None)
        self._name = f"langchain:{type(embedding).__name__}:{name or 'default'}"
        self._dim: int | None = None

    @property
    def dim(self) -> int:
        if self._dim is None:
            self._dim = len(self._embedding.embed_query("dimension"))
        return self._dim

    @property
    def space(self) -> str:
        return f"{self._name}/{self.dim}"

    @property
    def tower(self) -> str:
        return f"{self._name}/{self.dim}|normalised"

    def encode(self, inputs: Sequence[Any], *, progress: Any = None) -> Floats:
        made = self._embedding.embed_documents(list(inputs)) if inputs else []
        if progress is not None:
            progress(len(inputs))
        return self._unit(made)

    def encode_queries(self, queries: Sequence[Any]) -> Floats:
        return self._unit([self._embedding.embed_query(query) for query in queries])

    def _unit(self, made: Sequence[Sequence[float]]) -> Floats:
        import numpy as np

        vectors = np.asarray(made, dtype=np.float32).reshape(-1, self.dim)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.ascontiguousarray(vectors / np.maximum(norms, 1e-12))

    def token_spans(self, text: str) -> NDArray[Any]:
        import re

        import numpy as np

        spans = [m.span() for m in re.finditer(r"\w+|[^\w\s]", text)]
        return np.asarray(spans, dtype=np.int32).reshape(-1, 2)
