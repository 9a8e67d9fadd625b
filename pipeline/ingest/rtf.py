"""Rich text (RTF): its plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.types import Document


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the text without its formatting."""
    from striprtf import striprtf

    convert: Any = striprtf.rtf_to_text

    # RTF is ASCII; every other character is escaped in it
    source = file.data.decode("latin-1")
    try:
        text: str = convert(source, errors="replace")
    except (ValueError, LookupError, IndexError) as error:
        raise LoadError(f"damaged rtf: {error}") from error
    yield Document(
        file.digest, file.media_type, file.type, file.size, clean(text)[0].strip("\n\x00 ")
    )
