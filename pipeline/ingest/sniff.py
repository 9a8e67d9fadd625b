"""Tell what a file is by what is in it; its name decides only between kinds of text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import BinaryIO

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.decode import decode, is_text, is_utf8
from foveate.pipeline.ingest.languages import language_of
from foveate.pipeline.ingest.zips import kind_of_zip

HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Kind:
    """loader: a name in the registry. type, media_type: as in `Source`."""

    loader: str
    type: str
    media_type: str
    streamed: bool = False


_IMAGE = {
    name: Kind("image", name, f"image/{name}")
    for name in (
        *("png", "jpeg", "gif", "bmp", "tiff", "webp", "heic", "avif", "jp2", "ico"),
        "ppm",
    )
}
_PDF = Kind("pdf", "pdf", "application/pdf")
_OFFICE = "application/vnd.openxmlformats-officedocument"
_ZIPPED = {
    "docx": Kind("docx", "docx", f"{_OFFICE}.wordprocessingml.document"),
    "pptx": Kind("pptx", "pptx", f"{_OFFICE}.presentationml.presentation"),
    "xlsx": Kind("xlsx", "xlsx", f"{_OFFICE}.spreadsheetml.sheet"),
    "epub": Kind("epub", "epub", "application/epub+zip"),
    "odt": Kind("odt", "odt", "application/vnd.oasis.opendocument.text"),
}
_TEXT = Kind("text", "text", "text/plain")
_MARKDOWN = Kind("markdown", "markdown", "text/markdown")
_HTML = Kind("html", "html", "text/html")
_XML = Kind("xml", "xml", "application/xml")
_CSV = Kind("csv", "csv", "text/csv", streamed=True)
_TSV = Kind("csv", "tsv", "text/tab-separated-values", streamed=True)
_JSONL = Kind("jsonl", "jsonl", "application/jsonl", streamed=True)
_JSON = Kind("json", "json", "application/json")
_NAMED = {
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".mdown": _MARKDOWN,
    ".mkd": _MARKDOWN,
    ".qmd": _MARKDOWN,
    ".html": _HTML,
    ".htm": _HTML,
    ".xhtml": _HTML,
    ".xml": _XML,
    ".rss": _XML,
    ".atom": _XML,
    ".svg": Kind("xml", "svg", "image/svg+xml"),
    ".csv": _CSV,
    ".tsv": _TSV,
    ".tab": _TSV,
    ".jsonl": _JSONL,
    ".ndjson": _JSONL,
    ".json": _JSON,
    ".geojson": _JSON,
}
# a plain text by its name stays one, whatever its lines look like
_PLAIN_NAMES = ".txt .text .log .rst .org .adoc .asciidoc .tex .srt .vtt .bib .ris .eml .mbox .nfo"
_PLAIN = frozenset(_PLAIN_NAMES.split())
_IMAGE_NAMES = {".jpg": "jpeg", ".jpeg": "jpeg", ".tif": "tiff", ".heif": "heic", ".heic": "heic"}
_EMPTY_NAMED = {
    ".pdf": _PDF,
    **{ext: _IMAGE[name] for ext, name in _IMAGE_NAMES.items()},
    **{f".{name}": kind for name, kind in (*_IMAGE.items(), *_ZIPPED.items())},
}
# an ISO media file's brand says what it holds
_HEIF_BRANDS = {
    b"avif": "avif",
    b"avis": "avif",
    **dict.fromkeys(
        (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs"), "heic"
    ),
    b"mif1": "heic",
    b"msf1": "heic",
}
_UNREAD = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file or an encrypted one"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a rar archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"PAR1", "a Parquet table"),
    (b"GGUF", "model weights"),
    (b"%!PS", "PostScript"),
    (b"8BPS", "a Photoshop picture"),
    (b"ID3", "an MP3 recording"),
    (b"OggS", "an Ogg recording"),
    (b"fLaC", "a FLAC recording"),
    (b"\x93NUMPY", "a NumPy array"),
)
_PNM = re.compile(rb"P[4-6]\s(?:\s|#[^\n]{0,200}\n){0,9}\d{1,6}\s+\d{1,6}\s+(?:\d{1,5}\s)?")
# pictures and sounds that have no mark: their bytes may pass for letters of some encoding
_UNMARKED = frozenset([".tga", ".pcx", ".raw", ".pcm", ".dat", ".mp3", ".yuv", ".rgb", ".pict"])
_SHEBANGS = {
    "python": "python",
    "node": "javascript",
    "perl": "perl",
    "ruby": "ruby",
    "sh": "shell",
}
_MARKUP = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)


def sniff(path: str, handle: BinaryIO, *, encoding: str | None = None) -> Kind:
    """Tell the kind of an open file; the handle is left anywhere.

    Raises:
        LoadError: if it is nothing that we read; the message says what it is.
    """
    head = handle.read(HEAD_BYTES)
    extension = os.path.splitext(path)[1].lower()
    if not head:
        return _EMPTY_NAMED.get(extension) or _by_name(path, extension) or _TEXT
    return _by_magic(head, handle, extension) or _by_text(path, extension, head, encoding)


def _by_magic(head: bytes, handle: BinaryIO, extension: str) -> Kind | None:
    if name := image_type(head):
        return _IMAGE[name]
    at = head[:1024].find(b"%PDF-")
    # prose about PDF files may begin with its mark, but not in the middle of text
    if at == 0 or (at > 0 and (extension == ".pdf" or not is_text(head))):
        return _PDF
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        return _ZIPPED[kind_of_zip(handle, extension)]
    if head.startswith(b"{\\rtf"):
        return Kind("rtf", "rtf", "application/rtf")
    for mark, what in _UNREAD:
        if head.startswith(mark):
            raise LoadError(f"not a kind of file that is read: {what}")
    return None


def image_type(head: bytes) -> str | None:
    """Return 'png', 'jpeg', ... by the first bytes of a picture."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"\x00\x00\x01\x00") and head[5:6] == b"\x00" and 0 < head[4] < 64:
        return "ico"
    if head.startswith(b"\x00\x00\x00\x0cjP  \r\n\x87\n"):
        return "jp2"
    if head.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):
        return "tiff"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if _PNM.match(head):
        return "ppm"
    if head[:2] == b"BM" and len(head) >= 18 and head[6:10] == b"\x00\x00\x00\x00":
        return "bmp"
    if head[4:8] == b"ftyp":
        size = min(int.from_bytes(head[:4], "big"), 256)
        brands = [head[8:12], *(head[i : i + 4] for i in range(16, size, 4))]
        return next((_HEIF_BRANDS[b] for b in brands if b in _HEIF_BRANDS), None)
    return None


def _by_text(path: str, extension: str, head: bytes, encoding: str | None) -> Kind:
    named = _by_name(path, extension)
    is_named = extension in _PLAIN or named is not None
    readable = is_text(head, named=is_named) and (
        extension not in _UNMARKED or is_utf8(_whole_characters(head))
    )
    if encoding is None and not readable:
        raise LoadError(f"not a kind of file that is read: {_describe(head, extension)}")
    text = decode(_whole_characters(head), override=encoding).text.lstrip("\ufeff")
    markup = _MARKUP.match(text) is not None
    if markup and (named is None or named.type in {"xml", "csv", "tsv", "json", "jsonl"}):
        return _HTML
    if named is _JSON and _is_lines(text, len(head)):
        return _JSONL
    if named is not None:
        return named
    if extension in _PLAIN:
        return _TEXT
    return _by_content(text, len(head))


def _by_name(path: str, extension: str) -> Kind | None:
    if extension in _NAMED:
        return _NAMED[extension]
    language = language_of(os.path.basename(path), extension)
    return Kind("code", language, f"text/x-{language}") if language else None


def _by_content(text: str, size: int) -> Kind:
    from foveate.pipeline.ingest.table import looks_like_table

    if text.startswith("<?xml"):
        return _XML
    if text.startswith("#!"):
        first = text.split("\n", 1)[0]
        for name, language in _SHEBANGS.items():
            if name in first:
                return Kind("code", language, f"text/x-{language}")
    if text[:1] == "{" and _is_lines(text, size):
        return _JSONL
    return _CSV if looks_like_table(text) else _TEXT


def _is_lines(text: str, size: int) -> bool:
    from foveate.pipeline.ingest.jsonl import looks_like_lines

    return looks_like_lines(text if size == HEAD_BYTES else text + "\n") and "\n" in text.strip()


def _whole_characters(head: bytes) -> bytes:
    """Cut a head at its last line end, so that no character is cut in two."""
    if len(head) < HEAD_BYTES:
        return head
    end = head.rfind(b"\n")
    return head[: end + 1] if end > HEAD_BYTES // 2 and head[end + 1 : end + 2] != b"\x00" else head


def _describe(head: bytes, extension: str) -> str:
    import puremagic

    named = f" with the name of a {extension[1:]} file" if extension else ""
    try:
        found = [] if extension in _UNMARKED else puremagic.magic_string(head)
    except (puremagic.PureError, ValueError):
        found = []
    # two bytes of signature prove nothing
    sure = [match for match in found if len(match.byte_match) >= 4 and match.name]
    return f"{sure[0].name}{named}" if sure else f"binary data{named}"
