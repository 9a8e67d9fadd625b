"""Markdown: the source text itself, with its headings, tables, lists and fences as blocks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from foveate.pipeline.ingest.clean import clean, clean_value
from foveate.pipeline.ingest.decode import decode
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.structure import heading_text
from foveate.pipeline.types import Block, BlockKind, Document, Note

_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\n(.*?)^\1[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
# the parser is Python: 2 s for so much
_MAX_PARSED_CHARS = 4_000_000
_MAX_FRONT_CHARS = 65_536
_MAX_BRACKETS = 400
_KINDS: dict[str, BlockKind] = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "blockquote_open": "paragraph",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "table_open": "table",
    "fence": "code",
    "code_block": "code",
    "html_block": "paragraph",
}


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the source text, cleaned; front matter becomes metadata."""
    decoded = decode(file.data, override=options.encoding)
    text, _ = clean(decoded.text)
    notes = list(decoded.notes)
    front = _FRONT.match(text[: _MAX_FRONT_CHARS + 10])
    metadata: dict[str, Any] = {}
    if front:
        try:
            metadata = _read_front(front.group(1), front.group(2))
        except ValueError as error:
            notes.append(Note("info", f"front matter could not be read: {error}"))
    blocks: tuple[Block, ...] = ()
    if len(text) <= _MAX_PARSED_CHARS:
        start = front.end() if front else 0
        head = (Block("code", 0, front.end()),) if front else ()
        blocks = (*head, *markdown_blocks(text, start))
    else:
        notes.append(Note("info", "too long to find its headings; read as plain text"))
    title = metadata.pop("title", None)
    if title is None:
        headings = [block for block in blocks if block.kind == "heading" and block.level == 1]
        title = heading_text(text, headings[0]) if headings else None
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        text,
        title=str(title) if title else None,
        language=_language(metadata),
        encoding=decoded.encoding,
        metadata=metadata,
        blocks=blocks,
        notes=tuple(notes),
    )


def markdown_blocks(text: str, start: int = 0) -> tuple[Block, ...]:
    """Return the top-level blocks of the Markdown text from an offset on."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    lines = [start]
    position = text.find("\n", start)
    while position >= 0:
        lines.append(position + 1)
        position = text.find("\n", position + 1)
    lines.append(len(text) + 1)
    blocks: list[Block] = []
    for token in parser.parse(text[start:]):
        kind = _KINDS.get(token.type)
        if kind is None or token.level > 0 or not token.map:
            continue
        first, last = (min(line, len(lines) - 1) for line in token.map)
        begin, end = lines[first], min(lines[last] - 1, len(text))
        end = begin + len(text[begin:end].rstrip())
        level = int(token.tag[1]) if kind == "heading" else 0
        header = None
        if kind == "table":
            header = (begin, min(lines[min(first + 2, len(lines) - 1)] - 1, end))
        if end > begin:
            blocks.append(Block(kind, begin, end, level, header))
    return tuple(blocks)


def _read_front(fence: str, source: str) -> dict[str, Any]:
    if fence == "+++":
        found: Any = tomllib.loads(source)
    else:
        import yaml

        # the parser's time grows with the square of the depth
        if source.count("[") + source.count("{") > _MAX_BRACKETS:
            raise ValueError("too many brackets")
        try:
            # an alias can make a small text huge
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(source)):
                raise ValueError("aliases are not read")
            found = yaml.safe_load(source)
        except yaml.YAMLError as error:
            raise ValueError(str(error).split("\n")[0]) from error
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    values = clean_value(found)
    return values if isinstance(values, dict) else {}


def _language(metadata: dict[str, Any]) -> str | None:
    value = metadata.get("lang") or metadata.get("language")
    return value[:2].lower() if isinstance(value, str) and value[:2].isalpha() else None
