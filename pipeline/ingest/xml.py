"""XML and SVG: the text of the elements, a line each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from lxml import etree

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.build import TextBuilder
from foveate.pipeline.ingest.decode import decode
from foveate.pipeline.ingest.epub import parse_xml_whole
from foveate.pipeline.ingest.html import TAGS, declared_encoding
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.types import Document, Note

_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")
_DOCTYPE = re.compile(r"<!DOCTYPE[^\[>]{0,2000}(?:\[.*?\]\s*)?>", re.DOTALL)
_TITLES = frozenset({"title", "headline"})
_HEADINGS = frozenset({"head", "heading", "h1", "h2", "h3"})


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the text inside the elements. Entities are never expanded."""
    if len(file.data) > options.max_xml_bytes:
        limit = options.max_xml_bytes
        raise LoadError(f"{len(file.data)} bytes of XML, more than ingest.max_xml_bytes = {limit}")
    decoded = decode(file.data, override=options.encoding, declared=declared_encoding(file.data))
    source = _DECLARATION.sub("", decoded.text.lstrip("\ufeff"))
    notes = decoded.notes
    if re.search(r"<!ENTITY", source[:65_536]):
        notes += (Note("info", "entities that the file defines were not expanded"),)
    # without its definitions an entity is nothing, and cannot grow
    source = _DOCTYPE.sub("", source, count=1)
    builder = TextBuilder(options.max_text_chars)
    root, is_deep = parse_xml_whole(source.encode("utf-8", "replace"))
    title = None
    if is_deep:
        for part in TAGS.sub("\n\n", source).split("\n\n"):
            builder.paragraph(unescape(part))
        notes += (Note("guessed", "nested too deeply; read without its structure"),)
    else:
        title = _add(root, builder)
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        builder.text(),
        title=title,
        encoding=decoded.encoding,
        blocks=tuple(builder.blocks),
        notes=notes,
    )


def _add(root: etree._Element, builder: TextBuilder) -> str | None:
    """Add each run of mixed content as a paragraph; return the first title."""
    title: str | None = None
    walker = etree.iterwalk(root, events=("start",))
    for _, element in walker:
        if not isinstance(element.tag, str):
            # a reference to an entity that is not expanded
            continue
        name = etree.QName(element).localname.lower()
        if name in {"script", "style"}:
            walker.skip_subtree()
            continue
        if not _holds_text(element):
            continue
        # elements inside a sentence are read with it
        walker.skip_subtree()
        text = " ".join("".join(element.itertext()).split())
        if name in _TITLES and title is None:
            title = text
        if name in _TITLES or name in _HEADINGS:
            builder.heading(text, 2)
        else:
            builder.paragraph(text)
    return title


def _holds_text(element: etree._Element) -> bool:
    """Whether an element has words of its own, beside those of its children."""
    if element.text and element.text.strip():
        return True
    return any(child.tail and child.tail.strip() for child in element)
