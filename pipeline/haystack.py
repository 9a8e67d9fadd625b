"""Haystack's retriever component over a foveate index. Only this file needs haystack-ai.

pipeline = haystack.Pipeline()
pipeline.add_component("retriever", FoveateRetriever("notes.fov", k=4))
pipeline.run({"retriever": {"query": "What limits the aspect ratio of the wing?"}})
"""

from __future__ import annotations

import os
from typing import Any

from foveate.pipeline.engine import Engine
from foveate.pipeline.engine import open as open_index
from foveate.pipeline.errors import MissingExtra
from foveate.pipeline.places import metadata_of

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise MissingExtra(
        "foveate.pipeline.haystack", f"haystack-ai ({error})", "pip install haystack-ai"
    ) from error


@component  # type: ignore[untyped-decorator, unused-ignore]
class FoveateRetriever:
    """Find passages and pictures by words, as Haystack documents.

    A document's id is the passage's label; its meta are the source's own fields and, under
    'foveate', what locates it and every stage's score.

    Args:
        path: the index's folder; None is `.foveate` in this folder or a parent.
        engine: an open index, instead of a path.
        options: of `Engine.search`, as k, where, modality, mode, group, rerank.
    """

    def __init__(
        self, path: str | None = None, *, engine: Engine | None = None, **options: Any
    ) -> None:
        self.path = path if engine is None else os.fspath(engine.path)
        self.options = options
        self._engine = engine

    def warm_up(self) -> None:
        """Open the index. Raises IndexNotFound if there is none."""
        if self._engine is None:
            self._engine = open_index(self.path)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator, unused-ignore]
    def run(self, query: str, where: str | None = None) -> dict[str, list[Document]]:
        """Return the documents that fit the query; where overrides the filter of `__init__`."""
        self.warm_up()
        assert self._engine is not None
        chosen = self.options if where is None else {**self.options, "where": where}
        hits = self._engine.search(query, **chosen)
        found = [
            Document(
                id=hit.passage.label,
                content=hit.passage.text,
                meta=metadata_of(hit),
                score=hit.score,
            )
            for hit in hits
        ]
        return {"documents": found}

    def to_dict(self) -> dict[str, Any]:
        """Return what a pipeline's file holds of it."""
        found: dict[str, Any] = default_to_dict(self, path=self.path, **self.options)
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FoveateRetriever:
        """Make it from a pipeline's file."""
        made: FoveateRetriever = default_from_dict(cls, data)
        return made
