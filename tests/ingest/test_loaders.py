"""Markdown, HTML, code, XML, RTF: the text, its blocks and its metadata. CASES rows 10 and 12."""

import contextlib
import time

import pytest

from foveate.pipeline.errors import FoveateError, LimitExceeded


def pieces(document, kind):
    return [document.text[b.start : b.end] for b in document.blocks if b.kind == kind]


def test_markdown_is_its_source_with_blocks(read_bytes):
    source = (
        "---\ntitle: The Title\ntags: [a, b]\ndate: 2024-05-06\n---\n\n"
        "# Head *one*\n\nWords\nmore.\n\n"
        "Under\n-----\n\n- x\n- y\n\n```py\nx = 1\n\n# no heading\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    (document,) = read_bytes("a.md", source.replace("\n", "\r\n").encode())
    assert document.text == source
    assert document.title == "The Title"
    assert document.metadata == {"tags": ["a", "b"], "date": "2024-05-06"}
    assert pieces(document, "heading") == ["# Head *one*", "Under\n-----"]
    assert pieces(document, "code")[1].startswith("```py\nx = 1\n\n# no heading")
    assert pieces(document, "list") == ["- x\n- y"]
    (table,) = [b for b in document.blocks if b.kind == "table"]
    assert source[slice(*table.header)] == "| a | b |\n|---|---|"


@pytest.mark.parametrize(
    "front",
    ["a: [1", "a: &x [*x]", "- list", "a: !!python/object:os.system x", "[" * 5000, "+++"],
)
def test_front_matter_that_is_none_is_text(read_bytes, front):
    (document,) = read_bytes("a.md", f"---\n{front}\n---\n\nWords\n".encode())
    assert "Words" in document.text
    assert document.metadata == {}


def test_toml_front_matter(read_bytes):
    (document,) = read_bytes("a.md", b'+++\ntitle = "T"\nn = 3\n+++\n# Other\n')
    assert (document.title, document.metadata) == ("T", {"n": 3})


HTML = """<!doctype html><html lang="de-AT"><head><title> A
 title</title><meta name="author" content="Ann"><style>p{}</style><script>var x;</script></head>
<body><h1>Main <em>head</em></h1><p>One <b>two</b>
three<br>four</p><div hidden>no</div><div style="display: none">no</div><p aria-hidden="true">no</p>
<ul><li>x <a href="u">link</a></li><li>y<ul><li>z</li></ul></li></ul>
<table><caption>Cap</caption>
<tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2
<i>m</i></td></tr></table>
<pre>code
  more</pre><img alt="A fox"><template>no</template><noscript>no</noscript>
last &amp; &eacute;</body></html>"""


def test_html(read_bytes):
    (document,) = read_bytes("a.html", HTML.encode())
    assert document.title == "A title"
    assert document.language == "de"
    assert document.metadata == {"author": "Ann"}
    assert pieces(document, "heading") == ["Main head"]
    assert "One two three\nfour" in pieces(document, "paragraph")
    assert pieces(document, "list") == ["- x link\n- y\n- z"]
    assert pieces(document, "table") == ["a | b\n1 | 2 m"]
    assert pieces(document, "caption") == ["Cap"]
    assert pieces(document, "code") == ["code\n  more"]
    assert document.text.endswith("A fox last & \u00e9")
    assert "no\n" not in document.text
    assert "var x" not in document.text


def test_html_names_its_encoding(read_bytes):
    page = '<html><head><meta charset="windows-1251"></head>'
    page += "<body><p>\u041f\u0440\u0438\u0432\u0435\u0442</p></body></html>"
    (document,) = read_bytes("a.html", page.encode("cp1251"))
    assert (document.text, document.encoding) == ("\u041f\u0440\u0438\u0432\u0435\u0442", "cp1251")


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 20_000 + "deep",
        "<table><tr><td>" * 3000 + "deep",
        "<b><i>" * 5000 + "deep" + "</b></i>" * 10,
        "<p>unclosed <b>deep",
        "<html><body>\x00deep\x00",
        "<" * 50_000 + " deep",
        "<!-- never closed deep",
        "<ul><li>" * 5000 + "deep",
    ],
)
def test_broken_and_deep_html(read_bytes, page):
    start = time.process_time()
    (document,) = read_bytes("a.html", page.encode())
    assert time.process_time() - start < 20
    assert "deep" in document.text or "never closed" in page


def test_code_is_verbatim_in_pieces(read_bytes):
    source = "import os\n\n\ndef one():\n    x = 1\n\n    return x\n\n\nclass Two:\n    pass\n"
    (document,) = read_bytes("mod.py", source.encode())
    assert document.text == source
    assert document.title == "mod.py"
    assert pieces(document, "code")[1] == "def one():\n    x = 1\n\n    return x"


def test_xml_and_svg(read_bytes):
    data = b"<?xml version='1.0' encoding='iso-8859-1'?>"
    data += b"<r><title>T\xe4</title><p>one <b>two</b> three</p></r>"
    (document,) = read_bytes("a.xml", data)
    assert document.title == "T\u00e4"
    assert document.text == "T\u00e4\n\none two three"
    (document,) = read_bytes("a.svg", b"<svg><style>no</style><text>Label</text></svg>")
    assert (document.text, document.type) == ("Label", "svg")


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x0 "lol">'
    + "".join(f'<!ENTITY x{i} "{f"&x{i - 1};" * 10}">' for i in range(1, 12))
    + "]><a><b>words</b>&x11;</a>"
)


@pytest.mark.parametrize("name", ["a.xml", "a.html", "a.svg"])
def test_entity_bombs_stay_small(read_bytes, name):
    (document,) = read_bytes(name, BOMB.encode())
    assert "words" in document.text
    assert len(document.text) < 2000


def test_an_external_entity_is_not_read(read_bytes, tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    page = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{tmp_path}/secret">]><a><b>words</b>&x;</a>'
    for name in ("a.xml", "a.html"):
        (document,) = read_bytes(name, page.encode())
        assert "SECRET" not in document.text


def test_rtf(read_bytes):
    (document,) = read_bytes("a.rtf", rb"{\rtf1\ansi Caf\'e9 {\b bold} \u8212? end\par next}")
    assert document.text.startswith("Caf\u00e9 bold \u2014 end\nnext")


@pytest.mark.parametrize(
    "name",
    [
        "a.txt",
        "a.md",
        "a.html",
        "a.csv",
        "a.jsonl",
        "a.json",
        "a.py",
        "a.pdf",
        "a.docx",
        "a.png",
        "a.xml",
        "a",
    ],
)
def test_an_empty_file_of_any_kind_is_said_to_be_empty(read_bytes, name):
    (document,) = read_bytes(name, b"")
    assert document.text == ""
    assert [note.kind for note in document.notes] == ["empty"]


@pytest.mark.parametrize("data", [b" ", b"\n\n\t \r\n", "\u3000\u00a0".encode(), b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "a.csv", "a.jsonl", "a.py"])
def test_white_space_only_is_empty(read_bytes, name, data):
    (document,) = read_bytes(name, data)
    assert not document.text.strip()
    assert "empty" in [note.kind for note in document.notes]


@pytest.mark.parametrize("name", ["b.html", "c.md"])
def test_nothing_to_extract_is_empty(read_bytes, name):
    data = {"b.html": b"<html><script>x</script></html>", "c.md": b"\n"}[name]
    (document,) = read_bytes(name, data)
    assert [note.kind for note in document.notes] == ["empty"]


def test_limits_of_size_and_text(read_bytes):
    with pytest.raises(LimitExceeded, match=r"ingest\.max_file_bytes = 10"):
        read_bytes("a.txt", b"x" * 11, max_file_bytes=10)
    (document,) = read_bytes("a.md", b"# T\n\nwords and words\n", max_text_chars=8)
    assert document.text == "# T\n\nwor"
    assert document.notes[-1].kind == "truncated"
    assert all(block.end <= 8 for block in document.blocks)


def test_languages(read_bytes):
    texts = {
        "en": "The quick brown fox jumps over the lazy dog and runs away into the forest.",
        "de": "Die schnelle braune Katze springt \u00fcber den faulen Hund und rennt weg.",
        "fr": "Le renard brun rapide saute par-dessus le chien paresseux et s'en va.",
    }
    for code, text in texts.items():
        assert read_bytes("a.txt", text.encode())[0].language == code
    assert read_bytes("a.txt", b"short")[0].language is None


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(
    "name", ["a.html", "a.md", "a.csv", "a.jsonl", "a.xml", "a.rtf", "a.txt", "a.json"]
)
def test_damaged_files_raise_only_our_errors(read_bytes, name, seed):
    import random

    rng = random.Random(seed)
    good = {
        "a.html": HTML.encode(),
        "a.xml": BOMB.encode(),
        "a.rtf": rb"{\rtf1\ansi x{\b y}\par z}",
    }
    data = bytearray(good.get(name, b'{"text": "a"}\n"x,y",2\n# head\n| a |\n|---|\n' * 5))
    for _ in range(rng.randrange(1, 30)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    with contextlib.suppress(FoveateError):
        read_bytes(name, bytes(data))
