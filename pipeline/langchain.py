"""LangChain's interfaces over a foveate index: `from foveate.langchain import FoveateRetriever`.

Only this file and vectorstore.py need langchain-core.

    retriever = FoveateRetriever.open("notes.fov", k=4, where="type = 'pdf'")
    documents = retriever.invoke("What limits the aspect ratio of the wing?")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline import config as configuration
from foveate.pipeline.engine import Engine
from foveate.pipeline.engine import open as open_index
from foveate.pipeline.errors import MissingExtra
from foveate.pipeline.opening import make_encoders
from foveate.pipeline.places import content_of, metadata_of
from foveate.pipeline.types import Hit, Locator, Passage, Source

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise MissingExtra(
        "foveate.pipeline.langchain",
        f"langchain-core ({error})",
        "pip install 'langchain-core>=1.0'",
    ) from error

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder

from foveate.pipeline.vectorstore import FoveateVectorStore, check_names

__all__ = ["FoveateCompressor", "FoveateEmbeddings", "FoveateRetriever", "FoveateVectorStore"]


class FoveateRetriever(BaseRetriever):
    """Find passages and pictures by words, as LangChain documents.

    A document's page_content is the passage's text; its metadata are the source's own fields and,
    under 'foveate', what locates it: id, label, uri, modality, page, span, row, boxes, score,
    scores. rerank: as in `Engine.search`.
    `invoke`, `ainvoke`, `batch` and `stream` are LangChain's and agree.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine
    k: int = 10
    where: str | None = None
    modality: str | list[str] | None = None
    mode: str = "hybrid"
    group: str | None = None
    rerank: Any = None

    def __init__(self, **options: Any) -> None:
        """Take the fields above; an unknown one is a TypeError, not passed over."""
        check_names(type(self).__name__, options, type(self).model_fields)
        super().__init__(**options)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, **options: Any) -> FoveateRetriever:
        """Open an index and a retriever on it; options are the fields above.

        Raises:
            IndexNotFound: if there is no index.
            TypeError: for an option that is no field.
        """
        check_names(f"{cls.__name__}.open", options, fields_of(cls))
        return cls(engine=open_index(path), **options)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        chosen: dict[str, Any] = {
            "k": self.k,
            "where": self.where,
            "modality": self.modality,
            "mode": self.mode,
            "group": self.group,
            "rerank": self.rerank,
            **options,
        }
        return [document_of(hit) for hit in self.engine.search(query, **chosen)]


def fields_of(kind: type[BaseModel]) -> list[str]:
    """Return the fields that `open` takes: all but the engine, which it makes."""
    return [name for name in kind.model_fields if name != "engine"]


def document_of(hit: Hit) -> Document:
    """Return a hit as a LangChain document."""
    passage = hit.passage
    return Document(page_content=content_of(passage), metadata=metadata_of(hit), id=passage.label)


class FoveateEmbeddings(Embeddings):
    """An encoder of foveate as LangChain's embeddings; pictures too, in their own space.

    Args:
        encoder: the encoder of texts; None takes the configured one.
        images: the encoder of pictures; None takes the configured one when it is first needed.
        preset: whose encoders are meant where none is given.
    """

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        images: Encoder | None = None,
        preset: str | None = None,
    ) -> None:
        self._encoder = encoder
        self._images = images
        self._preset = preset

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Encode texts to be stored; L2-normalised."""
        return [[float(x) for x in row] for row in self._of("text").encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """Encode a text that asks; L2-normalised."""
        return [float(x) for x in self._of("text").encode_queries([text])[0]]

    def embed_images(self, images: Sequence[Any]) -> list[list[float]]:
        """Encode pictures, given as paths or PIL images; comparable with `embed_image_query`."""
        from foveate.pipeline.query import parse

        pictures = [parse(image=image).image for image in images]
        return [[float(x) for x in row] for row in self._of("image").encode(pictures)]  # type: ignore[arg-type]

    def embed_image_query(self, text: str) -> list[float]:
        """Encode words that ask for pictures, in the space of `embed_images`."""
        return [float(x) for x in self._of("image").encode_queries([text])[0]]

    def _of(self, role: str) -> Encoder:
        held = self._encoder if role == "text" else self._images
        if held is None:
            found = make_encoders(configuration.load(self._preset))
            if role not in found:
                raise MissingExtra("FoveateEmbeddings", f"an encoder of role {role!r}", "give one")
            self._encoder = self._encoder or found["text"]
            self._images = self._images or found.get("image")
            held = found[role]
        return held


class FoveateCompressor(BaseDocumentCompressor):
    """Keep of documents, from whatever retriever, the sentences that matter to the question.

    A document's page_content becomes its kept sentences, verbatim and in order; their spans in
    the original content stand in its metadata under 'kept'. A document of which nothing is kept
    goes. use: a compressor by its registered name; budget_tokens: of all documents together, as
    the text encoder counts.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine
    use: str = "extractive"
    budget_tokens: int = 512
    options: dict[str, Any] = Field(default_factory=dict)

    def __init__(self, **options: Any) -> None:
        """Take the fields above; an unknown one is a TypeError, not passed over."""
        check_names(type(self).__name__, options, type(self).model_fields)
        super().__init__(**options)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, **options: Any) -> FoveateCompressor:
        """Open an index, whose encoders and reader are used, and a compressor on it.

        Raises:
            TypeError: for an option that is no field.
        """
        check_names(f"{cls.__name__}.open", options, fields_of(cls))
        return cls(engine=open_index(path), **options)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return the documents, shortened, in the order in which they came."""
        from foveate.pipeline import refine

        contents = {f"{n:032x}": d.page_content for n, d in enumerate(documents)}
        hits = [hit_of(n, source, text) for n, (source, text) in enumerate(contents.items())]
        hits = [hit for hit in hits if hit.passage.text.strip()]
        if not hits:
            return []
        lent = dataclasses.replace(self.engine.refinery.resources, text=contents.__getitem__)
        stage = refine.make("compressor", self.use, lent, self.options)
        context = stage.compress(query, hits, self.budget_tokens, count_tokens=self._count)
        kept = {int(k.hit.passage.source.id, 16): k.spans for k in context.kept if k.spans}
        return [shortened(documents[n], spans) for n, spans in sorted(kept.items())]

    def _count(self, text: str) -> int:
        return len(self.engine.encoders["text"].token_spans(text))


def hit_of(number: int, source_id: str, text: str) -> Hit:
    """Return a text that is in no index as a hit, so that a stage can read it."""
    uri = f"document {number + 1}"
    source = Source(source_id, (uri,), "text/plain", "text", len(text), 0.0)
    locator = Locator(span=(0, len(text)))
    return Hit(Passage(number + 1, 0, source, "text", text, locator), 1 / (number + 1))


def shortened(document: Document, spans: Sequence[tuple[int, int]]) -> Document:
    """Return a document of these spans only, joined where they do not touch."""
    text = document.page_content
    return Document(
        page_content=" ".join(text[a:b].strip() for a, b in spans),
        metadata={**document.metadata, "kept": [tuple(span) for span in spans]},
        id=document.id,
    )
