"""Pages and pictures as a browser takes them: checked, scaled, cut, encoded and kept a while."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from foveate.pipeline.errors import FoveateError, LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Box, Passage

WIDEST_PX = 2400
MARGIN = 0.02  # of the longer side, left around a crop
KEPT_BYTES = 96 << 20
KEPT_DIGESTS = 10_000

Stamp = tuple[str, int, int, int]


class Pictures:
    """Renders what passages show. Only bytes that were indexed are ever shown."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._n_bytes = 0
        self._digests: OrderedDict[Stamp, str] = OrderedDict()
        self._lock = threading.Lock()

    def jpeg(self, passage: Passage, *, width_px: int, boxes: Sequence[Box] = ()) -> bytes:
        """Return a passage's picture or page as JPEG, at most so wide; boxes: cut to these.

        Raises:
            FoveateError: if there is none, or its file is gone or another one by now.
        """
        key = (passage.id, passage.source.id, width_px, tuple(boxes))
        path, before = self.check(passage)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        image = self._engine.image(passage)
        if stamp(path) != before:
            raise LoadError(f"the file behind {passage.label} is being changed: try again")
        made = encode(scaled(cut(image, boxes), width_px))
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._n_bytes += len(made)
            while self._n_bytes > KEPT_BYTES and len(self._kept) > 1:
                self._n_bytes -= len(self._kept.popitem(last=False)[1])
        return made

    def check(self, passage: Passage) -> tuple[str, Stamp]:
        """Return the file behind a passage and its stamp.

        Raises:
            LoadError: if it is not the one that was indexed, as a link put in its place is not.
        """
        path = indexed_file(passage)
        now = stamp(path)
        with self._lock:
            digest = self._digests.get(now)
        if digest is None:
            from foveate.pipeline.update import digest_of

            digest = digest_of(path)
            with self._lock:
                self._digests[now] = digest
                while len(self._digests) > KEPT_DIGESTS:
                    self._digests.popitem(last=False)
        if digest[:32] != passage.source.id:
            raise LoadError(
                f"the file behind {passage.label} has changed since it was indexed: index it again"
            )
        return path, now


def indexed_file(passage: Passage) -> str:
    """Return the file that a passage's picture is read from.

    Raises:
        FoveateError: if none of the source's files is there.
    """
    for uri in passage.source.uris:
        if os.path.exists(uri):
            return uri
    raise FoveateError(f"the file behind {passage.label} is gone: {passage.source.name!r}")


def stamp(path: str) -> Stamp:
    """Return what changes when a file, or the link that leads to it, is replaced."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise LoadError(f"cannot look at the file: {error.strerror}") from error
    return (os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)


def cut(image: Image, boxes: Sequence[Box]) -> Image:
    """Return the part of a picture that holds all the boxes, with a margin."""
    if not boxes:
        return image
    width, height = image.size
    margin = MARGIN * max(width, height)
    return image.crop(
        (
            max(0, int(min(b.x0 for b in boxes) * width - margin)),
            max(0, int(min(b.y0 for b in boxes) * height - margin)),
            min(width, int(max(b.x1 for b in boxes) * width + margin) + 1),
            min(height, int(max(b.y1 for b in boxes) * height + margin) + 1),
        )
    )


def scaled(image: Image, width_px: int) -> Image:
    """Return a picture that is no wider than asked, and no taller than three times that."""
    width = max(1, min(width_px, WIDEST_PX))
    image = image.convert("RGB") if image.mode != "RGB" else image.copy()
    image.thumbnail((width, 3 * width))
    return image


def encode(image: Image) -> bytes:
    held = io.BytesIO()
    image.save(held, "JPEG", quality=84, progressive=True)
    return held.getvalue()


def decode(given: str, most_bytes: int) -> Image:
    """Return the picture of a data URL or of plain base64, upright and RGB.

    Raises:
        LoadError: if it is no picture, or too large.
    """
    import base64
    import binascii

    from foveate.pipeline.ingest.image import open_picture

    _, comma, rest = given.partition(",")
    text = rest if comma and given.startswith("data:") else given
    if len(text) > most_bytes * 4 // 3 + 4:
        raise LoadError(f"the picture has more than {most_bytes} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LoadError(f"the picture is not base64: {error}") from error
    return open_picture(data)


def etag(*parts: object) -> str:
    return '"' + hashlib.sha256(repr(parts).encode()).hexdigest()[:32] + '"'
