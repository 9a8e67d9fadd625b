"""OpenDocument texts: paragraphs, headings, lists, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lxml import etree

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.build import TextBuilder
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.epub import parse_xml
from foveate.pipeline.ingest.figures import Figures
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.zips import check_zip, open_zip, read_member
from foveate.pipeline.types import Document

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_XLINK = "{http://www.w3.org/1999/xlink}"
# rows and cells may be repeated a million times to fill a sheet
_MAX_REPEATS = 64
_META = {"creator": "author", "subject": "subject", "description": "description", "date": "changed"}


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the document's text.

    Raises:
        LoadError: if it is damaged or encrypted.
    """
    check_zip(file.data, options, no_doctype=False)
    builder = TextBuilder(options.max_text_chars)
    figures = Figures(options)
    with open_zip(file.data) as container:
        manifest = read_member(container, "META-INF/manifest.xml") or b""
        if b"encryption-data" in manifest:
            raise LoadError("encrypted; it cannot be opened without its password")
        content = read_member(container, "content.xml")
        if content is None:
            raise LoadError("damaged odt: it has no content.xml")
        body = parse_xml(content).find(f"{_OFFICE}body/{_OFFICE}text")
        if body is not None:
            _add(body, builder)
        title, metadata = _properties(read_member(container, "meta.xml"))
        for name in container.namelist():
            if name.startswith("Pictures/"):
                figures.add(read_member(container, name))
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        builder.text(),
        title=title,
        metadata=metadata,
        blocks=tuple(builder.blocks),
        pictures=tuple(figures.pictures),
        notes=figures.notes(),
    )


def _add(body: etree._Element, builder: TextBuilder) -> None:
    walker = etree.iterwalk(body, events=("start",))
    for _, element in walker:
        tag = element.tag
        if tag == f"{_TEXT}h":
            builder.heading(_text(element), int(element.get(f"{_TEXT}outline-level") or 1))
        elif tag == f"{_TEXT}p":
            builder.paragraph(_text(element))
        elif tag == f"{_TEXT}list":
            builder.items(f"- {_text(p)}" for p in element.iter(f"{_TEXT}p", f"{_TEXT}h"))
        elif tag == f"{_TABLE}table":
            builder.table(_rows(element), header=True)
        elif tag != f"{_TEXT}tracked-changes":
            continue
        walker.skip_subtree()


def _rows(table: etree._Element) -> Iterator[list[str]]:
    for row in table.iter(f"{_TABLE}table-row"):
        cells: list[str] = []
        for cell in row.iterchildren(f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
            repeats = int(cell.get(f"{_TABLE}number-columns-repeated") or 1)
            text = " ".join(_text(p) for p in cell.iter(f"{_TEXT}p"))
            cells += [text] * min(repeats, _MAX_REPEATS)
        yield cells


def _text(element: etree._Element) -> str:
    parts: list[str] = []
    for event, node in etree.iterwalk(element, events=("start", "end")):
        if event == "start":
            if node.tag == f"{_TEXT}s":
                parts.append(" " * min(int(node.get(f"{_TEXT}c") or 1), _MAX_REPEATS))
            elif node.tag in {f"{_TEXT}tab", f"{_TEXT}line-break"}:
                parts.append("\t" if node.tag.endswith("tab") else "\n")
            parts.append(node.text or "")
        elif node is not element:
            parts.append(node.tail or "")
    return "".join(parts)


def _properties(data: bytes | None) -> tuple[str | None, dict[str, Any]]:
    if data is None:
        return None, {}
    title: str | None = None
    metadata: dict[str, Any] = {}
    for element in parse_xml(data).iter(etree.Element):
        name = etree.QName(element).localname
        value = clean(" ".join((element.text or "").split()))[0]
        if name == "title":
            title = value or None
        elif value and name in _META:
            metadata[_META[name]] = value
    return title, metadata
