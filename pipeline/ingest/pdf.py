"""Read PDFs: the text layer in reading order, scanned pages by OCR, forms, figures, metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import LoadError, MissingExtra, ModelError
from foveate.pipeline.ingest import ocr
from foveate.pipeline.ingest.captions import find_caption
from foveate.pipeline.ingest.compose import Composer
from foveate.pipeline.ingest.forms import read_fields
from foveate.pipeline.ingest.glyphs import Frame, PageText, read_words, turn_back
from foveate.pipeline.ingest.info import read_info
from foveate.pipeline.ingest.layout import Piece, Word, arrange
from foveate.pipeline.ingest.render import (
    PDFIUM,
    Region,
    crop_region,
    find_regions,
    open_page,
    open_pdf,
    rasterize,
    render_page,
)
from foveate.pipeline.ingest.streams import check_streams
from foveate.pipeline.types import Box, Document, Note, NoteKind, Picture

if TYPE_CHECKING:
    from PIL.Image import Image

    from foveate.pipeline.ingest.options import IngestOptions, OpenedFile

__all__ = ["load", "render_page"]

PAGE_SIDE_PX = 768
MAX_TITLE_CHARS = 200
FOUND_NONE = "OCR found no text"
LEARN_PAGES = 24
# a page with fewer characters over a picture of at least this share of it is a stamped scan
STAMP_CHARS = 48
SCAN_SHARE = 0.5
BAD_SHARE = 0.3


def load(file: OpenedFile, options: IngestOptions) -> Iterator[Document]:
    """Yield the one document of a PDF.

    Its pages are parted by form feeds. A page without a usable text layer is rendered and read by
    OCR as `options.ocr` says, and is also a picture of modality 'page'.

    Raises:
        LoadError: if it is empty, encrypted, damaged beyond recovery, or no PDF.
    """
    check_streams(file.data, options)
    with PDFIUM:
        document = open_pdf(file.data, options.pdf_passwords)
    try:
        yield _Reader(document, file, options).read()
    finally:
        with PDFIUM:
            document.close()


@dataclass(slots=True)
class _Page:
    """What was taken out of one page.

    figures: each with the piece that is its caption. scan: the page's render, when its text layer
    is of no use.
    """

    number: int
    frame: Frame
    pieces: list[Piece]
    fields: list[Piece] = field(default_factory=list)
    figures: list[tuple[Picture, Piece | None]] = field(default_factory=list)
    scan: Image | None = None


class _Reader:
    """Reads one open document, page by page."""

    def __init__(self, document: Any, file: OpenedFile, options: IngestOptions) -> None:
        self.document = document
        self.file = file
        self.options = options
        self.composer = Composer(options.max_text_chars)
        self.notes: list[Note] = []
        self.pictures: list[Picture] = []
        self.seen: set[bytes] = set()
        self.n_left_out = 0
        # page numbers by what happened to them
        self.read_by_ocr: list[int] = []
        self.unread: dict[str, list[int]] = {}
        self.n_ocr = 0

    def read(self) -> Document:
        import pypdfium2.raw as pdfium

        with PDFIUM:
            self.document.init_forms()
            n_pages = len(self.document)
            is_whole = bool(pdfium.FPDF_DocumentHasValidCrossReferenceTable(self.document))
            metadata, title = read_info(self.document)
        if not is_whole:
            self._note("guessed", "the cross-reference table was damaged and has been rebuilt")
        n_read = min(n_pages, self.options.max_pages)
        if n_read < n_pages:
            self._note(
                "truncated",
                f"read {n_read} of {n_pages} pages: ingest.max_pages = {self.options.max_pages}",
            )
        self._pages(n_read)
        self._close_notes(n_read)
        text = self.composer.text()
        if not text.strip():
            text = ""
        return Document(
            digest=self.file.digest,
            media_type=self.file.media_type,
            type=self.file.type,
            size=self.file.size,
            text=text,
            title=title or self._first_heading(text),
            metadata={**metadata, "n_pages": n_pages},
            page_starts=tuple(self.composer.page_starts) if text else (),
            blocks=tuple(self.composer.blocks) if text else (),
            words=self.composer.words() if text else None,
            pictures=tuple(self.pictures),
            notes=tuple(self.notes),
        )

    def _note(self, kind: NoteKind, message: str, page: int | None = None) -> None:
        self.notes.append(Note(kind, message, page))

    def _pages(self, n_read: int) -> None:
        """Read pages and write them; the first ones teach what the body's letters look like."""
        waiting: list[_Page] = []
        for number in range(1, n_read + 1):
            waiting.append(self._page(number))
            if number in (LEARN_PAGES, n_read):
                self.composer.learn([page.pieces for page in waiting])
            if number >= LEARN_PAGES or number == n_read:
                for page in waiting:
                    self._write(page)
                waiting = []
            if self.composer.full:
                number = len(self.composer.page_starts)
                limit = self.options.max_text_chars
                self._note("truncated", f"text cut: ingest.max_text_chars = {limit}", number)
                break

    def _write(self, page: _Page) -> None:
        self.composer.start_page(page.number, page.frame.width, page.frame.height)
        spans = self.composer.add([*page.pieces, *page.fields])
        if page.scan is not None:
            span = (spans[0][0], spans[-1][1]) if spans else None
            self._picture(Picture(page.scan, "page", page=page.number, span=span))
        places = {id(piece): span for piece, span in zip(page.pieces, spans, strict=False)}
        for figure, caption in page.figures:
            self._picture(replace(figure, span=places.get(id(caption))))

    def _picture(self, picture: Picture) -> None:
        if len(self.pictures) < self.options.max_pictures:
            self.pictures.append(picture)
        else:
            self.n_left_out += 1

    def _page(self, number: int) -> _Page:
        """Read one page; a page that cannot be read is empty and has a note."""
        try:
            with PDFIUM, open_page(self.document, number - 1) as page:
                result, text, image = self._open_page(page, number)
        except LoadError as error:
            self._note("failed", str(error), number)
            return _Page(number, Frame(1, 0, 0, 1, 0, 0, 1.0, 1.0), [])
        if image is not None:
            # other threads may use pdfium meanwhile
            self._scan(image, result, text)
        return result

    def _open_page(self, page: Any, number: int) -> tuple[_Page, PageText, Image | None]:
        """Take what pdfium finds on a page, and its render if it is to be read by OCR."""
        frame = Frame.of(page)
        textpage = page.get_textpage()
        try:
            text = read_words(page, textpage, frame)
        finally:
            textpage.close()
        fields = read_fields(self.document, page, frame)
        regions = find_regions(page, frame, self.options.min_picture_px)
        pieces = _arrange(text, frame)
        result = _Page(number, frame, pieces, fields)
        image = None
        wants = self._wants_ocr(page, text, regions)
        if wants:
            dots = max(frame.width, frame.height) / 72 * self.options.ocr_dpi
            image = rasterize(page, max(int(min(dots, ocr.MAX_SIDE_PX)), PAGE_SIDE_PX))
        elif self.options.render_pages == "always":
            result.scan = rasterize(page, PAGE_SIDE_PX)
        n_words = sum(map(len, text.words.values()))
        is_scan = wants or text.n_hidden > 0.5 * n_words
        self._figures(page, result, regions, is_scan=is_scan)
        return result, text, image

    def _wants_ocr(self, page: Any, text: PageText, regions: Sequence[Region]) -> bool:
        """Tell whether a page's text layer is of no use and there is something to see on it."""
        import pypdfium2.raw as pdfium

        if self.options.ocr == "always":
            return True
        n_good = text.n_chars - text.n_bad
        if text.n_chars and text.n_bad > BAD_SHARE * text.n_chars:
            return True
        if n_good == 0:
            return bool(pdfium.FPDFPage_CountObjects(page) > 0)
        area = page.get_width() * page.get_height()
        covered = max(((r.box[2] - r.box[0]) * (r.box[3] - r.box[1]) for r in regions), default=0.0)
        return n_good < STAMP_CHARS and covered >= SCAN_SHARE * area

    def _scan(self, image: Image, result: _Page, text: PageText) -> None:
        """Read a page's render by OCR, if there is ink on it and OCR is to be had."""
        frame = result.frame
        if is_blank(image):
            return
        reason = self._no_ocr()
        words: list[Word] = []
        if reason is None:
            try:
                if self.options.ocr == "always" or ocr.looks_textual(image):
                    self.n_ocr += 1
                    words = ocr.read_words(image)
            except (MissingExtra, ModelError) as error:
                reason = str(error)
        n_layer = text.n_chars - text.n_bad
        if sum(len(word.text) for word in words) > (0 if text.n_bad else n_layer):
            scale = frame.width / image.width
            result.pieces = arrange([_scaled(word, scale) for word in ocr.even_sizes(words)])
            self.read_by_ocr.append(result.number)
        elif not n_layer or text.n_bad:
            self.unread.setdefault(reason or FOUND_NONE, []).append(result.number)
        if self.options.render_pages != "never":
            image.thumbnail((PAGE_SIDE_PX, PAGE_SIDE_PX))
            result.scan = image

    def _no_ocr(self) -> str | None:
        """Say why a page is not read by OCR, or None."""
        if self.options.ocr == "never":
            return "OCR is off: ingest.ocr = 'never'"
        if self.n_ocr >= self.options.max_ocr_pages:
            return f"over the limit ingest.max_ocr_pages = {self.options.max_ocr_pages}"
        return ocr.available()

    def _figures(
        self, page: Any, result: _Page, regions: Sequence[Region], *, is_scan: bool
    ) -> None:
        """Cut the pictures out of a page that are not the page's own scan nor seen before."""
        width, height = result.frame.width, result.frame.height
        for region in regions:
            x0, y0, x1, y1 = region.box
            share = (x1 - x0) * (y1 - y0) / (width * height)
            if region.digest in self.seen or (is_scan and share > SCAN_SHARE):
                continue
            self.seen.add(region.digest)
            if len(self.pictures) + len(result.figures) >= self.options.max_pictures:
                self.n_left_out += 1
                continue
            image = crop_region(page, result.frame, region)
            if is_blank(image):
                continue
            caption = find_caption(region.box, result.pieces)
            if caption is not None:
                caption.kind = "caption"
            box = Box(x0 / width, y0 / height, x1 / width, y1 / height)
            figure = Picture(image, "image", page=result.number, box=box)
            result.figures.append((figure, caption))

    def _close_notes(self, n_read: int) -> None:
        """Say what became of pages without a text layer, and of what was left out."""
        if self.read_by_ocr:
            pages = ranges(self.read_by_ocr)
            self._note("ocr", f"no usable text layer, read by OCR: {pages}", self.read_by_ocr[0])
        for reason, numbers in self.unread.items():
            # a page that OCR looked at is no loss; one that it did not is
            kind: NoteKind = "ocr" if reason == FOUND_NONE else "skipped"
            self._note(kind, f"no text on {ranges(numbers)}: {reason}", numbers[0])
        if self.n_left_out:
            self._note(
                "truncated",
                f"pictures left out: {self.n_left_out}; ingest.max_pictures = "
                f"{self.options.max_pictures}",
            )
        if not self.composer.text().strip():
            self._note("empty", f"no text found on any page, {n_read} read")

    def _first_heading(self, text: str) -> str | None:
        """Return the topmost heading of the first page as a title."""
        starts = self.composer.page_starts
        end = starts[1] if len(starts) > 1 else len(text)
        headings = [b for b in self.composer.blocks if b.kind == "heading" and b.end <= end]
        if not headings:
            return None
        best = min(headings, key=lambda block: (block.level, block.start))
        return " ".join(text[best.start : best.end].split())[:MAX_TITLE_CHARS]


def _arrange(text: PageText, frame: Frame) -> list[Piece]:
    """Arrange the words of each direction; the direction of the most words comes first."""
    pieces = []
    for direction, words in sorted(text.words.items(), key=lambda item: -len(item[1])):
        arranged = arrange(words)
        for word in words:
            turn_back(word, direction, frame)
        pieces.extend(arranged)
    return pieces


def _scaled(word: Word, scale: float) -> Word:
    word.x0, word.x1 = word.x0 * scale, word.x1 * scale
    word.y0, word.y1 = word.y0 * scale, word.y1 * scale
    word.baseline, word.size = word.baseline * scale, word.size * scale
    word.glyphs = tuple((c, x0 * scale, x1 * scale) for c, x0, x1 in word.glyphs)
    return word


def is_blank(image: Image) -> bool:
    """Tell whether a picture is of one colour, give or take noise."""
    low, high = image.convert("L").getextrema()
    return float(high) - float(low) < 8  # type: ignore[arg-type]


def ranges(numbers: Sequence[int]) -> str:
    """Write page numbers briefly: 'page 3', 'pages 1-4, 7'."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"{'page' if len(numbers) == 1 else 'pages'} {text}"
