"""Source code, kept as it is; what stands at the left margin parts it into pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.decode import decode
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.types import Block, Document

# a line that begins a piece: at the margin, after an empty line, no closing bracket
_PIECE = re.compile(r"\n[^\S\n]*\n(?:[^\S\n]*\n)*(?=[^\s)\]}])")


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the source, cleaned; each function or class at the margin is a block."""
    decoded = decode(file.data, override=options.encoding)
    text, _ = clean(decoded.text)
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        text,
        title=clean(os.fsencode(os.path.basename(file.path)).decode("utf-8", "replace"))[0],
        encoding=decoded.encoding,
        blocks=tuple(code_blocks(text)),
        notes=decoded.notes,
    )


def code_blocks(text: str) -> Iterator[Block]:
    """Yield the pieces of a source text."""
    start = 0
    for match in _PIECE.finditer(text):
        if text[start : match.start()].strip():
            yield Block("code", start, match.start())
        start = match.end()
    end = len(text.rstrip())
    if end > start:
        yield Block("code", start, end)
