"""CASES row 8: encodings of every kind are told, recorded, and never stop the rest."""

import codecs
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.pipeline.errors import ConfigError, LoadError
from foveate.pipeline.ingest.decode import decode

SAMPLES = {
    "de": "Für die größeren Städte gelten ähnliche Regeln – auch nördlich der Flüsse.",
    "fr": "L’été dernier, à Noël, les élèves ont été reçus à l’hôtel de la forêt.",
    "es": "La administración española decidió ayer que el niño podría volver a su país.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "cs": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "ru": "В гимназии он не был в числе первых учеников.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι.",
    "he": "כל בני האדם נולדו בני חורין ושווים.",
    "ja": "吾輩は猫である。名前はまだ無い。どこで生れたか見当がつかぬ。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 권리에 있어 동등하다.",
    "zh": "这个问题很重要，我们应该认真研究，然后再决定怎么办。",
    "zt": "這個問題很重要，我們應該認真研究，然後再決定怎麼辦。",
}
LEGACY = [
    *[("de", e) for e in ("cp1252", "mac_roman")],
    *[("fr", e) for e in ("cp1252", "mac_roman")],
    *[("es", e) for e in ("cp1252", "iso8859_15", "mac_roman", "cp850")],
    *[("pl", e) for e in ("cp1250", "iso8859_2")],
    *[("cs", e) for e in ("cp1250", "iso8859_2")],
    *[("tr", e) for e in ("cp1254", "iso8859_9")],
    *[("ru", e) for e in ("cp1251", "koi8_r", "cp866", "mac_cyrillic", "iso8859_5")],
    *[("el", e) for e in ("cp1253", "iso8859_7")],
    *[("he", e) for e in ("cp1255", "iso8859_8")],
    *[("ja", e) for e in ("shift_jis", "euc_jp", "iso2022_jp")],
    *[("ko", e) for e in ("cp949", "euc_kr")],
    ("zh", "gb18030"),
    ("zt", "big5"),
]
UNICODE = [
    ("utf-8", b"", "utf-8"),
    ("utf-8", codecs.BOM_UTF8, "utf-8-sig"),
    ("utf-16-le", codecs.BOM_UTF16_LE, "utf-16"),
    ("utf-16-be", codecs.BOM_UTF16_BE, "utf-16"),
    ("utf-16-le", b"", "utf-16-le"),
    ("utf-16-be", b"", "utf-16-be"),
    ("utf-32-le", codecs.BOM_UTF32_LE, "utf-32"),
    ("utf-32-le", b"", "utf-32-le"),
    ("utf-32-be", b"", "utf-32-be"),
]


@pytest.mark.parametrize(("language", "encoding"), LEGACY)
@pytest.mark.parametrize("n_repeats", [1, 4])
def test_legacy_encodings(language, encoding, n_repeats):
    text = "\r\n".join([SAMPLES[language]] * n_repeats)
    decoded = decode(text.encode(encoding))
    assert decoded.text == text
    assert decoded.notes[0].kind == "guessed"


@pytest.mark.parametrize(("encoding", "mark", "name"), UNICODE)
@pytest.mark.parametrize(
    "text",
    [
        "Plain w\u00f6rds\nand lines, 12.5 %\n",
        "Gr\u00fc\u00dfe, \u0416\u0443\u043a and 123 more.\n",
    ],
)
def test_unicode_with_and_without_marks(encoding, mark, name, text):
    decoded = decode(mark + text.encode(encoding))
    assert (decoded.text, decoded.encoding) == (text, name)


def test_ascii_is_told():
    assert decode(b"plain").encoding == "ascii"


@pytest.mark.parametrize("stray", [b"\x97", b"\x93", b"\xa9", b"\xff"])
def test_a_stray_byte_in_utf8_is_read_as_cp1252_and_noted(stray):
    data = "na\u00efve caf\u00e9s \u4e2d\u6587 ".encode() + stray + " end \u00fc".encode()
    decoded = decode(data)
    assert decoded.encoding == "utf-8"
    assert decoded.text == f"na\u00efve caf\u00e9s \u4e2d\u6587 {stray.decode('cp1252')} end \u00fc"
    assert [note.kind for note in decoded.notes] == ["guessed"]


def test_a_dash_of_cp1252_alone():
    assert decode(b"1990\x971995, a long while").text == "1990\u20141995, a long while"


def test_a_truncated_utf8_end_does_not_change_the_encoding():
    data = ("\u00fcber alles " * 50).encode()[:-1] + b"\xe4\xb8"
    assert decode(data).encoding == "utf-8"


def test_an_encoding_can_be_named():
    assert decode(b"\xe4", override="latin-1").text == "\u00e4"
    with pytest.raises(ConfigError, match="unknown encoding 'klingon'"):
        decode(b"x", override="klingon")


def test_a_declared_encoding_holds_only_if_it_fits():
    assert decode("\u00e4\u00f6".encode("cp1252"), declared="windows-1252").text == "\u00e4\u00f6"
    assert decode("\u00e4 \u4e2d".encode(), declared="ascii").text == "\u00e4 \u4e2d"
    assert decode("\u00e4".encode(), declared="no-such").text == "\u00e4"


@given(st.text())
@example("000\x08\x80\x80\x80\x80\x80\x80")
def test_any_utf8_comes_back(text):
    data = text.encode("utf-8", "ignore")
    if (
        b"\x00" not in data
        and not data.startswith((codecs.BOM_UTF8, b"\x1b"))
        and b"\x1b" not in data
    ):
        assert decode(data).text == data.decode()


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data):
    decode(data)


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n", "\r\n\r"])
def test_line_ends_become_one_kind(read_bytes, ends):
    (document,) = read_bytes("a.txt", f"one{ends}two\nthree\r\nfour".encode())
    assert "\r" not in document.text
    assert document.text.split() == ["one", "two", "three", "four"]


def test_binary_data_is_refused_with_its_reason(read_bytes):
    with pytest.raises(LoadError, match="binary data with the name of a txt file"):
        read_bytes("a.txt", bytes(range(256)) * 20)


def test_the_shared_texts_decode_as_their_manifest_says(eval_data, read_bytes):
    folder = eval_data / "messy_docs"
    if not folder.is_dir():
        pytest.skip("no messy_docs in the evaluation data")
    manifest = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in manifest.splitlines() if line]
    texts = [row for row in rows if row["kind"] == "text" and not row["file"].endswith(".html")]
    assert len(texts) > 5
    for row in texts:
        (document,) = read_bytes(row["file"], (folder / "files" / row["file"]).read_bytes())
        assert document.encoding == row["encoding"], row["file"]
        assert document.text.startswith(row["first_chars"].replace("\r\n", "\n")), row["file"]
