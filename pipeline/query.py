"""What is asked: words, a picture or both, and which passages may answer."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from foveate.pipeline.errors import QueryError
from foveate.pipeline.types import MODALITIES, Modality

if TYPE_CHECKING:
    from PIL.Image import Image

Mode = Literal["hybrid", "dense", "words", "late"]
N_FIELDS = 30  # metadata fields that are listed
MODES: tuple[Mode, ...] = ("hybrid", "dense", "words", "late")


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A checked question. text is stripped and free of control characters; '' with a picture only.

    group: 'source' keeps the best passage of each source. collapse: fold near-duplicates into the
    best of them.
    """

    text: str
    image: Image | None
    k: int
    where: str | None
    modalities: frozenset[Modality]
    mode: Mode
    group: Literal["source"] | None
    collapse: bool


def parse(
    text: str | None = None,
    *,
    image: Image | str | os.PathLike[str] | None = None,
    k: int = 10,
    where: str | None = None,
    modality: str | Sequence[str] | None = None,
    mode: str = "hybrid",
    group: str | None = None,
    collapse: bool = True,
) -> Query:
    """Check what a person asked.

    Raises:
        QueryError: for an empty query, k < 1, an unknown mode, modality or group, or a picture
            that cannot be opened.
    """
    for name, given in (("text", text), ("where", where)):
        if given is not None and not isinstance(given, str):
            raise QueryError(f"{name} must be a text, got {given!r:.80}")
    words = _tidy(text or "")
    picture = None if image is None else _open(image)
    if not words and picture is None:
        raise QueryError("the query is empty: give some words, a picture, or both")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise QueryError(f"k must be a whole number of at least 1, got {k!r}")
    if mode not in MODES:
        raise QueryError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if mode in ("words", "late") and not words:
        raise QueryError(f"mode {mode!r} needs some words: a picture alone has none")
    if group not in (None, "source"):
        raise QueryError(f"group must be 'source' or None, got {group!r}")
    return Query(
        text=words,
        image=picture,
        k=k,
        where=where if where and where.strip() else None,
        modalities=_modalities(modality),
        mode=mode,
        group="source" if group else None,
        collapse=collapse,
    )


def unknown_fields(index: Any, where: str | None) -> str | None:
    """Say which fields of a filter no source has: what is found is then for another reason.

    Raises:
        QueryError: for a filter that cannot be read.
    """
    import difflib

    from foveate.index.filters import BUILT_IN

    unknown = index.unknown_fields(where if where and where.strip() else None)
    if not unknown:
        return None
    held = index.field_names(N_FIELDS + 1)
    close = difflib.get_close_matches(unknown[0], [*BUILT_IN, *held], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    there = ", ".join([*BUILT_IN, *held[:N_FIELDS]]) + (", ..." if len(held) > N_FIELDS else "")
    names = " or ".join(map(repr, unknown))
    return f"no source has a field {names}{hint} (there are: {there})"


def _tidy(text: str) -> str:
    kept = (" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
    return " ".join("".join(kept).split())


def _modalities(modality: str | Sequence[str] | None) -> frozenset[Modality]:
    if modality is None:
        return frozenset(MODALITIES)
    asked = [modality] if not isinstance(modality, list | tuple | set | frozenset) else modality
    if not asked:
        raise QueryError(
            f"modality is empty: name some of {', '.join(MODALITIES)}, or leave it out"
        )
    for name in asked:
        if name not in MODALITIES:
            raise QueryError(f"modality must be one of {', '.join(MODALITIES)}, got {name!r}")
    return frozenset(name for name in MODALITIES if name in asked)


def _open(image: Image | str | os.PathLike[str]) -> Image:
    """Return a picture upright and in RGB, as those are that are indexed."""
    from PIL import Image as Pillow
    from PIL import ImageOps

    from foveate.pipeline.errors import LoadError
    from foveate.pipeline.ingest.colours import to_rgb
    from foveate.pipeline.ingest.image import open_picture

    try:
        if isinstance(image, Pillow.Image):
            image.load()
            return to_rgb(ImageOps.exif_transpose(image))[0]
        return open_picture(image)
    except (OSError, LoadError, TypeError) as error:
        named = str(image) if isinstance(image, os.PathLike) else image
        raise QueryError(f"cannot read the picture {named!r:.200}: {error}") from error
