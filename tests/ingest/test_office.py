"""DOCX, PPTX, XLSX, EPUB, ODT: what they hold comes out; CASES row 2: bombs are refused."""

import datetime
import io
import json
import zipfile
import zlib

import pytest

from foveate.pipeline.errors import FoveateError, LimitExceeded, LoadError


def saved(thing):
    buffer = io.BytesIO()
    thing.save(buffer)
    return buffer.getvalue()


def picture(side=100, colour="red"):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, "PNG")
    buffer.seek(0)
    return buffer


def pieces(document, kind):
    return [document.text[b.start : b.end] for b in document.blocks if b.kind == kind]


def make_docx():
    import docx

    document = docx.Document()
    document.core_properties.title = "The report"
    document.core_properties.author = "Ann"
    document.add_heading("Intro", 1)
    document.add_paragraph("First \u00adparagraph with e\ufb03cient\nwords.")
    document.add_paragraph("one", style="List Bullet")
    document.add_paragraph("two", style="List Bullet")
    table = document.add_table(3, 2)
    for i, row in enumerate([("name", "mass"), ("fox", "6 kg"), ("owl", "1 kg")]):
        for j, text in enumerate(row):
            table.cell(i, j).text = text
    document.add_picture(picture(), width=914400)
    document.add_picture(picture(8, "blue"), width=914400)
    document.add_heading("Part", 2)
    document.add_paragraph("The end.")
    return saved(document)


def test_docx(read_bytes):
    (document,) = read_bytes("a.docx", make_docx())
    assert document.title == "The report"
    assert document.metadata["author"] == "Ann"
    assert pieces(document, "heading") == ["Intro", "Part"]
    assert [b.level for b in document.blocks if b.kind == "heading"] == [1, 2]
    assert pieces(document, "paragraph") == ["First paragraph with efficient\nwords.", "The end."]
    assert pieces(document, "list") == ["- one\n- two"]
    assert pieces(document, "table") == ["name | mass\nfox | 6 kg\nowl | 1 kg"]
    (figure,) = document.pictures
    assert figure.image.size == (100, 100)
    json.dumps(document.metadata)


def test_pptx(read_bytes):
    import pptx
    from pptx.util import Inches

    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Cooling loop"
    slide.placeholders[1].text = "first point\nsecond point"
    slide.notes_slide.notes_text_frame.text = "Say this."
    second = deck.slides.add_slide(deck.slide_layouts[6])
    table = second.shapes.add_table(2, 2, 0, 0, Inches(2), Inches(1)).table
    for i, text in enumerate(["a", "b", "1", "2"]):
        table.cell(i // 2, i % 2).text = text
    second.shapes.add_picture(picture(), 0, 0)
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 10, 10).text_frame.text = "inside a group"
    (document,) = read_bytes("a.pptx", saved(deck))
    assert document.title == "Cooling loop"
    assert len(document.page_starts) == 2
    first, last = document.text.split("\f")
    assert document.page_starts[1] == len(first) + 1
    assert "- first point\n- second point" in first
    assert "Notes: Say this." in first
    assert "a | b\n1 | 2" in last
    assert "inside a group" in last
    assert [p.page for p in document.pictures] == [2]


def test_xlsx(read_bytes):
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Data"
    sheet.append(["name", "day", "share", "ok", "sum"])
    sheet.append(["fox", datetime.datetime(2024, 5, 6), 0.1 + 0.2, True, "=1+1"])
    sheet.append([None] * 5)
    sheet.append(["owl", datetime.datetime(2024, 5, 6, 7, 8), 3.0, False, None])
    book.create_sheet("Empty")
    book.create_sheet("Other").append(["only", "row"])
    (document,) = read_bytes("a.xlsx", saved(book))
    assert pieces(document, "heading") == ["Data", "Empty", "Other"]
    assert pieces(document, "table")[0] == (
        "name | day | share | ok | sum\nfox | 2024-05-06 | 0.3 | TRUE\n"
        "owl | 2024-05-06 07:08:00 | 3 | FALSE"
    )
    assert len(document.page_starts) == 3
    assert "formulas without a stored value: 1;" in document.notes[0].message
    table = next(b for b in document.blocks if b.kind == "table")
    assert document.text[slice(*table.header)] == "name | day | share | ok | sum"


CONTAINER = '<container><rootfiles><rootfile full-path="O/b.opf"/></rootfiles></container>'
OPF = """<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
<metadata><dc:title>Book</dc:title><dc:creator>Ann</dc:creator><dc:language>en-GB</dc:language>
</metadata><manifest><item id="b" href="two%20.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="one.xhtml" media-type="application/xhtml+xml"/>
<item id="p" href="p.png" media-type="image/png"/></manifest>
<spine><itemref idref="a"/><itemref idref="b"/><itemref idref="missing"/></spine></package>"""


def make_epub(**extra):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr("META-INF/container.xml", CONTAINER)
        book.writestr("O/b.opf", OPF)
        book.writestr("O/one.xhtml", "<!DOCTYPE html><html><h1>One</h1><p>f\u00fcr</p></html>")
        book.writestr("O/two .xhtml", "<html><body><h1>Two</h1><p>end</p></body></html>")
        book.writestr("O/p.png", picture().getvalue())
        for name, data in extra.items():
            book.writestr(name, data)
    return buffer.getvalue()


def test_epub(read_bytes):
    (document,) = read_bytes("a.epub", make_epub())
    assert document.text == "One\n\nf\u00fcr\n\nTwo\n\nend"
    assert (document.title, document.language) == ("Book", "en")
    assert document.metadata == {"author": "Ann"}
    assert len(document.pictures) == 1


def test_a_protected_book_says_so(read_bytes):
    cipher = '<encryption><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></encryption>'
    with pytest.raises(LoadError, match="protected"):
        read_bytes("a.epub", make_epub(**{"META-INF/encryption.xml": cipher}))


def test_odt(read_bytes):
    space = 'xmlns:{0}="urn:oasis:names:tc:opendocument:xmlns:{0}:1.0"'
    names = " ".join(space.format(name) for name in ("office", "text", "table"))
    content = (
        f"<office:document-content {names}><office:body><office:text>"
        '<text:h text:outline-level="2">Head</text:h><text:p>One<text:s text:c="2"/>two</text:p>'
        "<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>"
        '<table:table-cell table:number-columns-repeated="99999"><text:p>b</text:p>'
        "</table:table-cell></table:table-row></table:table>"
        "</office:text></office:body></office:document-content>"
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as container:
        container.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        container.writestr("content.xml", content)
    (document,) = read_bytes("a.odt", buffer.getvalue())
    assert pieces(document, "heading") == ["Head"]
    assert pieces(document, "paragraph") == ["One two"]
    assert pieces(document, "table")[0].startswith("a | b | b")
    assert len(document.text) < 1000


def with_part(data, name, part):
    """The container with one part replaced or added."""
    source = zipfile.ZipFile(io.BytesIO(data))
    buffer = io.BytesIO()
    with source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            if entry.filename != name:
                target.writestr(entry, source.read(entry))
        target.writestr(name, part)
    return buffer.getvalue()


BOMB = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "lol">]><a>&b;</a>'


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.docx", "word/document.xml"),
        ("a.docx", "docProps/core.xml"),
        ("a.docx", "word/styles.xml"),
    ],
)
def test_entities_in_office_parts_are_refused(read_bytes, name, part):
    with pytest.raises(LoadError, match="defines XML entities"):
        read_bytes(name, with_part(make_docx(), part, BOMB))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({}, "ingest.max_unpacked_ratio = 200"),
        ({"max_unpacked_ratio": 5000}, "ingest.max_xml_bytes"),
        ({"max_unpacked_bytes": 10_000_000}, "ingest.max_unpacked_bytes = 10000000"),
        ({"max_entries": 3}, "ingest.max_entries = 3"),
    ],
)
def test_a_zip_bomb_is_refused_by_a_stated_limit(read_bytes, limits, reason):
    data = with_part(make_docx(), "word/footnotes.xml", bytes(120_000_000))
    assert len(data) < 300_000
    with pytest.raises(LimitExceeded, match=reason):
        read_bytes("a.docx", data, **limits)


def test_a_size_that_lies_does_not_unpack_more(read_bytes):
    data = bytearray(with_part(make_docx(), "word/document.xml", bytes(50_000_000)))
    # the stated size in the central directory becomes 1,000 bytes
    at = data.rindex(b"word/document.xml") - 46
    data[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    with pytest.raises(FoveateError):
        read_bytes("a.docx", bytes(data))


def test_many_names_for_the_same_bytes_are_counted_each(read_bytes):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as container:
        container.writestr("[Content_Types].xml", "")
        for i in range(40):
            container.writestr(f"word/media/{i}", zlib.compress(bytes(10)) + bytes(5_000_000))
    with pytest.raises(LimitExceeded):
        read_bytes("a.docx", buffer.getvalue())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["a.docx", "a.epub", "a.xlsx", "a.pptx"])
def test_damaged_containers_raise_only_our_errors(read_bytes, name, seed, made):
    import random

    rng = random.Random(seed)
    data = bytearray(made[name])
    if seed % 5 == 0:
        data = data[: rng.randrange(10, len(data))]
    for _ in range(rng.randrange(1, 40)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        read_bytes(name, bytes(data))
    except FoveateError as error:
        text = str(error)
        assert text
        assert "\n" not in text


@pytest.fixture(scope="module")
def made():
    import openpyxl
    import pptx

    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[0]).shapes.title.text = "x"
    book = openpyxl.Workbook()
    book.active.append(["a", 1])
    return {
        "a.docx": make_docx(),
        "a.epub": make_epub(),
        "a.xlsx": saved(book),
        "a.pptx": saved(deck),
    }


def test_the_shared_office_files_are_read(eval_data, read_bytes):
    folder = eval_data / "messy_docs"
    if not folder.is_dir():
        pytest.skip("no messy_docs in the evaluation data")
    manifest = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in manifest.splitlines() if line]
    for row in rows:
        if row["kind"] == "office" or row["file"].endswith(".html"):
            (document,) = read_bytes(row["file"], (folder / "files" / row["file"]).read_bytes())
            assert len(document.text) > 50


def test_a_charts_values_are_read_or_their_loss_is_said(read_bytes):
    import pptx
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    deck = pptx.Presentation()
    data = CategoryChartData()
    data.categories = ["spring", "summer"]
    data.add_series("rain", (12, 34))
    deck.slides.add_slide(deck.slide_layouts[6]).shapes.add_chart(
        XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 100, 100, data
    )
    whole = saved(deck)
    (document,) = read_bytes("a.pptx", whole)
    assert "summer" in document.text
    assert "34" in document.text
    assert document.notes == ()
    with zipfile.ZipFile(io.BytesIO(whole)) as parts:
        name = next(n for n in parts.namelist() if n.startswith("ppt/charts/chart"))
        odd = parts.read(name).replace(b"c:barChart", b"c:unheardOfChart")
    (document,) = read_bytes("b.pptx", with_part(whole, name, odd))
    assert (document.notes[0].kind, document.notes[0].page) == ("skipped", 1)
    assert "chart" in document.notes[0].message
