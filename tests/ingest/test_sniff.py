"""The kind of a file is told by its content; the name decides only between kinds of text."""

import io
import zipfile

import pytest

from foveate.pipeline import registry
from foveate.pipeline.errors import LoadError
from foveate.pipeline.ingest import REGISTRY
from foveate.pipeline.ingest.sniff import sniff


def kind(name, data):
    return sniff(name, io.BytesIO(data))


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as container:
        for name, data in members.items():
            container.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return buffer.getvalue()


def office(folder):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as container:
        container.writestr("[Content_Types].xml", "")
        container.writestr(f"{folder}/document.xml", "")
    return buffer.getvalue()


PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
HEIC = b"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00mif1heic"
AVIF = b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1"
CASES = [
    ("a.txt", b"%PDF-1.7\n...", "pdf"),
    ("a.jpg", PNG, "png"),
    ("a.png", b"\xff\xd8\xff\xe0" + bytes(20), "jpeg"),
    ("a.bin", b"GIF89a" + bytes(20), "gif"),
    ("a.jpg", HEIC, "heic"),
    ("a", AVIF, "avif"),
    ("a.doc", office("word"), "docx"),
    ("a.zip", office("ppt"), "pptx"),
    ("a", office("xl"), "xlsx"),
    ("a.zip", zipped(mimetype="application/epub+zip"), "epub"),
    ("a.odt", zipped(mimetype="application/vnd.oasis.opendocument.text"), "odt"),
    ("a.doc", b"{\\rtf1 hi}", "rtf"),
    ("a", b"<!DOCTYPE html><html><body>x</body></html>", "html"),
    ("a.csv", b"  <html><body>x</body></html>", "html"),
    ("a.txt", b"a,b,c\n1,2,3\n1,2,3\n1,2,3\n", "text"),
    ("a.data", b"a,b,c\n1,2,3\n1,2,3\n1,2,3\n", "csv"),
    ("a.csv", b"just one column\nx\n", "csv"),
    ("a.md", b"# Title", "markdown"),
    ("a.py", b"def f(): pass", "python"),
    ("Makefile", b"all:\n\techo", "make"),
    ("tool", b"#!/usr/bin/env python3\nprint(1)\n", "python"),
    ("a.json", b'{"a": 1}\n{"a": 2}\n', "jsonl"),
    ("a.json", b'{"a": 1}\n', "json"),
    ("a.xml", b"<?xml version='1.0'?><a>x</a>", "xml"),
    ("README", b"plain words", "text"),
    ("a.pdf", b"", "pdf"),
    ("a.md", b"", "markdown"),
    ("notes.txt", b"this explains %PDF-1.4 headers", "text"),
    ("a.txt", "\ufeffwide".encode("utf-16"), "text"),
    ("a.txt", b"text with\x00one NUL", "text"),
]


@pytest.mark.parametrize(("name", "data", "expected"), CASES)
def test_kind(name, data, expected):
    assert kind(name, data).type == expected


UNREAD = [
    (
        "a.xls",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(30),
        "an old Office file or an encrypted",
    ),
    ("a.gz", b"\x1f\x8b\x08" + bytes(30), "gzip"),
    ("a.docx", zipped(readme="x"), "a zip archive, which is not unpacked, with the name of a docx"),
    ("a.docx", b"PK\x03\x04" + b"x" * 50, "the zip container is damaged"),
    ("a.txt", b"\x7fELF\x02\x01\x01" + bytes(60), "a program"),
    ("a.mp4", b"\x00\x00\x00\x18ftypisom" + bytes(range(256)), "MP4|mp4|MPEG|binary|video"),
    ("a.pdf", bytes(range(256)), "binary data with the name of a pdf"),
    ("a.sqlite", b"SQLite format 3\x00" + bytes(60), "SQLite"),
]


@pytest.mark.parametrize(("name", "data", "reason"), UNREAD)
def test_what_is_not_read_says_what_it_is(name, data, reason):
    with pytest.raises(LoadError, match=reason):
        kind(name, data)


def test_every_loader_of_the_registry_is_there():
    for name in REGISTRY:
        assert callable(registry.find("loader", name))
