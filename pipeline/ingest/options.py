"""What every loader is given: the opened file and the settings with their limits."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from foveate.pipeline.errors import ConfigError, LimitExceeded, LoadError

MIB = 1 << 20
MAX_FILE_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The `[ingest]` table. Every limit is stated here and nowhere else.

    max_file_bytes: of a file that is read whole; CSV and JSON lines are streamed and may be
    larger. max_record_bytes: of one line or row of those. max_unpacked_bytes, max_unpacked_ratio,
    max_xml_bytes, max_entries: of a zip container (DOCX, PPTX, XLSX, EPUB); the ratio counts
    above 10 MiB; max_xml_bytes is for a part that is held in memory as a tree.
    max_text_chars: of one document's canonical text; the rest is cut, with a note. max_pixels: of
    one picture, checked before it is decoded. max_pictures: kept of one document, each at least
    min_picture_px wide and high. max_ocr_pages: pages of one file that are read by OCR.
    chunk_tokens: of a passage with its context; 250 and the special tokens fill a window of 256.
    overlap_tokens: repeated from one passage to the next, in whole sentences. context_tokens: of
    title and headings. text_columns: of records; without it `text`, else every column that holds
    text. title_column: becomes the title. encoding: overrides the detection. pdf_passwords: tried
    in turn after the empty one. gps: keep a photo's position. render_pages: index a page as a
    picture too; 'auto' does so where its text layer is missing.
    """

    max_file_bytes: int = MAX_FILE_BYTES
    max_record_bytes: int = 32 * MIB
    max_unpacked_bytes: int = 1024 * MIB
    max_unpacked_ratio: int = 200
    max_xml_bytes: int = 96 * MIB
    max_entries: int = 20_000
    max_text_chars: int = 50_000_000
    max_pixels: int = 100_000_000
    max_pages: int = 10_000
    max_pictures: int = 200
    min_picture_px: int = 64
    max_ocr_pages: int = 200
    ocr: Literal["auto", "never", "always"] = "auto"
    ocr_dpi: int = 200
    render_pages: Literal["auto", "never", "always"] = "auto"
    gps: bool = False
    chunk_tokens: int = 250
    overlap_tokens: int = 32
    context_tokens: int = 32
    text_columns: tuple[str, ...] = ()
    title_column: str = "title"
    encoding: str | None = None
    pdf_passwords: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int) and not isinstance(field.default, bool):
                low = 0 if field.name in {"overlap_tokens", "context_tokens"} else 1
                if not isinstance(value, int) or isinstance(value, bool) or value < low:
                    raise ConfigError(
                        f"expected an integer >= {low} for ingest.{field.name}, got {value!r}"
                    )
        if self.overlap_tokens >= self.chunk_tokens:
            raise ConfigError(
                f"expected ingest.overlap_tokens below chunk_tokens ({self.chunk_tokens}), "
                f"got {self.overlap_tokens}"
            )
        for name in ("ocr", "render_pages"):
            if getattr(self, name) not in {"auto", "never", "always"}:
                raise ConfigError(
                    f"expected 'auto', 'never' or 'always' for ingest.{name}, "
                    f"got {getattr(self, name)!r}"
                )

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> IngestOptions:
        """Make the options of a configuration table.

        Raises:
            ConfigError: for a name that is not an option or a value out of its range.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(table) - known):
            raise ConfigError(
                f"unknown option ingest.{unknown[0]} (known: {', '.join(sorted(known))})"
            )
        lists = {"text_columns", "pdf_passwords"}
        values: dict[str, Any] = {
            name: ((value,) if isinstance(value, str) else tuple(value)) if name in lists else value
            for name, value in table.items()
        }
        return cls(**values)


class OpenedFile:
    """A file whose kind is known. Its bytes are read once, when they are asked for.

    path: absolute; may hold surrogates of an undecodable name. type: the loader's name for it
    ('pdf', 'markdown', 'jpeg', 'csv', ...). media_type: its MIME type.
    """

    __slots__ = ("_data", "_digest", "_limit_bytes", "media_type", "path", "size", "type")

    def __init__(
        self,
        path: str,
        *,
        media_type: str,
        type: str,
        size: int | None = None,
        data: bytes | None = None,
        limit_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self.path = path
        self.media_type = media_type
        self.type = type
        self.size = len(data) if size is None and data is not None else (size or 0)
        self._data = data
        self._digest: str | None = None
        self._limit_bytes = limit_bytes

    @property
    def data(self) -> bytes:
        """All bytes of the file.

        Raises:
            LimitExceeded: if it is larger than max_file_bytes.
            LoadError: if it cannot be read.
        """
        if self._data is None:
            with self.open() as handle:
                data = handle.read(self._limit_bytes + 1)
            if len(data) > self._limit_bytes:
                raise LimitExceeded(
                    f"the file is larger than ingest.max_file_bytes = {self._limit_bytes}"
                )
            self._data = data
            self.size = len(data)
        return self._data

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, 64 hex digits."""
        if self._digest is None:
            self._digest = hashlib.sha256(self.data).hexdigest()
        return self._digest

    def open(self) -> BinaryIO:
        """Open the file for reading from its start; the caller closes it."""
        return io.BytesIO(self._data) if self._data is not None else open_regular(self.path)


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading; never block on a FIFO or a device.

    Raises:
        LoadError: if it is gone, may not be read, or is not a regular file.
    """
    try:
        # a file may have become a FIFO since the walk saw it
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise LoadError(f"cannot open the file: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"cannot open the file: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LoadError("not a regular file")
    return os.fdopen(descriptor, "rb")
