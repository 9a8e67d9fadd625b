"""The JSON that `--json` prints: plain dictionaries with stable keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foveate.pipeline.terminal import excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foveate.pipeline.types import Answer, Box, Citation, FileRecord, Hit, Note, Passage

DIGITS = 6


def dump(record: Mapping[str, Any]) -> str:
    """Return JSON text; a name that is no valid Unicode makes all of it ASCII escapes."""
    text = json.dumps(record, ensure_ascii=False, indent=2, default=str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(record, ensure_ascii=True, indent=2, default=str)
    return text


def rounded(value: Any) -> Any:
    """Return JSON types with every number cut to the digits that single precision tells apart."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def box(value: Box) -> list[float]:
    found: list[float] = rounded([value.x0, value.y0, value.x1, value.y1])
    return found


def passage(value: Passage) -> dict[str, Any]:
    """Return id, label, where it stands, what it says and its source's fields."""
    source, locator = value.source, value.locator
    return {
        "id": value.id,
        "label": value.label,
        "modality": value.modality,
        "title": source.title,
        "path": source.uri,
        "uris": list(source.uris),
        "type": source.type,
        "page": locator.page,
        "row": locator.row,
        "span": list(locator.span) if locator.span else None,
        "boxes": [box(b) for b in locator.boxes],
        "text": value.text,
        "context": value.context,
        "source_id": source.id,
        "size": source.size,
        "modified": source.modified,
        "language": source.language,
        "metadata": dict(source.metadata),
    }


def hit(value: Hit, rank: int, query: str) -> dict[str, Any]:
    """Return a passage's fields and rank, score, each stage's score and rank, the sentence."""
    start, end = excerpt(value.passage.text, query)
    return {
        "rank": rank,
        "score": rounded(value.score),
        "scores": rounded(value.scores),
        "ranks": dict(value.ranks),
        "duplicates": list(value.duplicates),
        "sentence": value.passage.text[start:end],
        **passage(value.passage),
    }


def citation(value: Citation) -> dict[str, Any]:
    source = value.passage.source
    return {
        "marker": value.marker,
        "quote": value.quote,
        "id": value.passage.id,
        "label": value.passage.label,
        "title": source.title,
        "path": source.uri,
        "source_id": source.id,
        "page": value.page,
        "row": value.passage.locator.row,
        "span": list(value.span) if value.span else None,
        "boxes": [box(b) for b in value.boxes],
        "sentence": list(value.sentence),
        "support": rounded(value.support),
    }


def answer(value: Answer, *, trace: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "question": value.question,
        "answer": value.text,
        "answered": value.answered,
        "citations": [citation(c) for c in value.citations],
        "conflicts": [citation(c) for c in value.conflicts],
        "unspoken": value.unspoken,
    }
    if trace:
        found["trace"] = rounded(value.trace)
        found["hits"] = [hit(h, i, value.question) for i, h in enumerate(value.hits, start=1)]
    return found


def note(value: Note) -> dict[str, Any]:
    return {"kind": value.kind, "message": value.message, "page": value.page}


def file(value: FileRecord) -> dict[str, Any]:
    return {
        "path": value.path,
        "state": value.state,
        "notes": [note(n) for n in value.notes],
        "size": value.size,
        "modified": value.mtime_ns / 1e9,
        "digest": value.digest,
        "n_sources": value.n_sources,
        "n_passages": value.n_passages,
    }


def files(values: Sequence[FileRecord]) -> list[dict[str, Any]]:
    return [file(v) for v in values]
