"""Where a hit stands, as the metadata that other libraries carry along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.types import Hit, Passage


def place_of(passage: Passage) -> dict[str, Any]:
    """Return what locates a passage."""
    source, locator = passage.source, passage.locator
    return {
        "id": passage.id,
        "label": passage.label,
        "uri": source.uri,
        "title": source.title,
        "modality": passage.modality,
        "page": locator.page,
        "span": locator.span,
        "row": locator.row,
        "boxes": [(b.x0, b.y0, b.x1, b.y1) for b in locator.boxes],
    }


def metadata_of(hit: Hit) -> dict[str, Any]:
    """Return the source's own fields and, under 'foveate', the place and every stage's score."""
    place = {**place_of(hit.passage), "score": hit.score, "scores": dict(hit.scores)}
    return {**hit.passage.metadata, "foveate": place}


def content_of(passage: Passage) -> str:
    """Return a passage's text; of a picture without words its headings, title or file name."""
    source = passage.source
    named = (text for text in (passage.text, passage.context, source.title) if text)
    return next((text for text in named if text.strip()), source.name)
