"""LangChain's retriever over a foveate index. Only this file needs langchain-core.

from foveate.pipeline.langchain import FoveateRetriever
retriever = FoveateRetriever.open("notes.fov", k=4, where="type = 'pdf'")
documents = retriever.invoke("What limits the aspect ratio of the wing?")
"""

from __future__ import annotations

import os
from typing import Any

from foveate.pipeline.engine import Engine
from foveate.pipeline.engine import open as open_index
from foveate.pipeline.errors import MissingExtra
from foveate.pipeline.types import Hit

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict
except ImportError as error:
    raise MissingExtra(
        "foveate.pipeline.langchain",
        f"langchain-core ({error})",
        "pip install 'langchain-core>=1.0'",
    ) from error


class FoveateRetriever(BaseRetriever):
    """Find passages and pictures by words, as LangChain documents.

    A document's page_content is the passage's text; its metadata are the source's own fields and,
    under 'foveate', what locates it: id, label, uri, modality, page, span, row, score, scores.
    `invoke`, `ainvoke`, `batch` and `stream` are LangChain's and agree.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine
    k: int = 10
    where: str | None = None
    modality: str | list[str] | None = None
    mode: str = "hybrid"
    group: str | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, **options: Any) -> FoveateRetriever:
        """Open an index and a retriever on it; options are the fields above.

        Raises:
            IndexNotFound: if there is no index.
        """
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
            **options,
        }
        return [document_of(hit) for hit in self.engine.search(query, **chosen)]


def document_of(hit: Hit) -> Document:
    """Return a hit as a LangChain document."""
    passage = hit.passage
    place = {
        "id": passage.id,
        "label": passage.label,
        "uri": passage.source.uri,
        "title": passage.source.title,
        "modality": passage.modality,
        "page": passage.locator.page,
        "span": passage.locator.span,
        "row": passage.locator.row,
        "score": hit.score,
        "scores": dict(hit.scores),
    }
    return Document(
        page_content=passage.text,
        metadata={**passage.metadata, "foveate": place},
        id=passage.label,
    )
