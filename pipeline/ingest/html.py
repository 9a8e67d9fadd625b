"""HTML: what a reader sees of a page, with its headings, lists, tables and code as blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from lxml import etree

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.build import TextBuilder
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.decode import decode
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.types import Document, Note

_DROPPED_TAGS = """
    script style template noscript svg math head iframe object embed audio video canvas input
    select button textarea dialog datalist
"""
_BREAKING_TAGS = """
    html body address article aside blockquote center dd details div dl dt fieldset figcaption
    figure footer form header hgroup hr legend li main menu nav ol optgroup p section summary
    table tbody td tfoot th thead tr ul caption h1 h2 h3 h4 h5 h6 pre dir
"""
_DROPPED = frozenset(_DROPPED_TAGS.split())
_BREAKING = frozenset(_BREAKING_TAGS.split())
_HIDDEN_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_DECLARED = re.compile(
    rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?([\w.:-]+)|<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE,
)
_KEPT_META = {
    "author": "author",
    "description": "description",
    "keywords": "keywords",
    "date": "date",
    "dcterms.date": "date",
    "article:published_time": "date",
    "og:description": "description",
    "article:author": "author",
}
TAGS = re.compile(
    r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>", re.IGNORECASE | re.DOTALL
)
# a cell of more than this holds layout, not data
_CELL_CHARS = 600


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the visible text; scripts, styles, forms' controls and hidden parts are left out."""
    decoded = decode(file.data, override=options.encoding, declared=declared_encoding(file.data))
    builder = TextBuilder(options.max_text_chars)
    root, notes = add_page(decoded.text, builder)
    title, language, metadata = (None, None, {}) if root is None else head(root)
    text = builder.text()
    if title is None:
        tops = [b for b in builder.blocks if b.kind == "heading" and b.level == 1]
        title = text[tops[0].start : tops[0].end] if tops else None
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        text,
        title=title,
        language=language,
        encoding=decoded.encoding,
        metadata=metadata,
        blocks=tuple(builder.blocks),
        notes=(*decoded.notes, *notes),
    )


def declared_encoding(data: bytes) -> str | None:
    """Return the encoding that a page names in its first 4 KiB."""
    match = _DECLARED.search(data[:4096])
    if match is None:
        return None
    name = (match.group(1) or match.group(2)).decode("ascii", "replace").lower()
    # as browsers do: who writes latin-1 means cp1252
    return {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252"}.get(name, name)


def add_page(text: str, builder: TextBuilder) -> tuple[etree._Element | None, tuple[Note, ...]]:
    """Add what is visible of a page; return its tree, None if there is none, and notes.

    Nothing outside the text is loaded.
    """
    cleaned = clean(text)[0].replace("\f", " ")
    if not cleaned.strip():
        return None, ()
    parser = etree.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, huge_tree=True
    )
    try:
        root = etree.fromstring(cleaned.encode("utf-8"), parser)
    except etree.XMLSyntaxError as error:
        raise LoadError(f"expected HTML: {error.msg}") from error
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        # the parser gives up below 2,048 levels and would lose all text there
        for part in TAGS.sub("\n\n", cleaned).split("\n\n"):
            builder.paragraph(unescape(part))
        return root, (Note("guessed", "nested too deeply; read without its structure"),)
    if root is not None:
        _Walker(builder).walk(root)
    return root, ()


def head(root: etree._Element) -> tuple[str | None, str | None, dict[str, Any]]:
    """Return title, language and metadata of a page."""
    found = root.find(".//title")
    title = " ".join("".join(found.itertext()).split()) if found is not None else ""
    language = (root.get("lang") or root.get("xml:lang") or "").strip()[:2].lower()
    metadata: dict[str, Any] = {}
    for meta in root.iter("meta"):
        key = _KEPT_META.get((meta.get("name") or meta.get("property") or "").lower())
        value = " ".join((meta.get("content") or "").split())
        if key and value:
            metadata.setdefault(key, value)
    return title or None, language if language.isalpha() else None, metadata


class _Walker:
    """Goes through a tree without recursion: pages nest thousands deep."""

    def __init__(self, builder: TextBuilder) -> None:
        self.builder = builder
        self.inline: list[str] = []
        self.items: list[str] = []
        self.item_depth = 0

    def walk(self, root: etree._Element) -> None:
        walker = etree.iterwalk(root, events=("start", "end"))
        for event, element in walker:
            tag = element.tag if isinstance(element.tag, str) else ""
            if event == "end":
                self._end(element, tag, root)
            elif not tag or tag in _DROPPED or _is_hidden(element):
                walker.skip_subtree()
                element.set("_skipped", "1") if tag else None
            elif self._start(element, tag):
                walker.skip_subtree()
                element.set("_skipped", "1")
        self._flush()
        self._flush_items()

    def _start(self, element: etree._Element, tag: str) -> bool:
        """Begin an element; True if it has been read whole."""
        if tag in _BREAKING:
            self._flush()
        if tag in {"h1", "h2", "h3", "h4", "h5", "h6"}:
            self._flush_items()
            self.builder.heading(visible_text(element), int(tag[1]))
            return True
        if tag == "pre":
            self._flush_items()
            self.builder.verbatim("".join(element.itertext()))
            return True
        if tag == "table" and (rows := _data_rows(element)):
            self._flush_items()
            caption = element.find("caption")
            if caption is not None:
                self.builder.paragraph(visible_text(caption), "caption")
            first = next(element.iter("tr"))
            has_head = first.find("th") is not None or element.find("thead") is not None
            self.builder.table(rows, header=has_head)
            return True
        if tag == "li":
            self.item_depth += 1
            self.inline.append("- ")
        elif tag == "br":
            self.inline.append("\n")
        elif tag == "img" and element.get("alt"):
            self.inline.append(f" {_spaces(element.get('alt') or '')} ")
        if element.text:
            self.inline.append(_spaces(element.text))
        return False

    def _end(self, element: etree._Element, tag: str, root: etree._Element) -> None:
        if element.get("_skipped") is None:
            if tag in _BREAKING:
                self._flush()
            if tag == "li":
                self.item_depth -= 1
            if tag in {"ul", "ol", "menu", "dir"} and self.item_depth == 0:
                self._flush_items()
        if element.tail and element is not root:
            self.inline.append(_spaces(element.tail))

    def _flush(self) -> None:
        text = "".join(self.inline).strip()
        self.inline = []
        if not text or text == "-":
            return
        if self.item_depth:
            self.items.append(text)
            return
        self._flush_items()
        self.builder.paragraph(text)

    def _flush_items(self) -> None:
        if self.items:
            self.builder.items(self.items)
            self.items = []


def visible_text(element: etree._Element) -> str:
    """Return the text inside an element on one line, without its hidden parts."""
    parts: list[str] = []
    walker = etree.iterwalk(element, events=("start", "end"))
    hidden: set[int] = set()
    for event, node in walker:
        tag = node.tag if isinstance(node.tag, str) else ""
        if event == "start":
            if not tag or tag in _DROPPED or _is_hidden(node):
                walker.skip_subtree()
                hidden.add(id(node))
                continue
            if tag == "img":
                parts.append(f" {node.get('alt') or ''} ")
            parts.append(" " if tag == "br" or tag in _BREAKING else "")
            parts.append(node.text or "")
        elif node is not element:
            parts.append(" " if tag in _BREAKING else "")
            parts.append(node.tail or "")
    return " ".join("".join(parts).split())


def _data_rows(table: etree._Element) -> list[list[str]]:
    """The rows of a table that holds data; none for one that only lays out a page."""
    if table.find(".//table") is not None or table.get("role") in {"presentation", "none"}:
        return []
    rows: list[list[str]] = []
    for row in table.iter("tr"):
        if _is_hidden(row):
            continue
        cells = [cell for cell in row if cell.tag in {"td", "th"} and not _is_hidden(cell)]
        texts = [visible_text(cell) for cell in cells]
        if any(len(text) > _CELL_CHARS for text in texts):
            return []
        rows.append(texts)
    wide = max((len(row) for row in rows), default=0)
    return rows if wide > 1 else []


def _is_hidden(element: etree._Element) -> bool:
    if element.get("hidden") is not None or element.get("aria-hidden") == "true":
        return True
    style = element.get("style")
    return bool(style and _HIDDEN_STYLE.search(style))


def _spaces(text: str) -> str:
    return re.sub(r"\s+", " ", text)
