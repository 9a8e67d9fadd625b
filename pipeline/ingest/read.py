"""Open any file and make Documents of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from foveate.pipeline import registry
from foveate.pipeline.errors import FoveateError, LimitExceeded, LoadError
from foveate.pipeline.ingest.language import language
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile, open_regular
from foveate.pipeline.ingest.sniff import sniff
from foveate.pipeline.types import Block, Document, Note, WordBoxes


def read(path: str, options: IngestOptions) -> Iterator[Document]:
    """Yield the Documents of a file: one for each record of CSV and JSON lines, else one.

    An empty file, and one without any text or picture, yields a Document with the note 'empty'.

    Raises:
        LoadError: if the file cannot be read; the message is the reason.
        LimitExceeded: if it asks for more than a limit of the options.
    """
    file, loader = open_file(path, options)
    if not file.size:
        yield _empty(file, "the file is empty")
        return
    n_documents = 0
    try:
        for document in registry.find("loader", loader)(file, options):
            n_documents += 1
            yield _finish(document, options)
    except FoveateError:
        raise
    except RecursionError as error:
        raise LoadError(f"{file.type} is nested too deeply") from error
    except MemoryError as error:
        raise LimitExceeded(f"{file.type} needs more memory than there is") from error
    # one bad file must not stop the rest, whatever its parser raises
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise LoadError(f"damaged {file.type}: {type(error).__name__}: {message}") from error
    if not n_documents:
        yield _empty(file, "no record in the file")


def open_file(path: str, options: IngestOptions) -> tuple[OpenedFile, str]:
    """Return the file with its kind, and the name of the loader that reads it.

    Raises:
        LoadError: if it cannot be opened or is nothing that we read.
        LimitExceeded: if it is larger than max_file_bytes and is not streamed.
    """
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        try:
            kind = sniff(path, handle, encoding=options.encoding)
        except OSError as error:
            raise LoadError(f"cannot read the file: {error.strerror or error}") from error
    if size > options.max_file_bytes and not kind.streamed:
        raise LimitExceeded(
            f"{size} bytes, more than ingest.max_file_bytes = {options.max_file_bytes}"
        )
    file = OpenedFile(
        path,
        media_type=kind.media_type,
        type=kind.type,
        size=size,
        limit_bytes=options.max_file_bytes,
    )
    return file, kind.loader


def _empty(file: OpenedFile, reason: str) -> Document:
    return Document(
        file.digest, file.media_type, file.type, file.size, notes=(Note("empty", reason),)
    )


def _finish(document: Document, options: IngestOptions) -> Document:
    """Cut what is too long, name the language, and say so when there is nothing to index."""
    if len(document.text) > options.max_text_chars:
        document = _cut(document, options.max_text_chars)
    if document.language is None and (found := language(document.text)):
        document = replace(document, language=found)
    is_bare = not document.text.strip() and not document.pictures
    if is_bare and not any(note.kind == "empty" for note in document.notes):
        note = Note("empty", "no text and no picture in it")
        document = replace(document, notes=(*document.notes, note))
    return document


def _cut(document: Document, limit: int) -> Document:
    note = Note(
        "truncated",
        f"{len(document.text)} characters of text, cut at ingest.max_text_chars = {limit}",
    )
    blocks = tuple(
        Block(b.kind, b.start, min(b.end, limit), b.level, b.header)
        for b in document.blocks
        if b.start < limit and (b.header is None or b.header[1] <= limit)
    )
    words = document.words
    if words is not None:
        kept = words.spans[:, 1] <= limit
        words = WordBoxes(words.spans[kept], words.pages[kept], words.boxes[kept])
    pictures = tuple(
        picture if not picture.span or picture.span[1] <= limit else replace(picture, span=None)
        for picture in document.pictures
    )
    return replace(
        document,
        text=document.text[:limit],
        blocks=blocks,
        words=words,
        pictures=pictures,
        page_starts=tuple(start for start in document.page_starts if start <= limit),
        notes=(*document.notes, note),
    )
