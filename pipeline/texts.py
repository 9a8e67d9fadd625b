"""Texts without files: what a program gives is indexed as one passage each, under its own id."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Document, Draft, Locator

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Passage

SCHEME = "text:"


@dataclass(frozen=True, slots=True)
class Given:
    """A text with its id and what is known of it. metadata: JSON types."""

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


def put(engine: Engine, given: Iterable[Given], *, timeout_s: float = 30.0) -> None:
    """Index texts in one commit; a text whose id is there already takes its place.

    A text is not cut: what is longer than the encoder's window is found by its words alone.

    Raises:
        IndexLocked: if another process writes for longer than timeout_s.
    """
    from foveate.pipeline.update import key_of

    items = list(given)
    documents = [document_of(item) for item in items]
    drafts = [Draft("text", item.text, Locator(span=(0, len(item.text)))) for item in items]
    encoder = engine.encoders["text"]
    vectors = encoder.encode([draft.encoded for draft in drafts])
    now = time.time_ns()
    with engine.index.writer(timeout_s) as writer:
        for row, (item, document, draft) in enumerate(zip(items, documents, drafts, strict=True)):
            path = path_of(item.id)
            writer.begin(path, document.size, now, document.digest)
            one = {"text": (rows(), vectors[row : row + 1])}
            writer.add(path, document, [draft], one, [key_of(draft)])
            writer.finish(path, "indexed", ())


def drop(engine: Engine, ids: Sequence[str] | None, *, timeout_s: float = 30.0) -> int:
    """Take texts out by id, all that were put in where ids is None; return how many were there."""
    with engine.index.writer(timeout_s) as writer:
        if ids is None:
            paths = [f.path for f in engine.files() if f.path.startswith(SCHEME)]
        else:
            paths = [path_of(one) for one in ids]
        return sum(bool(writer.remove(path)) for path in paths)


def find(engine: Engine, ids: Sequence[str]) -> list[Passage]:
    """Return the passages of texts by id, in the order of the ids; those not there are left out."""
    wanted = {path_of(one): place for place, one in reversed(list(enumerate(ids)))}
    found: dict[int, Passage] = {}
    for source in engine.index.sources():
        for uri in source.uris:
            if uri in wanted:
                found[wanted[uri]] = engine.show(f"{source.id[:12]}:0")
    return [found[place] for place in sorted(found)]


def id_of(passage: Passage) -> str | None:
    """Return the id under which a passage was put in, None if it comes from a file."""
    uri = passage.source.uri
    return uri.removeprefix(SCHEME) if uri.startswith(SCHEME) else None


def path_of(text_id: str) -> str:
    return SCHEME + text_id


def document_of(given: Given) -> Document:
    """Return a text as the index takes it; the id is part of it, so that no two are one source."""
    try:
        told = json.dumps([given.id, given.text, dict(given.metadata)], sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"the metadata of {given.id!r} is not JSON: {error}") from error
    digest = hashlib.sha256(told.encode()).hexdigest()
    size = len(given.text.encode("utf-8", "surrogatepass"))
    return Document(
        digest, "text/plain", "text", size, text=given.text, metadata=dict(given.metadata)
    )


def rows() -> Any:
    import numpy as np

    return np.zeros(1, dtype=np.int64)
