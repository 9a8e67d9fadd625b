"""Odd and damaged files of each kind: what can be read is, and a refusal states the true reason."""

from __future__ import annotations

import io
import json
import zipfile
import zlib

import pytest

from foveate.pipeline.errors import LimitExceeded, LoadError
from foveate.pipeline.ingest.options import IngestOptions
from foveate.pipeline.ingest.streams import check_streams

TABLE = {
    "csv": "name,city\nAda,London\nKurt,Brno\n",
    "tsv": "name\tcity\nAda\tLondon\nKurt\tBrno\n",
}
TABLE["jsonl"] = '{"text": "name: Ada"}\n{"text": "name: Kurt"}\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", list(TABLE))
def test_records_end_as_their_file_ends_lines(read_bytes, kind, end, encoding):
    for text in (TABLE[kind], TABLE[kind].rstrip("\n")):
        data = text.replace("\n", end).encode(encoding)
        documents = read_bytes(f"t.{kind}", data)
        assert [d.row for d in documents] == [1, 2]
        assert "Ada" in documents[0].text
        assert "Kurt" in documents[1].text


def test_a_long_record_in_a_file_of_cr_is_dropped_alone(read_bytes):
    lines = [{"text": "short"}, {"text": "long " * 40_000}, {"text": "after"}]
    data = "\r".join(map(json.dumps, lines)).encode()
    documents = read_bytes("t.jsonl", data, max_record_bytes=1000)
    assert [d.text for d in documents] == ["short", "after"]
    assert any("max_record_bytes" in n.message for d in documents for n in d.notes)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"text": None, "body": "in the body"}, "body: in the body"),
        ({"text": "  ", "body": "in the body"}, "body: in the body"),
        ({"text": "", "title": "A title", "url": "x"}, "A title"),
        ({"text": "said", "body": "not this"}, "said"),
    ],
)
def test_a_record_whose_text_is_blank_is_read_by_its_other_words(read_bytes, fields, text):
    (document,) = read_bytes("t.jsonl", json.dumps(fields).encode() + b"\n")
    assert document.text == text


EAST = {
    "japanese": "素早い茶色の狐が怠け者の犬を飛び越える。橋は前世紀に建てられた。カタカナ",
    "chinese": "敏捷的棕色狐狸跳过懒狗。这座桥建于上个世纪,长约二百米。",
    "korean": "빠른 갈색 여우가 게으른 개를 뛰어넘는다. 이 다리는 오래되었다.",
}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("language", list(EAST))
def test_wide_text_without_a_mark_is_read_in_scripts_without_zero_bytes(
    read_bytes, language, encoding
):
    (document,) = read_bytes("t.txt", (EAST[language] * 4).encode(encoding))
    assert document.text == EAST[language] * 4
    assert document.encoding == encoding


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "shift_jis", "euc_jp", "cp949", "utf-8"])
def test_other_east_asian_encodings_are_not_taken_for_wide(read_bytes, encoding):
    text = {"cp949": EAST["korean"], "shift_jis": EAST["japanese"], "euc_jp": EAST["japanese"]}
    text = text.get(encoding, "敏捷的棕色狐狸。橋建於冬天的河上。")
    (document,) = read_bytes("t.txt", (text * 4).encode(encoding))
    assert document.text == text * 4


@pytest.mark.parametrize("depth", [10, 300, 2_000, 20_000])
def test_text_of_deep_xml_is_read(read_bytes, depth):
    data = b"<a>" * depth + b"deep words &amp; more" + b"</a>" * depth
    (document,) = read_bytes("t.xml", data)
    assert document.text.strip() == "deep words & more"


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE r [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;"><!ENTITY x "&b;&b;&b;">]>',
        '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE r [<!ENTITY x "&x;">]>',
        '<!DOCTYPE r SYSTEM "http://127.0.0.1:9/x.dtd" [ <!ENTITY x "y"> ]>',
    ],
)
def test_entities_are_not_expanded_and_the_words_kept(read_bytes, doctype):
    (document,) = read_bytes(
        "t.xml", f"<?xml version='1.0'?>{doctype}<r>&x; plain words</r>".encode()
    )
    assert document.text == "&x; plain words"
    assert any("not expanded" in note.message for note in document.notes)


def book(package: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as container:
        container.writestr("mimetype", "application/epub+zip")
        container.writestr("META-INF/container.xml", '<c><rootfile full-path="c.opf"/></c>')
        container.writestr("c.opf", package)
    return out.getvalue()


@pytest.mark.parametrize("package", ["<package", "<package/>", "<package><manifest/></package>"])
def test_a_book_without_chapters_says_so(read_bytes, package):
    with pytest.raises(LoadError, match="names no chapter"):
        read_bytes("t.epub", book(package))


W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def letter(body: str | None) -> bytes:
    import docx

    out, changed = io.BytesIO(), io.BytesIO()
    docx.Document().save(out)
    with zipfile.ZipFile(out) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "word/document.xml":
                inner = "" if body is None else f"<w:body>{body}</w:body>"
                data = f'<w:document xmlns:w="{W}">{inner}</w:document>'.encode()
            new.writestr(name, data)
    return changed.getvalue()


@pytest.mark.parametrize("level", ["x", "", "-1", "99", "2"])
def test_an_odd_outline_level_loses_no_paragraph(read_bytes, level):
    run = "<w:r><w:t>The words</w:t></w:r>"
    body = f'<w:p><w:pPr><w:outlineLvl w:val="{level}"/></w:pPr>{run}</w:p>'
    (document,) = read_bytes("t.docx", letter(body))
    assert document.text.strip() == "The words"


def test_a_letter_without_a_body_says_so(read_bytes):
    with pytest.raises(LoadError, match="no body"):
        read_bytes("t.docx", letter(None))


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("t.mp3", b"ID3\x03\0\0\0\0\0\0" + bytes(range(256)) * 4, "an MP3 recording"),
        (
            "t.tga",
            b"\0\0\2" + bytes(9) + b"\x90\1\x2c\1\x18\0" + b"\xfa\xf9\xfb" * 5000,
            "tga file",
        ),
        ("t.raw", b"\xe4\xf6\xfc\xe9 " * 500, "raw file"),
    ],
)
def test_sounds_and_pictures_without_a_mark_are_no_text(read_bytes, name, data, reason):
    with pytest.raises(LoadError, match=reason):
        read_bytes(name, data)


@pytest.mark.parametrize(
    "head", [b"P6\n2 2\n255\n", b"P6 2 2 255\n", b"P6\n# made by hand\n2 2\n255\n"]
)
def test_a_portable_pixmap_is_a_picture(read_bytes, head):
    (document,) = read_bytes("t.ppm", head + b"\xff\0\0" * 4, ocr="never")
    assert document.pictures[0].image.getpixel((0, 0)) == (255, 0, 0)


def test_prose_that_begins_like_a_pixmap_is_text(read_bytes):
    (document,) = read_bytes("t", b"P6 is the sixth paragraph of the old statute.")
    assert document.type == "text"


def stream(data: bytes, entry: bytes = b"/Filter/FlateDecode") -> bytes:
    packed = zlib.compress(data, 9)
    head = b"4 0 obj\n<<%s/Length %d>>\nstream\n" % (entry, len(packed))
    return head + packed + b"\nendstream\nendobj\n"


BOMB = b"BT (bomb) Tj ET\n" * 5_000_000


def test_a_pdf_whose_pages_unpack_to_gigabytes_is_refused():
    with pytest.raises(LimitExceeded, match="unpack to more than"):
        check_streams(b"%PDF-1.7\n" + stream(BOMB), IngestOptions())
    with pytest.raises(LimitExceeded, match="unpack to more than"):
        check_streams(b"%PDF-1.7\n" + stream(BOMB[:20_000_000]) * 4, IngestOptions())


@pytest.mark.parametrize(
    "data",
    [
        stream(BOMB, b"/Subtype /Image/Filter/FlateDecode"),  # has its own limit
        stream(BOMB[:10_000_000]),
        stream(b"a drawing") * 1000,
        b"4 0 obj\n<</Filter/FlateDecode>>\nstream\nencrypted or damaged\nendstream",
        b"4 0 obj\n<</Filter/FlateDecode>>\nstream\n",
        b"",
    ],
)
def test_what_is_no_bomb_passes(data):
    check_streams(b"%PDF-1.7\n" + data, IngestOptions())
