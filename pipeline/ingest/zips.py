"""Zip containers: what is inside, and whether it is safe to unpack."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from typing import BinaryIO

from foveate.pipeline.errors import LimitExceeded, LoadError
from foveate.pipeline.ingest.options import MIB, IngestOptions

# what a damaged or hostile container makes the standard library raise
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    OSError,
    ValueError,
    EOFError,
    zlib.error,
    NotImplementedError,
    RuntimeError,
)
_RATIO_FROM_BYTES = 10 * MIB
_DOCTYPE = re.compile(rb"<!\s*(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_STREAMED = re.compile(r"xl/worksheets/[^/]+\.xml\Z")


def open_zip(file: bytes | BinaryIO) -> zipfile.ZipFile:
    """Open a container.

    Raises:
        LoadError: if it is damaged.
    """
    handle = io.BytesIO(file) if isinstance(file, bytes) else file
    handle.seek(0)
    try:
        return zipfile.ZipFile(handle)
    except ZIP_ERRORS as error:
        raise LoadError(f"the zip container is damaged: {error}") from error


def kind_of_zip(handle: BinaryIO, extension: str) -> str:
    """Return 'docx', 'pptx', 'xlsx', 'epub' or 'odt' by the names inside.

    Raises:
        LoadError: if it is another container or a damaged one.
    """
    with open_zip(handle) as container:
        names = set(container.namelist())
        folders = {name.split("/", 1)[0] for name in names if "/" in name}
        if "[Content_Types].xml" in names:
            for folder, kind in (("word", "docx"), ("ppt", "pptx"), ("xl", "xlsx")):
                if folder in folders:
                    if "xl/workbook.bin" in names:
                        raise LoadError("not a kind of file that is read: a binary workbook (xlsb)")
                    return kind
        mimetype = _first_bytes(container, "mimetype") if "mimetype" in names else b""
    if mimetype.startswith(b"application/epub+zip") or "META-INF/container.xml" in names:
        return "epub"
    if mimetype.startswith(b"application/vnd.oasis.opendocument.text"):
        return "odt"
    what = "a zip archive, which is not unpacked"
    if mimetype.startswith(b"application/vnd.oasis.opendocument"):
        what = "an OpenDocument file that is no text"
    named = f", with the name of a {extension[1:]} file" if extension not in {"", ".zip"} else ""
    raise LoadError(f"not a kind of file that is read: {what}{named}")


def _first_bytes(container: zipfile.ZipFile, name: str, n_bytes: int = 100) -> bytes:
    try:
        with container.open(name) as member:
            return member.read(n_bytes)
    except ZIP_ERRORS:
        return b""


def check_zip(data: bytes, options: IngestOptions, *, no_doctype: bool = True) -> None:
    """Refuse a container that would unpack to too much, before anything is unpacked.

    The sizes that a container states bind: reading stops at them. no_doctype: refuse XML parts
    that define entities; no office format needs them.

    Raises:
        LimitExceeded: for a limit of IngestOptions.
        LoadError: if it is damaged, encrypted, or defines entities.
    """
    with open_zip(data) as container:
        entries = container.infolist()
        if len(entries) > options.max_entries:
            raise LimitExceeded(
                f"holds {len(entries)} entries, more than ingest.max_entries = "
                f"{options.max_entries}"
            )
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > options.max_unpacked_bytes:
            raise LimitExceeded(
                f"unpacks to {unpacked} bytes, more than ingest.max_unpacked_bytes = "
                f"{options.max_unpacked_bytes}"
            )
        if unpacked > max(_RATIO_FROM_BYTES, options.max_unpacked_ratio * len(data)):
            raise LimitExceeded(
                f"unpacks to {unpacked // max(len(data), 1)} times its size, more than "
                f"ingest.max_unpacked_ratio = {options.max_unpacked_ratio}"
            )
        for entry in entries:
            if entry.flag_bits & 1:
                raise LoadError("encrypted; it cannot be opened without its password")
            if not entry.filename.endswith((".xml", ".rels", ".opf", ".ncx")):
                continue
            if entry.file_size > options.max_xml_bytes and not _STREAMED.match(entry.filename):
                raise LimitExceeded(
                    f"part {entry.filename!r} unpacks to {entry.file_size} bytes, more than "
                    f"ingest.max_xml_bytes = {options.max_xml_bytes}"
                )
            if no_doctype and _DOCTYPE.search(_first_bytes(container, entry.filename, 4096)):
                raise LoadError(f"part {entry.filename!r} defines XML entities; refused")


def read_member(container: zipfile.ZipFile, name: str) -> bytes | None:
    """Return the bytes of a member, or None if it is missing or damaged."""
    try:
        return container.read(name)
    except (KeyError, *ZIP_ERRORS):
        return None
