"""PDFs made by hand, so that what stands where is known: order, boxes, scans, damage, limits."""

import hashlib
import io
import json
import os
import struct
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest import ocr
from foveate.pipeline.ingest.clean import clean
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile
from foveate.pipeline.ingest.pdf import load, render_page
from foveate.pipeline.ingest.render import render
from foveate.pipeline.types import Box, Locator, Passage, Source

NEVER = IngestOptions(ocr="never")


def write_pdf(pages, *, objects=(), info=b"", catalog=b"", to_unicode=b"", key=None, trailer=b""):
    """Return a PDF. pages: (content, page entries) or content; objects: numbered from 10 on.

    key(number) -> a function that encrypts the strings and streams of an object.
    """
    cipher = key or (lambda number: lambda data: data)
    found = {}
    pages = [page if isinstance(page, tuple) else (page, b"") for page in pages]
    first = 10 + len(objects)
    kids = b" ".join(b"%d 0 R" % (first + 2 * i) for i in range(len(pages)))
    found[1] = b"<</Type/Catalog/Pages 2 0 R %s>>" % catalog
    found[2] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(pages), kids)
    mapped = b"/ToUnicode 4 0 R" if to_unicode else b""
    found[3] = (
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding%s>>" % mapped
    )
    found[4] = b"<</Length %d>>stream\n%s\nendstream" % (len(to_unicode), to_unicode)
    found[5] = b"<<%s>>" % info
    for number, data in enumerate(objects, 10):
        found[number] = data
    for i, (content, entries) in enumerate(pages):
        content = content.encode("latin-1") if isinstance(content, str) else content
        number = first + 2 * i
        box = b"" if b"/MediaBox" in entries else b"/MediaBox[0 0 612 792]"
        resources = b"" if b"/Resources" in entries else b"/Resources<</Font<</F1 3 0 R>>>>"
        found[number] = b"<</Type/Page/Parent 2 0 R/Contents %d 0 R%s%s%s>>" % (
            number + 1,
            box,
            resources,
            entries,
        )
        content = cipher(number + 1)(content)
        found[number + 1] = b"<</Length %d>>stream\n%s\nendstream" % (len(content), content)
    out = io.BytesIO()
    out.write(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    offsets = {}
    for number, data in sorted(found.items()):
        offsets[number] = out.tell()
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, data))
    start = out.tell()
    size = max(found) + 1
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
    for number in range(1, size):
        free = b"0000000000 65535 f \n"
        out.write(b"%010d 00000 n \n" % offsets[number] if number in offsets else free)
    out.write(b"trailer\n<</Size %d/Root 1 0 R/Info 5 0 R%s>>\n" % (size, trailer))
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def text_at(x, y, text, size=11, matrix="1 0 0 1"):
    text = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"BT /F1 {size} Tf {matrix} {x} {y} Tm ({text}) Tj ET\n"


def read(data, options=NEVER):
    file = OpenedFile("/x.pdf", media_type="application/pdf", type="pdf", data=data)
    (document,) = load(file, options)
    check(document)
    return document


def try_read(data):
    """Return the document, or None when it is refused; any other error is a failure."""
    try:
        return read(data)
    except LoadError:
        return None


def check(document):
    """What holds of every document: clean text, words that slice out of it, page by page."""
    text = document.text
    assert clean(text)[0] == text
    starts = document.page_starts
    assert list(starts) == sorted(starts)
    assert all(text[start - 1] == "\f" for start in starts[1:])
    assert text.count("\f") == max(len(starts) - 1, 0)
    for block in document.blocks:
        assert 0 <= block.start < block.end <= len(text)
        assert block.header is None or block.start <= block.header[0] < block.header[1] < block.end
    if document.words is None:
        return
    words = document.words
    assert (words.boxes >= 0).all()
    assert (words.boxes <= 1).all()
    assert (words.boxes[:, :2] < words.boxes[:, 2:]).all()
    assert (np.diff(words.spans.ravel()) >= 0).all()
    covered = np.zeros(len(text), bool)
    for (start, end), page in zip(words.spans, words.pages, strict=True):
        covered[start:end] = True
        assert not any(map(str.isspace, text[start:end]))
        assert starts[page - 1] <= start
        assert page == len(starts) or end < starts[page]
    assert all(c.isspace() or inside for c, inside in zip(text, covered, strict=True))


def kinds(document):
    return {note.kind for note in document.notes}


def draw_text(lines, size=(1200, 900), scale=34):
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        pen.text((80, 80 + number * 2 * scale), line, fill="black", font=load_font(scale))
    return image


def load_font(size):
    return ImageFont.load_default(size)


# reading order


def columns(n, n_lines=14):
    """Return a page of n columns whose words tell their place, written line by line across."""
    width = 540 / n
    words = ["alpha", "bravo", "delta", "gamma", "omega", "sigma"]
    lines = []
    for line in range(n_lines):
        for column in range(n):
            row = [f"c{column}l{line:02}"]
            while 5.2 * (len(" ".join(row)) + 7) < width - 14:
                row.append(words[(line + len(row)) % 6])
            lines.append(text_at(36 + column * width, 600 - 12 * line, " ".join(row), 10))
    return "".join(lines)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_columns_are_read_one_after_another(n):
    content = (
        text_at(150, 700, "A title over all columns", 20)
        + columns(n)
        + text_at(300, 30, "Page 7", 9)
    )
    text = read(write_pdf([content])).text
    places = [text.index(f"c{c}l{line:02}") for c in range(n) for line in range(14)]
    assert places == sorted(places)
    assert text.startswith("A title over all columns")
    assert text.endswith("Page 7")


def test_a_heading_across_columns_parts_them():
    above, below = columns(2, 8), columns(2, 8).replace("c0", "d0").replace("c1", "d1")
    shifted = f"q 1 0 0 1 0 -220 cm {below} Q\n"
    middle = text_at(36, 470, "A heading that runs over both of the columns of this page " * 2, 9)
    text = read(write_pdf([above + shifted + middle])).text
    order = ["c0l00", "c0l07", "c1l00", "c1l07", "A heading", "d0l00", "d0l07", "d1l00", "d1l07"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_table_rows_stay_lines_and_know_their_header():
    rows = [("Region", "2019", "Sales 2020", "Change"), ("North", "1,204", "1,310", "8.8%")]
    rows[0] = ("Region", "Units", "Sales", "Change")
    rows += [
        ("South", "988", "1,002", "1.4%"),
        ("East", "-", "77", "n/a"),
        ("West", "3", "4", "33%"),
    ]
    content = text_at(50, 740, "Figures of the year, in thousands, as they were reported to us.")
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            content += text_at(60 + 120 * j, 700 - 16 * i, cell)
    document = read(write_pdf([content]))
    (table,) = [block for block in document.blocks if block.kind == "table"]
    lines = document.text[table.start : table.end].split("\n")
    assert [line.split("\t") for line in lines] == [list(row) for row in rows]
    assert document.text[slice(*table.header)] == "\t".join(rows[0])


def test_headings_and_title():
    content = text_at(72, 700, "The grand result", 22) + text_at(72, 660, "Method", 15)
    content += "".join(
        text_at(72, 640 - 14 * i, f"Body line number {i} of text.") for i in range(9)
    )
    document = read(write_pdf([content]))
    found = [(b.level, document.text[b.start : b.end]) for b in document.blocks if b.level]
    assert found == [(1, "The grand result"), (2, "Method")]
    assert document.title == "The grand result"


def test_words_parted_at_line_ends():
    lines = [
        "A short exam-",
        "ple of a well-",
        "known and well-known thing, the Anglo-",
        "Saxon kind.",
    ]
    content = "".join(text_at(72, 700 - 13 * i, line) for i, line in enumerate(lines))
    document = read(write_pdf([content]))
    assert document.text.replace("\n", " ") == (
        "A short example of a well-known and well-known thing, the Anglo- Saxon kind."
    )
    spans = [tuple(span) for span in document.words.spans]
    start = document.text.index("example")
    assert {(start, start + 4), (start + 4, start + 7)} <= set(spans)


def test_glyphs_that_no_reader_should_meet():
    # A: fi ligature, B: a lone surrogate, C: NUL, D: private use, E: soft hyphen, F: ffl
    cmap = b"""/CIDInit /ProcSet findresource begin 12 dict begin begincmap
/CMapName /X def /CMapType 2 def 1 begincodespacerange <00> <FF> endcodespacerange
7 beginbfchar <41> <FB01> <42> <D800> <43> <0000> <44> <E123> <45> <00AD> <46> <FB04>
<47> <D83DDE00> endbfchar endcmap end end"""
    content = text_at(72, 700, "Ane oFice eEmail xDy zCw bBd Gnice") + text_at(
        72, 680, "plain text"
    )
    text = read(write_pdf([content], to_unicode=cmap)).text
    assert "fine" in text
    assert "officle" not in text
    assert "offlice" in text
    assert "email" in text
    assert "plain text" in text
    assert not any(0xD800 <= ord(c) < 0xE000 or 0xE000 <= ord(c) < 0xF900 for c in text)
    assert "\0" not in text


# boxes

MATRIX = {0: "1 0 0 1", 90: "0 1 -1 0", 180: "-1 0 0 -1", 270: "0 -1 1 0"}


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("box", [b"/MediaBox[0 0 612 792]", b"/MediaBox[-50 20 562 812]"])
@pytest.mark.parametrize("turned", [False, True])
def test_word_boxes_lie_on_the_ink(rotation, box, turned):
    matrix = MATRIX[rotation] if not turned else MATRIX[(rotation + 90) % 360]
    content = text_at(300, 400, "Quartz jumps", 30, matrix) + text_at(200, 300, "Vex", 18, matrix)
    page = (content, box + b"/Rotate %d" % rotation)
    data = write_pdf([page])
    document = read(data)
    assert set(document.text.split()) == {"Quartz", "jumps", "Vex"}
    image = np.asarray(render_page(data, 1, 1200).convert("L")) < 128
    height, width = image.shape
    assert (width > height) == (rotation in (90, 270))
    left = image.copy()
    for x0, y0, x1, y1 in document.words.boxes:
        rows = slice(max(int(y0 * height) - 2, 0), int(y1 * height) + 3)
        cells = slice(max(int(x0 * width) - 2, 0), int(x1 * width) + 3)
        ink = image[rows, cells]
        assert ink.any(axis=0).mean() > 0.6
        assert ink.any(axis=1).mean() > 0.6
        left[rows, cells] = False
    assert not left.any()


def test_cropped_page_has_boxes_of_what_is_seen():
    data = write_pdf([(text_at(300, 400, "Quartz", 30), b"/CropBox[250 350 550 500]")])
    document = read(data)
    image = np.asarray(render_page(data, 1, 900).convert("L")) < 128
    rows, cells = np.nonzero(image)
    seen = [cells.min() / 900, rows.min() / 450, cells.max() / 900, rows.max() / 450]
    assert document.words.boxes[0] == pytest.approx(seen, abs=0.01)


def test_right_to_left_and_chinese(tmp_path):
    path = find_data() / "messy_docs/files/multilang.pdf" if find_data() else tmp_path / "none"
    if not path.exists():
        pytest.skip("messy_docs is not here")
    text = read(path.read_bytes()).text
    for words in ("مرحبا بالعالم", "Привет, мир", "你好世界", "こんにちは世界", "Hello World"):
        assert words in text


# scans


def scan_pdf(lines=("Boiler inspection report", "Pressure valve replaced in March")):
    out = io.BytesIO()
    draw_text(lines).save(out, "PDF", resolution=110)
    return out.getvalue()


@pytest.mark.models
def test_scan_is_read_and_is_a_picture():
    document = read(scan_pdf(), IngestOptions())
    assert "Boiler inspection report" in document.text
    assert "Pressure valve replaced in March" in document.text
    assert [note.page for note in document.notes if note.kind == "ocr"] == [1]
    (picture,) = document.pictures
    assert (picture.modality, picture.page) == ("page", 1)
    assert max(picture.image.size) <= 768
    assert document.text[slice(*picture.span)] == document.text
    # the ink of the first line stands where its words' boxes say
    start = document.text.index("Boiler")
    index = [tuple(span) for span in document.words.spans].index((start, start + 6))
    x0, y0, x1, y1 = document.words.boxes[index]
    assert 0.05 < x0 < 0.09
    assert 0.12 < x1 < 0.22
    assert 0.07 < (y0 + y1) / 2 < 0.13


@pytest.mark.models
def test_stamped_scan_is_read():
    photo = draw_text(["Boiler inspection report"])
    resources = b"/Resources<</Font<</F1 3 0 R>>/XObject<</P 10 0 R>>>>"
    content = "q 612 0 0 459 0 200 cm /P Do Q\n" + text_at(5, 5, "Scanned by X", 12)
    data = write_pdf([(content, resources)], objects=[picture_object(photo)])
    document = read(data, IngestOptions())
    assert "Boiler inspection report" in document.text
    assert "Scanned by" in document.text
    assert [picture.modality for picture in document.pictures] == ["page"]


@pytest.mark.parametrize("reason", ["never", "missing"])
def test_scan_without_ocr_says_so(reason, monkeypatch):
    options = NEVER
    if reason == "missing":
        options = IngestOptions()
        monkeypatch.setattr(ocr, "available", lambda: "OCR needs rapidocr: pip install rapidocr")
    document = read(scan_pdf(), options)
    assert document.text == ""
    assert {"skipped", "empty"} <= kinds(document)
    assert any("page 1" in note.message for note in document.notes)
    assert [picture.modality for picture in document.pictures] == ["page"]


def test_limit_of_pages_read_by_ocr_is_told(monkeypatch):
    monkeypatch.setattr(ocr, "looks_textual", lambda image: True)
    monkeypatch.setattr(ocr, "read_words", lambda image: [])
    out = io.BytesIO()
    pages = [draw_text([f"page {i}"], (400, 300)) for i in range(4)]
    pages[0].save(out, "PDF", save_all=True, append_images=pages[1:])
    document = read(out.getvalue(), IngestOptions(max_ocr_pages=2))
    assert any("pages 3-4" in n.message and "max_ocr_pages" in n.message for n in document.notes)


def test_blank_pages_are_empty_and_no_picture():
    document = read(write_pdf(["", "1 1 1 rg 0 0 612 792 re f"]))
    assert (document.text, document.pictures) == ("", ())
    assert "empty" in kinds(document)


@pytest.mark.models
def test_unmapped_glyphs_are_read_by_ocr():
    pairs = b"".join(b"<%02x> <%04x>" % (code, 0xE000 + code) for code in range(33, 127))
    cmap = (
        b"""/CIDInit /ProcSet findresource begin 12 dict begin begincmap
/CMapName /X def /CMapType 2 def 1 begincodespacerange <00> <FF> endcodespacerange
94 beginbfchar %s endbfchar endcmap end end"""
        % pairs
    )
    content = text_at(72, 700, "Turbine maintenance schedule", 20)
    data = write_pdf([content], to_unicode=cmap)
    document = read(data, IngestOptions())
    assert "Turbine maintenance schedule" in document.text
    assert "ocr" in kinds(document)


# encryption, damage, limits


def rc4(key, data):
    box, j = list(range(256)), 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) & 255
        box[i], box[j] = box[j], box[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) & 255
        j = (j + box[i]) & 255
        box[i], box[j] = box[j], box[i]
        out.append(byte ^ box[(box[i] + box[j]) & 255])
    return bytes(out)


def encrypted_pdf(password):
    """Return a PDF encrypted by the standard handler, revision 2 (40-bit RC4)."""
    padding = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
    padded = (password.encode() + padding)[:32]
    owner = rc4(hashlib.md5(padded).digest()[:5], padded)
    key = hashlib.md5(padded + owner + struct.pack("<i", -4) + b"0123456789abcdef").digest()[:5]
    user = rc4(key, padding)

    def cipher(number):
        salted = key + struct.pack("<I", number)[:3] + b"\0\0"
        return lambda data: rc4(hashlib.md5(salted).digest()[:10], data)

    entry = b"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<%s>/U<%s>>>/ID[<%s><%s>]" % (
        owner.hex().encode(),
        user.hex().encode(),
        b"0123456789abcdef".hex().encode(),
        b"0123456789abcdef".hex().encode(),
    )
    return write_pdf([text_at(72, 700, "Hidden treasure")], key=cipher, trailer=entry)


def test_encrypted():
    assert read(encrypted_pdf("")).text == "Hidden treasure"
    data = encrypted_pdf("sesame")
    with pytest.raises(LoadError, match=r"is encrypted: give --password$"):
        read(data)
    with pytest.raises(
        LoadError, match=r"is encrypted: give --password \(none that was given opens it: 2 tried"
    ):
        read(data, IngestOptions(pdf_passwords=("a", "b")))
    assert read(data, IngestOptions(pdf_passwords=("a", "sesame"))).text == "Hidden treasure"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 500, "NUL"),
        (b"hello, I am no PDF" * 99, "header"),
        (b"%PDF-1.7\n", "truncated"),
        (b"%PDF-1.7\n1 0 obj\n<</Type/Catalog>>\nendobj\ntrailer<</Root 1 0 R>>\n%%EOF", "PDF"),
    ],
)
def test_what_is_no_pdf_is_refused_with_the_reason(data, reason):
    with pytest.raises(LoadError, match=reason):
        read(data)


def test_truncated_anywhere_is_recovered_or_refused():
    whole = write_pdf([text_at(72, 700, f"Page number {i}") for i in range(8)])
    n_read = 0
    for cut in range(0, len(whole), len(whole) // 60):
        document = try_read(whole[:cut])
        if document is None:
            continue
        n_read += 1
        assert document.text or "empty" in kinds(document)
        if cut < len(whole) - 700:
            assert kinds(document) & {"guessed", "empty", "failed"}
    assert n_read


def test_broken_xref_is_rebuilt_and_noted():
    data = write_pdf([text_at(72, 700, "Still here")])
    for broken in (
        data.replace(b"xref\n0", b"xref\n9"),
        data.replace(b"startxref\n", b"startxref\n9"),
    ):
        document = read(broken)
        assert document.text == "Still here"
        assert "guessed" in kinds(document)
    assert "guessed" not in kinds(read(data))


def test_random_damage_never_raises_anything_else():
    rng = np.random.default_rng(7)
    whole = np.frombuffer(scan_pdf() + b"", np.uint8)
    text = np.frombuffer(write_pdf([columns(2), text_at(50, 50, "x")]), np.uint8)
    for source in (whole, text):
        for _ in range(25):
            data = source.copy()
            places = rng.integers(0, len(data), 40)
            data[places] = rng.integers(0, 256, 40)
            try_read(data.tobytes())


def test_a_missing_page_is_told_and_the_others_are_read():
    data = write_pdf([text_at(72, 700, f"Sheet {i}") for i in range(3)])
    broken = data.replace(b"12 0 obj\n<</Type/Page", b"12 0 obj\n<</Tipe/Pagx", 1)
    document = read(broken)
    assert "Sheet 0" in document.text
    assert "Sheet 2" in document.text
    assert len(document.page_starts) == 3


def test_five_thousand_pages():
    begin = time.perf_counter()
    document = read(write_pdf([text_at(72, 700, f"Leaf {i} of the book") for i in range(5000)]))
    assert time.perf_counter() - begin < 60
    assert len(document.page_starts) == 5000
    assert document.metadata["n_pages"] == 5000
    assert document.text[document.page_starts[4321] :].startswith("Leaf 4321 of the book\f")


def test_limits_on_pages_and_text_are_told():
    data = write_pdf([text_at(72, 700, f"Leaf {i:04} of the book") for i in range(50)])
    document = read(data, IngestOptions(max_pages=10))
    assert len(document.page_starts) == 10
    assert any("10 of 50 pages" in n.message for n in document.notes if n.kind == "truncated")
    document = read(data, IngestOptions(max_text_chars=100))
    assert len(document.text) <= 100
    assert "truncated" in kinds(document)


# what else is on a page


def picture_object(image):
    data = zlib.compress(image.convert("RGB").tobytes())
    head = b"<</Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceRGB" % image.size
    tail = b"/BitsPerComponent 8/Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (
        len(data),
        data,
    )
    return head + tail


@pytest.mark.parametrize("rotation", [0, 90])
def test_figures_are_cut_out_once_upright_and_in_their_colours(rotation):
    photo = Image.new("RGB", (200, 120), "red")
    photo.paste("blue", (100, 0, 200, 120))
    icon = Image.new("RGB", (20, 20), "green")
    resources = b"/Resources<</Font<</F1 3 0 R>>/XObject<</P 10 0 R/I 11 0 R>>>>"
    body = "".join(text_at(50, 300 - 14 * i, f"Line {i} of the body text here") for i in range(9))
    content = f"q 200 0 0 120 100 500 cm /P Do Q q 20 0 0 20 50 700 cm /I Do Q {body}"
    pages = [(content, resources + b"/Rotate %d" % rotation)] * 2
    document = read(write_pdf(pages, objects=[picture_object(photo), picture_object(icon)]))
    (figure,) = document.pictures
    assert (figure.modality, figure.page) == ("image", 1)
    box = (figure.box.x0, figure.box.y0, figure.box.x1, figure.box.y1)
    upright = (100 / 612, 172 / 792, 300 / 612, 292 / 792)
    turned = (500 / 792, 100 / 612, 620 / 792, 300 / 612)
    assert box == pytest.approx(turned if rotation else upright, abs=0.002)
    width, height = figure.image.size
    assert (width > height) == (rotation == 0)
    one, two = (
        figure.image.getpixel((width // 5, height // 5)),
        figure.image.getpixel((width * 4 // 5, height * 4 // 5)),
    )
    assert one == (255, 0, 0)
    assert two == (0, 0, 255)


@pytest.mark.parametrize("modality", ["image", "page", "text"])
def test_picture_behind_a_passage(modality, tmp_path):
    resources = b"/Resources<</XObject<</P 10 0 R>>>>"
    content = "q 204 0 0 198 102 396 cm /P Do Q\n"
    photo = Image.new("RGB", (100, 100), "red")
    path = tmp_path / "x.pdf"
    path.write_bytes(write_pdf(["", (content, resources)], objects=[picture_object(photo)]))
    source = Source("0" * 32, (str(path),), "application/pdf", "pdf", 1, 0.0)
    box = Box(102 / 612, 198 / 792, 306 / 612, 396 / 792)
    locator = Locator(page=2, boxes=(box,))
    image = render(str(path), Passage(1, 0, source, modality, "", locator))
    if modality == "image":
        assert image.getextrema() == ((255, 255), (0, 0), (0, 0))
    else:
        assert max(image.size) == 1600


def test_caption_of_a_figure():
    resources = b"/Resources<</Font<</F1 3 0 R>>/XObject<</P 10 0 R>>>>"
    body = "".join(text_at(50, 300 - 14 * i, f"Line {i} of the body text here") for i in range(9))
    content = "q 200 0 0 120 100 500 cm /P Do Q\n" + text_at(110, 484, "Figure 2: a noisy field")
    noise = Image.effect_noise((200, 120), 40)
    document = read(write_pdf([(content + body, resources)], objects=[picture_object(noise)]))
    (figure,) = document.pictures
    assert document.text[slice(*figure.span)] == "Figure 2: a noisy field"
    assert "caption" in {block.kind for block in document.blocks}


def test_scan_under_a_hidden_text_layer_is_no_figure():
    resources = b"/Resources<</Font<</F1 3 0 R>>/XObject<</P 10 0 R>>>>"
    content = "q 612 0 0 792 0 0 cm /P Do Q 3 Tr\n"
    content += "".join(
        text_at(50, 700 - 14 * i, f"Line {i} of the page as it was read") for i in range(9)
    )
    data = write_pdf([(content, resources)], objects=[picture_object(draw_text(["x"], (300, 400)))])
    document = read(data)
    assert "Line 3 of the page" in document.text
    assert document.pictures == ()


def test_number_of_figures_is_limited():
    images = [Image.effect_noise((100, 100), 10 + i).convert("RGB") for i in range(6)]
    names = b"".join(b"/P%d %d 0 R" % (i, 10 + i) for i in range(6))
    resources = b"/Resources<</Font<</F1 3 0 R>>/XObject<<%s>>>>" % names
    content = text_at(50, 740, "Six pictures on a page, all of them noise, none like the others")
    content += "".join(f"q 100 0 0 100 {50 + 80 * i} 300 cm /P{i} Do Q " for i in range(6))
    data = write_pdf([(content, resources)], objects=[picture_object(i) for i in images])
    document = read(data, IngestOptions(ocr="never", max_pictures=4))
    assert len(document.pictures) == 4
    assert any("pictures left out: 2;" in note.message for note in document.notes)


@pytest.mark.parametrize("has_form", [True, False])
def test_form_fields_and_notes_are_text(has_form):
    widget = b"<</Type/Annot/Subtype/Widget/Rect[100 600 300 620]"
    objects = [
        widget + b"/FT/Tx/T(given_name)/TU(Given name)/V(Grace Hopper)>>",
        widget + b"/FT/Btn/T(agree)/V/On/AS/On/AP<</N<</On 14 0 R/Off 14 0 R>>>>>>",
        widget + b"/FT/Tx/T(secret)/Ff 8192/V(hunter2)>>",
        b"<</Type/Annot/Subtype/Text/Rect[400 600 420 620]/Contents(Ask the admiral)>>",
        b"<</Type/XObject/Subtype/Form/BBox[0 0 1 1]/Length 0>>stream\n\nendstream",
    ]
    form = b"/AcroForm<</Fields[10 0 R 11 0 R 12 0 R]>>"
    page = (text_at(72, 700, "Application form"), b"/Annots[10 0 R 11 0 R 12 0 R 13 0 R]")
    # a page taken out of its form keeps the fields' own entries
    document = read(write_pdf([page], objects=objects, catalog=form if has_form else b""))
    assert "Given name: Grace Hopper" in document.text
    assert "agree: yes" in document.text
    assert "Ask the admiral" in document.text
    assert "hunter2" not in document.text
    start = document.text.index("Grace")
    index = [tuple(span) for span in document.words.spans].index((start, start + 5))
    assert document.words.boxes[index][1] == pytest.approx(172 / 792, abs=0.002)


def test_metadata():
    info = b"/Title(A study of wings)/Author(L. Euler)/CreationDate(D:20200813093015+02'00')"
    document = read(write_pdf([text_at(72, 700, "x")], info=info + b"/Producer(By hand)"))
    assert document.title == "A study of wings"
    expected = {"author": "L. Euler", "date": "2020-08-13T09:30:15", "producer": "By hand"}
    assert document.metadata == {**expected, "n_pages": 1}
    for junk in (b"Microsoft Word - draft.doc", b"untitled", b"book.indd"):
        title = read(write_pdf([text_at(72, 700, "x")], info=b"/Title(%s)" % junk)).title
        assert title is None


def test_rendered_page_is_upright_and_of_the_size_asked():
    data = write_pdf([("1 0 0 rg 0 692 100 100 re f", b"/Rotate 90")])
    image = render_page(data, 1, 396)
    assert image.size == (396, 306)
    assert image.getpixel((390, 5)) == (255, 0, 0)
    with pytest.raises(LoadError, match="no page 2: its last is 1"):
        render_page(data, 2, 100)


def test_threads_share_pdfium():
    data = [write_pdf([columns(2), columns(3)]), scan_pdf()]
    expected = [read(item).text for item in data]
    failures = []

    def work(number):
        for _ in range(4):
            if read(data[number % 2]).text != expected[number % 2]:
                failures.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# real files


def find_data():
    for place in (
        os.environ.get("FOVEATE_EVAL_DATA"),
        Path(__file__).parents[2] / "../shared/data",
    ):
        if place and Path(place).is_dir():
            return Path(place)
    return None


def real_pdfs():
    root = find_data()
    manifest = root / "messy_docs/manifest.jsonl" if root else None
    if manifest is None or not manifest.exists():
        return [pytest.param(None, marks=pytest.mark.skip("messy_docs is not here"))]
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    return [pytest.param(row, id=row["file"]) for row in rows if row["kind"] == "pdf"]


@pytest.mark.parametrize("row", real_pdfs())
def test_real_pdf_gives_what_its_manifest_says(row):
    path = find_data() / "messy_docs/files" / row["file"]
    passwords = (row["password"],) if row.get("password") else ()
    options = IngestOptions(ocr="never", pdf_passwords=passwords)
    if row.get("expect") == "error":
        with pytest.raises(LoadError):
            read(path.read_bytes(), options)
        return
    document = read(path.read_bytes(), options)
    assert document.metadata["n_pages"] == row["pages"]
    starts = [*document.page_starts, len(document.text)]
    # theirs counts spaces too
    n_chars = len("".join(document.text[: starts[min(5, len(starts) - 1)]].split()))
    assert n_chars >= 0.7 * row["text_chars_first5"]
    if not document.text:
        assert "empty" in kinds(document)
