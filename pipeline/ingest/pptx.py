"""Presentations: a slide is a page, with its text, tables, charts, notes and pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.build import TextBuilder
from foveate.pipeline.ingest.docx import core_properties
from foveate.pipeline.ingest.figures import Figures
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.zips import check_zip
from foveate.pipeline.types import Document, Note

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the slides' text in order, a page each."""
    import pptx

    check_zip(file.data, options)
    try:
        presentation = pptx.Presentation(io.BytesIO(file.data))
    except (KeyError, ValueError) as error:
        raise LoadError(f"damaged pptx: {error}") from error
    builder = TextBuilder(options.max_text_chars)
    figures = Figures(options)
    notes: list[Note] = []
    slides = list(presentation.slides)
    if len(slides) > options.max_pages:
        limit = options.max_pages
        notes.append(Note("truncated", f"{len(slides)} slides, cut at ingest.max_pages = {limit}"))
    for number, slide in enumerate(slides[: options.max_pages], 1):
        builder.start_page()
        _slide(slide, number, builder, figures, notes)
    if builder.full:
        limit = options.max_text_chars
        notes.append(Note("truncated", f"text cut at ingest.max_text_chars = {limit}"))
    title, language, metadata = core_properties(presentation.core_properties)
    if title in {None, "PowerPoint Presentation", "PowerPoint-Pr\u00e4sentation"}:
        heading = next((b for b in builder.blocks if b.kind == "heading"), None)
        title = builder.text()[heading.start : heading.end] if heading else None
    yield Document(
        file.digest,
        file.media_type,
        file.type,
        file.size,
        builder.text(),
        title=title,
        language=language,
        metadata=metadata | {"n_pages": len(slides)},
        page_starts=tuple(builder.page_starts),
        blocks=tuple(builder.blocks),
        pictures=tuple(figures.pictures),
        notes=(*notes, *figures.notes()),
    )


def _slide(
    slide: Any, number: int, builder: TextBuilder, figures: Figures, notes: list[Note]
) -> None:
    title = slide.shapes.title
    if title is not None and title.has_text_frame:
        builder.heading(title.text_frame.text, 1)
    for shape in _shapes(slide.shapes):
        if title is not None and shape.shape_id == title.shape_id:
            continue
        _shape(shape, number, builder, figures, notes)
    if slide.has_notes_slide:
        frame = slide.notes_slide.notes_text_frame
        if frame is not None and frame.text.strip():
            builder.paragraph(f"Notes: {frame.text}")


def _shapes(shapes: Any) -> Iterator[Any]:
    """Yield the shapes of a slide, those of groups in their place."""
    stack = [iter(shapes)]
    while stack:
        shape = next(stack[-1], None)
        if shape is None:
            stack.pop()
        elif hasattr(shape, "shapes"):
            stack.append(iter(shape.shapes))
        else:
            yield shape


def _shape(
    shape: Any, number: int, builder: TextBuilder, figures: Figures, notes: list[Note]
) -> None:
    if shape.has_text_frame:
        paragraphs = [p for p in shape.text_frame.paragraphs if p.text.strip()]
        if len(paragraphs) > 1:
            builder.items(f"{'  ' * p.level}- {p.text.strip()}" for p in paragraphs)
        elif paragraphs:
            builder.paragraph(paragraphs[0].text)
    elif getattr(shape, "has_table", False):
        rows = [[cell.text for cell in row.cells] for row in shape.table.rows]
        builder.table(rows, header=bool(shape.table.first_row))
    elif getattr(shape, "has_chart", False):
        if not _chart(shape.chart, builder):
            notes.append(Note("skipped", "a chart's values could not be read", page=number))
    elif (image := _image(shape)) is not None:
        figures.add(image, page=number)
    else:
        # diagrams keep their words in a part of their own
        _diagram(shape, builder)


def _image(shape: Any) -> bytes | None:
    try:
        blob: bytes = shape.image.blob
    except (AttributeError, ValueError, KeyError):
        # a picture that is linked, or no picture
        return None
    return blob


def _chart(chart: Any, builder: TextBuilder) -> bool:
    """Add a chart's title and values; tell whether the values could be read."""
    if chart.has_title and chart.chart_title.has_text_frame:
        builder.paragraph(chart.chart_title.text_frame.text, "caption")
    try:
        plot = chart.plots[0]
        names = [str(category) for category in plot.categories]
        series = [(str(s.name), list(s.values)) for s in plot.series]
    # the last two are python-pptx's words for a kind of plot that it does not know
    except (IndexError, ValueError, AttributeError, TypeError, NotImplementedError):
        return False
    rows = [["", *(name for name, _ in series)]]
    for i, name in enumerate(names):
        values = [v[i] if i < len(v) and v[i] is not None else "" for _, v in series]
        rows.append([name, *(str(value) for value in values)])
    builder.table(rows, header=True)
    return True


def _diagram(shape: Any, builder: TextBuilder) -> None:
    from lxml import etree

    for node in shape.element.iter():
        identity = next((v for k, v in node.attrib.items() if k.endswith("}dm")), None)
        part = shape.part.related_part(identity) if identity in shape.part.rels else None
        if part is not None:
            parser = etree.XMLParser(resolve_entities=False, no_network=True)
            root = etree.fromstring(part.blob, parser)
            paragraphs = ("".join(p.itertext(f"{_A}t")) for p in root.iter(f"{_A}p"))
            builder.items(f"- {text.strip()}" for text in paragraphs if text.strip())
