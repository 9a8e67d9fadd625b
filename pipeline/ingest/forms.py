"""Read what people wrote into a PDF: form fields and notes, which no text layer holds."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.layout import Line, Piece, Word

if TYPE_CHECKING:
    from foveate.pipeline.ingest.glyphs import Frame

MAX_ANNOTATIONS = 5_000
PASSWORD_FLAG = 1 << 13


def read_fields(document: Any, page: Any, frame: Frame) -> list[Piece]:
    """Return a page's filled fields, each as a line `name: value`, and its notes.

    The caller holds the lock of pdfium and has called `document.init_forms()`.
    """
    import pypdfium2.raw as pdfium

    fields: list[Line] = []
    notes: list[Piece] = []
    skipped = {pdfium.FPDF_ANNOT_LINK, pdfium.FPDF_ANNOT_POPUP}
    for index in range(min(pdfium.FPDFPage_GetAnnotCount(page), MAX_ANNOTATIONS)):
        annotation = pdfium.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            kind = pdfium.FPDFAnnot_GetSubtype(annotation)
            if kind in skipped:
                continue
            if kind == pdfium.FPDF_ANNOT_WIDGET:
                text = _field(document, annotation)
            else:
                text = _string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents\0")
            rectangle = pdfium.FS_RECTF()
            if not text or not pdfium.FPDFAnnot_GetRect(annotation, rectangle):
                continue
            sides = (rectangle.left, rectangle.bottom, rectangle.right, rectangle.top)
            line = _line(text, frame.box(*sides))
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)
        if kind == pdfium.FPDF_ANNOT_WIDGET:
            fields.append(line)
        else:
            notes.append(Piece("paragraph", [line]))
    fields.sort(key=lambda line: (round(line.baseline / 4), line.x0))
    return ([Piece("paragraph", fields)] if fields else []) + notes


def _field(document: Any, annotation: Any) -> str:
    """Return `name: value` of a filled field, else an empty text."""
    import pypdfium2.raw as pdfium

    form = document.formenv
    if not form:
        return _loose_field(annotation)
    kind = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in {pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON}:
        if not pdfium.FPDFAnnot_IsChecked(form, annotation):
            return ""
        value = _string(pdfium.FPDFAnnot_GetFormFieldExportValue, form, annotation)
        value = "yes" if value in {"", "On", "Yes", "1"} else value
    elif kind in {
        pdfium.FPDF_FORMFIELD_TEXTFIELD,
        pdfium.FPDF_FORMFIELD_COMBOBOX,
        pdfium.FPDF_FORMFIELD_LISTBOX,
    }:
        if pdfium.FPDFAnnot_GetFormFieldFlags(form, annotation) & PASSWORD_FLAG:
            return ""
        value = _string(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation)
    else:
        return ""
    if not value:
        return ""
    name = _string(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
    name = name or _string(pdfium.FPDFAnnot_GetFormFieldName, form, annotation).split(".")[-1]
    return f"{name.rstrip(':')}: {value}" if name else value


def _loose_field(annotation: Any) -> str:
    """Return `name: value` of a field in a page that was taken out of its form."""
    import pypdfium2.raw as pdfium

    def entry(key: bytes) -> str:
        return _string(pdfium.FPDFAnnot_GetStringValue, annotation, key + b"\0")

    value = entry(b"V")
    flags = ctypes.c_float()
    pdfium.FPDFAnnot_GetNumberValue(annotation, b"Ff\0", flags)
    if int(flags.value) & PASSWORD_FLAG:
        return ""
    if entry(b"FT") == "Btn":
        value = "yes" if entry(b"AS") not in {"", "Off"} else ""
    name = entry(b"TU") or entry(b"T").split(".")[-1]
    if not value:
        return ""
    return f"{name.rstrip(':')}: {value}" if name else value


def _string(function: Any, *arguments: Any) -> str:
    """Call one of pdfium's functions that fill a buffer with UTF-16."""
    import pypdfium2.raw as pdfium

    n_bytes = function(*arguments, None, 0)
    if n_bytes <= 2:
        return ""
    buffer = ctypes.create_string_buffer(n_bytes)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), n_bytes)
    text = buffer.raw[: n_bytes - 2].decode("utf-16-le", "replace")
    return " ".join(clean(text)[0].split())


def _line(text: str, box: tuple[float, ...]) -> Line:
    """Share a field's rectangle out among the words written into it."""
    x0, y0, x1, y1 = box
    words = []
    place = 0
    for word in text.split():
        start = text.index(word, place)
        place = start + len(word)
        share = (x1 - x0) / len(text)
        words.append(Word(word, x0 + start * share, y0, x0 + place * share, y1, y1, y1 - y0))
    # its rectangle's height is no letter size
    return Line(words, 0.0, x0, x1, y1)
