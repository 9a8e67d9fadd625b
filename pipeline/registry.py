"""Find a component by its registered name. Nothing is imported until it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from foveate.pipeline.errors import UnknownComponent

FOLDERS = {
    "encoder": "foveate.encoders",
    "index": "foveate.index",
    "generator": "foveate.pipeline.generators",
    "reranker": "foveate.rerank",
    "compressor": "foveate.rerank.compress",
    "order": "foveate.rerank.order",
    "decoding": "foveate.pipeline.decoding",
    "loader": "foveate.pipeline.ingest",
}


def names(kind: str) -> dict[str, str]:
    """Return {registered name: 'module:object'} of one kind of component."""
    registry: dict[str, str] = importlib.import_module(FOLDERS[kind]).REGISTRY
    return registry


def find(kind: str, name: str) -> Any:
    """Import and return the object registered under a name.

    Raises:
        UnknownComponent: if no component of this kind has the name.
    """
    registry = names(kind)
    if name not in registry:
        raise UnknownComponent(kind, name, registry)
    module, _, attribute = registry[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
