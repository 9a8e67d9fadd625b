"""Workbooks: a sheet is a page, its rows a table."""

from __future__ import annotations

import datetime
import io
import warnings
from collections.abc import Iterator
from typing import Any

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.build import TextBuilder
from foveate.pipeline.ingest.docx import core_properties
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.zips import check_zip
from foveate.pipeline.types import Document, Note


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield all sheets as one text; formulas by their stored values, dates in ISO form."""
    import openpyxl

    check_zip(file.data, options)
    with warnings.catch_warnings():
        # styles and extensions that it does not know are no matter here
        warnings.simplefilter("ignore")
        try:
            book = openpyxl.load_workbook(
                io.BytesIO(file.data), read_only=True, data_only=True, keep_links=False
            )
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise LoadError(f"damaged xlsx: {error}") from error
        try:
            yield _document(file, options, book)
        finally:
            book.close()


def _document(file: OpenedFile, options: IngestOptions, book: Any) -> Document:
    builder = TextBuilder(options.max_text_chars)
    notes: list[Note] = []
    sheets = [sheet for sheet in book.worksheets if hasattr(sheet, "iter_rows")]
    for sheet in sheets[: options.max_pages]:
        builder.start_page()
        builder.heading(sheet.title, 1)
        # the size that a sheet states is often wrong
        sheet.reset_dimensions()
        builder.table(_rows(sheet), header=True)
    if len(sheets) > options.max_pages:
        limit = options.max_pages
        notes.append(Note("truncated", f"{len(sheets)} sheets, cut at ingest.max_pages = {limit}"))
    if builder.full:
        limit = options.max_text_chars
        notes.append(Note("truncated", f"text cut at ingest.max_text_chars = {limit}"))
    if n := _unstored_formulas(file, options):
        told = f"formulas without a stored value: {n}; open and save the workbook"
        notes.append(Note("info", told))
    title, language, metadata = core_properties(book.properties)
    tables = [block for block in builder.blocks if block.kind == "table"]
    return Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        # names of sheets alone are no content
        builder.text() if tables else "",
        title=title,
        language=language,
        metadata=metadata | {"sheets": [sheet.title for sheet in sheets]},
        page_starts=tuple(builder.page_starts) if tables else (),
        blocks=tuple(builder.blocks) if tables else (),
        notes=tuple(notes),
    )


def _rows(sheet: Any) -> Iterator[list[str]]:
    for row in sheet.iter_rows(values_only=True):
        cells = [_as_text(value) for value in row]
        if any(cells):
            yield cells


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime.datetime):
        whole_day = value.time() == datetime.time.min
        return value.date().isoformat() if whole_day else value.isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float):
        # 0.1 + 0.2 is shown as people see it in the sheet
        return f"{value:.15g}"
    return str(value)


def _unstored_formulas(file: OpenedFile, options: IngestOptions) -> int:
    """Count the formulas that the program which wrote the file did not compute."""
    import re

    from foveate.pipeline.ingest.zips import ZIP_ERRORS, open_zip

    bare = re.compile(rb"<f[ >][^<]*</f>\s*(?:<v\s*/>|<v></v>)?\s*</c>")
    n_found = 0
    with open_zip(file.data) as container:
        for entry in container.infolist():
            is_sheet = entry.filename.startswith("xl/worksheets/")
            if is_sheet and entry.file_size <= options.max_xml_bytes:
                try:
                    n_found += len(bare.findall(container.read(entry)))
                except ZIP_ERRORS:
                    continue
    return n_found
