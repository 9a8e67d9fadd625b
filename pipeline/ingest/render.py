"""Open PDFs with pdfium, render their pages and take out their figures."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest.glyphs import Frame
from foveate.pipeline.ingest.options import IngestOptions, open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

    from foveate.pipeline.types import Passage

# pdfium keeps global state: one thread at a time in the whole process
PDFIUM = threading.RLock()
MAX_RENDER_PX = 40_000_000
FIGURE_SIDE_PX = 768
MAX_OBJECTS = 5_000


@dataclass(frozen=True, slots=True)
class Region:
    """An embedded picture on a page. box: x0, y0, x1, y1 in points of the upright page.

    width_px, height_px: of its own pixels. digest: of its bytes, to meet it again.
    """

    box: tuple[float, float, float, float]
    width_px: int
    height_px: int
    digest: bytes


def open_pdf(data: bytes, passwords: Sequence[str] = ()) -> Any:
    """Open a PDF; the caller holds `PDFIUM` and closes what it gets.

    Raises:
        LoadError: if it is empty, encrypted with another password, or no PDF that can be read.
    """
    import pypdfium2 as pypdfium
    import pypdfium2.raw as pdfium

    if not data:
        raise LoadError("the file is empty: 0 bytes")
    if not data.strip(b"\x00 \t\r\n"):
        raise LoadError("the file holds only blanks or NUL bytes, no PDF")
    tried = (None, *passwords)
    for password in tried:
        try:
            return pypdfium.PdfDocument(data, password=password)
        except pypdfium.PdfiumError as error:
            code = error.err_code
            if code != pdfium.FPDF_ERR_PASSWORD:
                raise LoadError(_reason(data, code)) from error
    n_given = len(passwords)
    wrong = f" (none that was given opens it: {n_given} tried)" if n_given else ""
    raise LoadError(f"the PDF is encrypted: give --password{wrong}")


def _reason(data: bytes, code: int | None) -> str:
    """Say what is wrong with a PDF that pdfium refuses."""
    import pypdfium2.raw as pdfium

    if code == pdfium.FPDF_ERR_SECURITY:
        return "the PDF is encrypted by a scheme that is not supported"
    if b"%PDF-" not in data[:1024]:
        return "not a PDF: the header %PDF- is missing"
    if b"%%EOF" not in data[-2048:]:
        return "the PDF is truncated: its end is missing, and its pages could not be recovered"
    if code == pdfium.FPDF_ERR_SUCCESS:
        return "the PDF has no pages"
    return "the PDF is damaged: its page tree or cross-reference table cannot be read"


def rasterize(page: Any, long_side_px: int) -> Image:
    """Render a page, upright, as RGB; the caller holds `PDFIUM`."""
    width, height = (max(float(side), 0.01) for side in page.get_size())
    scale = long_side_px / max(width, height)
    scale = min(scale, math.sqrt(MAX_RENDER_PX / (width * height)))
    return _bitmap(page, scale, (0.0, 0.0, 0.0, 0.0))


def render(path: str, passage: Passage, *, passwords: Sequence[str] = ()) -> Image:
    """Return what a passage shows: its picture, or the page it stands on, upright and RGB.

    path: one of the files that hold the passage's source.

    Raises:
        LoadError: if the file cannot be read, or the passage has neither page nor picture.
    """
    from foveate.pipeline.ingest.image import open_picture

    source, locator = passage.source, passage.locator
    if source.type == "pdf":
        image = render_page(path, locator.page or 1, passwords=passwords)
        if passage.modality != "image" or not locator.boxes:
            return image
        box = locator.boxes[0]
        size = image.size * 2
        sides = (box.x0, box.y0, box.x1, box.y1)
        return image.crop(tuple(round(a * b) for a, b in zip(sides, size, strict=True)))  # type: ignore[arg-type]
    if source.media_type.startswith("image/") and source.type != "svg":
        return open_picture(path, page=locator.page or 1)
    if passage.modality in {"image", "page"}:
        from foveate.pipeline.ingest.read import read

        # a figure inside another kind of file: read it again and take the one at this place
        for document in read(path, IngestOptions(ocr="never")):
            for picture in document.pictures:
                boxes = (picture.box,) if picture.box else ()
                if (picture.page, picture.span, boxes) == (
                    locator.page,
                    locator.span,
                    locator.boxes,
                ):
                    return picture.image
    raise LoadError(f"{passage.label} is {passage.modality} of a {source.type} without pages")


def render_page(
    data_or_path: bytes | str,
    page: int,
    long_side_px: int = 1600,
    *,
    passwords: Sequence[str] = (),
) -> Image:
    """Return a page (1-based) of a PDF as an upright RGB picture.

    Raises:
        LoadError: if the PDF cannot be read or has no such page.
    """
    if isinstance(data_or_path, bytes):
        data = data_or_path
    else:
        with open_regular(data_or_path) as handle:
            data = handle.read()
    with PDFIUM, contextlib.closing(open_pdf(data, passwords)) as document:
        if not 1 <= page <= len(document):
            raise LoadError(f"the PDF has no page {page}: its last is {len(document)}")
        with open_page(document, page - 1) as opened:
            return rasterize(opened, long_side_px)


@contextlib.contextmanager
def open_page(document: Any, index: int) -> Iterator[Any]:
    """Open a page (0-based) and close it; the caller holds `PDFIUM`.

    Raises:
        LoadError: if the page cannot be read.
    """
    import pypdfium2 as pypdfium

    try:
        page = document[index]
    except pypdfium.PdfiumError as error:
        raise LoadError(f"page {index + 1} cannot be read: {error}") from error
    try:
        yield page
    finally:
        page.close()


def _bitmap(page: Any, scale: float, crop: tuple[float, float, float, float]) -> Image:
    bitmap = page.render(
        scale=scale, crop=crop, rev_byteorder=True, limit_image_cache=True, draw_annots=True
    )
    try:
        image: Image = bitmap.to_pil().convert("RGB")
        # the picture must outlive pdfium's buffer
        return image.copy()
    finally:
        bitmap.close()


def find_regions(page: Any, frame: Frame, min_px: int) -> list[Region]:
    """Return the embedded pictures of a page of at least min_px both ways.

    The caller holds `PDFIUM`. Pictures inside form objects count; at most the first `MAX_OBJECTS`
    objects are looked at.
    """
    import pypdfium2 as pypdfium
    import pypdfium2.raw as pdfium

    regions = []
    objects = page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=4)
    for _ in range(MAX_OBJECTS):
        try:
            found = next(objects, None)
            if found is None:
                break
            width, height = found.get_px_size()
            if min(width, height) < min_px:
                continue
            x0, y0, x1, y1 = frame.box(*found.get_bounds())
            if found.container is not None:
                placed = _placed(found, frame)
                x0, y0, x1, y1 = placed or (x0, y0, x1, y1)
            x0, y0 = max(x0, 0.0), max(y0, 0.0)
            x1, y1 = min(x1, frame.width), min(y1, frame.height)
            if x1 - x0 < 8 or y1 - y0 < 8:
                continue
            digest = hashlib.sha256(memoryview(found.get_data()).cast("B")).digest()
        except pypdfium.PdfiumError:
            # a broken object hides no other
            continue
        regions.append(Region((x0, y0, x1, y1), width, height, digest))
    return regions


def _placed(found: Any, frame: Frame) -> tuple[float, float, float, float] | None:
    """Return the box of an object inside form objects: their matrices place it on the page."""
    corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    holder = found
    while holder is not None:
        matrix = holder.get_matrix()
        corners = [matrix.on_point(x, y) for x, y in corners]
        holder = holder.container
    points = [frame.point(x, y) for x, y in corners]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)


def crop_region(page: Any, frame: Frame, region: Region) -> Image:
    """Render the part of the page where a picture stands, as it is seen; holds `PDFIUM`."""
    x0, y0, x1, y1 = region.box
    width, height = x1 - x0, y1 - y0
    native = max(region.width_px / width, region.height_px / height)
    scale = min(native, FIGURE_SIDE_PX / max(width, height))
    scale = max(scale, 0.25)
    # left, bottom, right, top are cut off
    crop = (x0, frame.height - y1, frame.width - x1, y0)
    return _bitmap(page, scale, tuple(max(side - 0.5 / scale, 0.0) for side in crop))  # type: ignore[arg-type]
