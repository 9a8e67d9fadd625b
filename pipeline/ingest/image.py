"""Read pictures: upright, in true colours, within limits; their text, date and size."""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from foveate.pipeline.errors import LimitExceeded, LoadError, MissingExtra, ModelError
from foveate.pipeline.ingest import ocr
from foveate.pipeline.ingest.colours import to_rgb
from foveate.pipeline.ingest.compose import Composer
from foveate.pipeline.ingest.exif import quiet, read_metadata, read_orientation
from foveate.pipeline.ingest.layout import arrange
from foveate.pipeline.ingest.options import open_regular
from foveate.pipeline.types import Document, Note, NoteKind, Picture

if TYPE_CHECKING:
    from PIL.Image import Image

    from foveate.pipeline.ingest.options import IngestOptions, OpenedFile

# no format that runs another program (EPS) or that is not a picture (FITS, GRIB, WMF, ...)
FORMATS = (
    *("JPEG", "MPO", "PNG", "WEBP", "GIF", "TIFF", "BMP", "DIB"),
    *("HEIF", "AVIF", "ICO", "JPEG2000", "PPM"),
)
MAX_PIXELS = 100_000_000
PICTURE_SIDE_PX = 1024
PAGE_SIDE_PX = 768
SUBFILE_TYPE, REDUCED = 254, 1


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the one document of a picture file.

    Its text is what OCR reads in it. The pages of a TIFF are pages; of an animation the first
    frame is taken.

    Raises:
        LimitExceeded: if it has more than max_pixels, or inflates beyond the decoder's limits.
        LoadError: if it is truncated, damaged, or of no kind that is read.
    """
    yield _Reader(file, options).read()


def open_picture(
    file: str | os.PathLike[str] | bytes, *, page: int = 1, max_pixels: int = MAX_PIXELS
) -> Image:
    """Return a picture file, or one page of a TIFF, upright and RGB, in its full size.

    Raises:
        LoadError: as `load`, or if the file cannot be opened.
    """
    if isinstance(file, bytes):
        data = file
    else:
        with open_regular(os.fspath(file)) as handle:
            data = handle.read()
    with _opened(data, max_pixels) as image:
        frames = pages_of(image, max_pixels)
        if not 1 <= page <= len(frames):
            raise LoadError(f"the picture has no page {page}: its last is {len(frames)}")
        _seek(image, frames[page - 1], max_pixels)
        return _decode(image)[0]


class _Reader:
    """Reads one picture file."""

    def __init__(self, file: OpenedFile, options: IngestOptions) -> None:
        self.file = file
        self.options = options
        self.composer = Composer(options.max_text_chars)
        self.notes: list[Note] = []
        self.pictures: list[Picture] = []
        self.n_ocr = 0

    def read(self) -> Document:
        with _opened(self.file.data, self.options.max_pixels) as image:
            pages = self._choose_pages(image)
            metadata = read_metadata(image, gps=self.options.gps)
            is_paged = len(pages) > 1
            for number, frame in enumerate(pages, 1):
                if not self._page(image, number, frame, is_paged=is_paged):
                    break
        text = self.composer.text()
        has_text = bool(text.strip())
        return Document(
            digest=self.file.digest,
            media_type=self.file.media_type,
            type=self.file.type,
            size=self.file.size,
            text=text if has_text else "",
            metadata=metadata,
            page_starts=tuple(self.composer.page_starts) if is_paged and has_text else (),
            blocks=tuple(self.composer.blocks) if has_text else (),
            words=self.composer.words() if has_text else None,
            pictures=tuple(self.pictures),
            notes=tuple(self.notes),
        )

    def _note(self, kind: NoteKind, message: str, page: int | None = None) -> None:
        self.notes.append(Note(kind, message, page))

    def _choose_pages(self, image: Image) -> list[int]:
        """Return the frames to read: the pages of a TIFF, else the first."""
        with _reported(image.format), quiet():
            n_frames = int(getattr(image, "n_frames", 1))
        if n_frames > 1 and image.format != "TIFF":
            kind = "images" if image.format in {"HEIF", "MPO"} else "frames"
            self._note("info", f"{n_frames} {kind}: the first one is indexed")
        frames = pages_of(image, self.options.max_pixels)
        n_read = min(len(frames), self.options.max_pages, self.options.max_pictures)
        if n_read < len(frames):
            name = "max_pages" if n_read == self.options.max_pages else "max_pictures"
            self._note(
                "truncated", f"read {n_read} of {len(frames)} pages: ingest.{name} = {n_read}"
            )
        _seek(image, frames[0], self.options.max_pixels)
        return frames[:n_read]

    def _page(self, image: Image, number: int, frame: int, *, is_paged: bool) -> bool:
        """Read one frame; return whether the next can be tried."""
        try:
            _seek(image, frame, self.options.max_pixels)
            if number == 1 and not is_paged:
                # a JPEG is decoded no larger than it is used
                image.draft("RGB", (ocr.MAX_SIDE_PX, ocr.MAX_SIDE_PX))
            is_bilevel = image.mode == "1"
            picture, message = _decode(image)
        except LoadError as error:
            if number == 1:
                raise
            self._note("failed", str(error), number)
            return False
        if message:
            self._note("guessed", message, number if is_paged else None)
        span = self._text(picture, number, is_scan=is_paged or is_bilevel)
        side = PAGE_SIDE_PX if is_paged else PICTURE_SIDE_PX
        picture.thumbnail((side, side))
        if is_paged:
            self.pictures.append(Picture(picture, "page", page=number, span=span))
        else:
            self.pictures.append(Picture(picture, "image", span=span))
        return True

    def _text(self, picture: Image, number: int, *, is_scan: bool) -> tuple[int, int] | None:
        """Read a picture's text into the canonical text; return its span."""
        self.composer.start_page(number, picture.width, picture.height)
        reason = "OCR is off: ingest.ocr = 'never'" if self.options.ocr == "never" else None
        if self.n_ocr >= self.options.max_ocr_pages:
            reason = f"over the limit ingest.max_ocr_pages = {self.options.max_ocr_pages}"
        reason = reason or ocr.available()
        words = []
        if reason is None:
            try:
                if self.options.ocr == "always" or ocr.looks_textual(picture):
                    self.n_ocr += 1
                    words = ocr.even_sizes(ocr.read_words(picture))
            except (MissingExtra, ModelError) as error:
                reason = str(error)
        if reason is not None and (is_scan or self.options.ocr == "always"):
            # of an ordinary photo nobody expects text
            self._note("skipped", f"its text is not read: {reason}", number)
        if not words:
            return None
        spans = self.composer.add(arrange(words))
        if not spans:
            return None
        start, end = spans[0][0], spans[-1][1]
        self._note("ocr", f"read by OCR, characters: {end - start}", number)
        return start, end


def pages_of(image: Image, max_pixels: int) -> list[int]:
    """Return the frames that are pages: all of a TIFF but its previews, else the first."""
    if image.format != "TIFF":
        return [0]
    frames = []
    with _reported(image.format), quiet():
        n_frames = int(getattr(image, "n_frames", 1))
    for frame in range(n_frames if n_frames > 1 else 0):
        _seek(image, frame, max_pixels)
        if not int(image.tag_v2.get(SUBFILE_TYPE, 0)) & REDUCED:  # type: ignore[attr-defined]
            frames.append(frame)
    return frames or [0]


@contextlib.contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[Image]:
    """Open a picture with its size checked; nothing is decoded yet."""
    import pillow_heif
    from PIL import Image as images

    if not data:
        raise LoadError("the file is empty: 0 bytes")
    _check_webp(data, max_pixels)
    _check_icon(data, max_pixels)
    with _reported(None), quiet():
        if "HEIF" not in images.OPEN:
            images.init()
            pillow_heif.register_heif_opener(thumbnails=False)
        formats = [name for name in FORMATS if name in images.OPEN]
        image = images.open(io.BytesIO(data), formats=formats)
    with image:
        _refuse_above(max_pixels, *image.size)
        yield image


def _refuse_above(max_pixels: int, width: int, height: int) -> None:
    if width * height > max_pixels:
        raise LimitExceeded(
            f"{width} x {height} pixels, more than ingest.max_pixels = {max_pixels}"
        )


def _check_webp(data: bytes, max_pixels: int) -> None:
    """Check a WebP's size ourselves: its decoder takes the memory as soon as it is opened."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return
    kind = data[12:16]
    width = height = 0
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", data[26:30]))
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    _refuse_above(max_pixels, width, height)


def _check_icon(data: bytes, max_pixels: int) -> None:
    """Check the pictures inside an icon: opening it decodes one, and its directory may lie."""
    if data[:4] != b"\0\0\1\0":
        return
    for entry in range(min(int.from_bytes(data[4:6], "little"), 256)):
        at = int.from_bytes(data[18 + 16 * entry : 22 + 16 * entry], "little")
        head = data[at : at + 24]
        if len(head) < 24:
            continue
        if head[:8] == b"\x89PNG\r\n\x1a\n":
            width, height = struct.unpack(">II", head[16:])
        else:
            width, height = (abs(side) for side in struct.unpack("<ii", head[4:12]))
        _refuse_above(max_pixels, width, height)


def _seek(image: Image, frame: int, max_pixels: int) -> None:
    with _reported(image.format), quiet():
        if image.tell() != frame:
            image.seek(frame)
    _refuse_above(max_pixels, *image.size)


def _decode(image: Image) -> tuple[Image, str | None]:
    """Decode the current frame. Returns it upright and RGB, and a message or None."""
    from PIL import Image as images

    orientation = read_orientation(image)
    with _reported(image.format):
        image.load()
        rgb, message = to_rgb(image)
    turned = images.Transpose
    # by the value of the EXIF tag: where the first row and column of the pixels belong
    turns = {
        2: turned.FLIP_LEFT_RIGHT,
        3: turned.ROTATE_180,
        4: turned.FLIP_TOP_BOTTOM,
        5: turned.TRANSPOSE,
        6: turned.ROTATE_270,
        7: turned.TRANSVERSE,
        8: turned.ROTATE_90,
    }
    turn = turns.get(orientation)
    if turn is not None:
        return rgb.transpose(turn), message
    # the decoder may go on to another page in the same buffer
    return (rgb.copy() if rgb is image else rgb), message


@contextlib.contextmanager
def _reported(kind: str | None) -> Iterator[None]:
    """Turn whatever a decoder raises into a reason that a person understands."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except LoadError:
        raise
    except UnidentifiedImageError as error:
        raise LoadError("truncated or damaged: no picture can be recognised in it") from error
    except MemoryError as error:
        raise LimitExceeded(f"the {kind or 'picture'} needs more memory than there is") from error
    # each decoder has errors of its own, from SyntaxError to struct.error and zlib.error
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if "too large" in reason.lower() or "MAX_TEXT_MEMORY" in reason:
            raise LimitExceeded(f"a compressed part inflates beyond the limit: {reason}") from error
        raise LoadError(f"truncated or damaged {kind or 'picture'}: {reason}") from error
