"""Plain text, and text formats that have no structure we know."""

from __future__ import annotations

from collections.abc import Iterator

from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.decode import decode
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.types import Document


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the text as it stands in the file, cleaned."""
    decoded = decode(file.data, override=options.encoding)
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        clean(decoded.text)[0],
        encoding=decoded.encoding,
        notes=decoded.notes,
    )
