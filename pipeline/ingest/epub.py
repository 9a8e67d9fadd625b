"""EPUB books: the chapters in the order of their spine."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from lxml import etree

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest import html
from foveate.pipeline.ingest.build import TextBuilder
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.decode import decode
from foveate.pipeline.ingest.figures import Figures
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.zips import check_zip, open_zip, read_member
from foveate.pipeline.types import Document, Note

_DC = "{http://purl.org/dc/elements/1.1/}"
_OPF = "{http://www.idpf.org/2007/opf}"
_PAGES = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})
# fonts may be scrambled in a book that is free to read
_FONT_CIPHERS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_DUBLIN = {
    "creator": "author",
    "contributor": "contributor",
    "publisher": "publisher",
    "date": "date",
    "identifier": "identifier",
    "subject": "keywords",
    "description": "description",
    "rights": "rights",
}


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the book as one text; its Dublin Core fields become metadata.

    Raises:
        LoadError: if it is protected, or its package cannot be read.
    """
    check_zip(file.data, options, no_doctype=False)
    builder = TextBuilder(options.max_text_chars)
    figures = Figures(options)
    notes: list[Note] = []
    with open_zip(file.data) as container:
        _refuse_protected(container)
        folder, package = _package(container)
        chapters = _spine(package, folder)
        if not chapters:
            raise LoadError("damaged epub: its package names no chapter")
        for name in chapters:
            data = read_member(container, name)
            if data is None:
                notes.append(Note("failed", f"chapter {name!r} is missing or damaged"))
                continue
            text = decode(data, declared=html.declared_encoding(data) or "utf-8").text
            notes += html.add_page(text, builder)[1]
        for name in _pictures(package, folder):
            figures.add(read_member(container, name))
    if builder.full:
        limit = options.max_text_chars
        notes.append(Note("truncated", f"text cut at ingest.max_text_chars = {limit}"))
    title, language, metadata = _dublin(package)
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        builder.text(),
        title=title,
        language=language,
        metadata=metadata,
        blocks=tuple(builder.blocks),
        pictures=tuple(figures.pictures),
        notes=(*notes, *figures.notes()),
    )


def parse_xml(data: bytes) -> etree._Element:
    """Parse XML; entities are not expanded and nothing is fetched.

    Raises:
        LoadError: if it is not well-formed beyond repair.
    """
    return parse_xml_whole(data)[0]


def parse_xml_whole(data: bytes) -> tuple[etree._Element, bool]:
    """Return an XML tree and whether it nests too deeply, so that the tree lacks parts.

    Raises:
        LoadError: if it is not well-formed beyond repair.
    """
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        recover=True,
        # 2,048 levels instead of 256, and texts of more than 10 MB
        huge_tree=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise LoadError(f"damaged XML: {error.msg}") from error
    if root is None:
        raise LoadError("damaged XML: no element in it")
    return root, any("depth" in entry.message for entry in parser.error_log)


def _refuse_protected(container: zipfile.ZipFile) -> None:
    data = read_member(container, "META-INF/encryption.xml")
    if data is None:
        return
    for method in parse_xml(data).iter("{*}EncryptionMethod"):
        if not (method.get("Algorithm") or "").startswith(_FONT_CIPHERS):
            raise LoadError("protected by digital rights management; it cannot be read")


def _package(container: zipfile.ZipFile) -> tuple[str, etree._Element]:
    """Return the package's folder and its root element."""
    data = read_member(container, "META-INF/container.xml")
    name = None
    if data is not None:
        found = parse_xml(data).find(".//{*}rootfile")
        name = found.get("full-path") if found is not None else None
    if name is None:
        name = next((n for n in container.namelist() if n.endswith(".opf")), None)
    package = read_member(container, name) if name else None
    if name is None or package is None:
        raise LoadError("damaged epub: it has no package file")
    return posixpath.dirname(name), parse_xml(package)


def _items(package: etree._Element, folder: str) -> dict[str, tuple[str, str, str]]:
    """Return {id: (name in the container, media type, properties)} of the manifest."""
    items: dict[str, tuple[str, str, str]] = {}
    for item in package.iter("{*}item"):
        href = unquote((item.get("href") or "").split("#")[0])
        name = posixpath.normpath(posixpath.join(folder, href))
        items[item.get("id") or ""] = (
            name,
            (item.get("media-type") or "").lower(),
            item.get("properties") or "",
        )
    return items


def _spine(package: etree._Element, folder: str) -> list[str]:
    items = _items(package, folder)
    references = [ref.get("idref") or "" for ref in package.iter("{*}itemref")]
    names = [items[ref][0] for ref in references if ref in items and items[ref][1] in _PAGES]
    if names:
        return list(dict.fromkeys(names))
    # without a spine: every page but the table of contents
    return [name for name, kind, use in items.values() if kind in _PAGES and "nav" not in use]


def _pictures(package: etree._Element, folder: str) -> list[str]:
    return [
        name
        for name, kind, _ in _items(package, folder).values()
        if kind.startswith("image/") and "svg" not in kind
    ]


def _dublin(package: etree._Element) -> tuple[str | None, str | None, dict[str, Any]]:
    def values(name: str) -> list[str]:
        texts = (" ".join("".join(e.itertext()).split()) for e in package.iter(f"{_DC}{name}"))
        return [clean(text)[0] for text in texts if text]

    metadata: dict[str, Any] = {}
    for name, key in _DUBLIN.items():
        if found := values(name):
            metadata[key] = found[0] if len(found) == 1 else found
    languages = values("language")
    titles = values("title")
    language = languages[0][:2].lower() if languages and languages[0][:2].isalpha() else None
    return titles[0] if titles else None, language, metadata
