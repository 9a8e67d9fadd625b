"""Pictures that stand inside documents."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from foveate.pipeline.errors import LoadError
from foveate.pipeline.types import Note, Picture

if TYPE_CHECKING:
    from foveate.pipeline.ingest.options import IngestOptions


class Figures:
    """Collects the pictures of one document: each content once, none that is tiny."""

    def __init__(self, options: IngestOptions) -> None:
        self.pictures: list[Picture] = []
        self._options = options
        self._seen: set[bytes] = set()
        self._problems: dict[str, int] = {}
        self._n_over = 0

    def add(
        self, data: bytes | None, *, page: int | None = None, span: tuple[int, int] | None = None
    ) -> None:
        """Add the bytes of a picture file; one that cannot be shown becomes a note."""
        from foveate.pipeline.ingest.image import open_picture

        if not data or (digest := hashlib.sha256(data).digest()) in self._seen:
            return
        self._seen.add(digest)
        if len(self.pictures) >= self._options.max_pictures:
            self._n_over += 1
            return
        try:
            image = open_picture(data, max_pixels=self._options.max_pixels)
        except LoadError as error:
            self._problems[str(error)] = self._problems.get(str(error), 0) + 1
            return
        if min(image.size) >= self._options.min_picture_px:
            self.pictures.append(Picture(image, "image", page=page, span=span))

    def notes(self) -> tuple[Note, ...]:
        notes = [
            Note("skipped", f"{n} picture{'s' * (n > 1)} inside: {reason}")
            for reason, n in self._problems.items()
        ]
        if self._n_over:
            limit = self._options.max_pictures
            notes.append(
                Note(
                    "truncated", f"pictures left out: {self._n_over}; ingest.max_pictures = {limit}"
                )
            )
        return tuple(notes)
