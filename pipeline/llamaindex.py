"""LlamaIndex's retriever over a foveate index. Only this file needs llama-index-core.

retriever = FoveateRetriever.open("notes.fov", k=4, where="type = 'pdf'")
nodes = retriever.retrieve("What limits the aspect ratio of the wing?")
"""

from __future__ import annotations

import os
from typing import Any

from foveate.pipeline.engine import Engine
from foveate.pipeline.engine import open as open_index
from foveate.pipeline.errors import MissingExtra
from foveate.pipeline.places import metadata_of

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise MissingExtra(
        "foveate.pipeline.llamaindex", f"llama-index-core ({error})", "pip install llama-index-core"
    ) from error


class FoveateRetriever(BaseRetriever):  # type: ignore[misc, unused-ignore]
    """Find passages and pictures by words, as nodes with scores.

    A node's id is the passage's label; its metadata are the source's own fields and, under
    'foveate', what locates it and every stage's score.

    Args:
        engine: an open index.
        options: of `Engine.search`, as k, where, modality, mode, group, rerank.
    """

    def __init__(self, engine: Engine, **options: Any) -> None:
        self._engine = engine
        self._options = options
        super().__init__()

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, **options: Any) -> FoveateRetriever:
        """Open an index and a retriever on it. Raises IndexNotFound if there is none."""
        return cls(open_index(path), **options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._engine.search(query_bundle.query_str, **self._options)
        return [
            NodeWithScore(
                node=TextNode(
                    id_=hit.passage.label,
                    text=hit.passage.text,
                    metadata=metadata_of(hit),
                    # the model reads the text; what locates it is for the program
                    excluded_llm_metadata_keys=["foveate"],
                    excluded_embed_metadata_keys=["foveate"],
                ),
                score=hit.score,
            )
            for hit in hits
        ]
