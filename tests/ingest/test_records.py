"""Records: a Document for each row, with typed metadata; bad lines do not stop the rest."""

import hashlib
import itertools
import json
import tracemalloc

import pytest

from foveate.pipeline.errors import ConfigError, LoadError
from foveate.pipeline.ingest.options import IngestOptions
from foveate.pipeline.ingest.read import read


def test_a_beir_line(read_bytes):
    row = {
        "_id": "4983",
        "title": "A title",
        "text": "The text.",
        "year": 1999,
        "tags": ["a"],
        "x": "1",
    }
    line = json.dumps(row).encode()
    (document,) = read_bytes("corpus.jsonl", line + b"\n")
    assert document.text == "The text."
    assert document.title == "A title"
    assert document.metadata == {"_id": "4983", "year": 1999, "tags": ["a"], "x": "1"}
    assert document.digest == hashlib.sha256(line).hexdigest()
    assert (document.row, document.size, document.type) == (1, len(line), "jsonl")


def test_a_record_with_only_a_title_is_found_by_it(read_bytes):
    data = (
        b'{"_id": "1", "title": "Only this", "text": ""}\n{"_id": "2", "title": "", "text": "b"}\n'
    )
    one, two = read_bytes("c.jsonl", data)
    assert (one.text, one.title) == ("Only this", "Only this")
    assert (two.text, two.title) == ("b", None)


def test_fields_become_lines_without_a_text_column(read_bytes):
    (document,) = read_bytes("c.jsonl", b'{"id": "x", "name": "Ann", "job": "pilot", "age": 3}\n')
    assert document.text == "name: Ann\njob: pilot"
    assert document.metadata == {"id": "x", "name": "Ann", "job": "pilot", "age": 3}


def test_named_columns(read_bytes):
    data = b'{"q": "Why?", "a": "So.", "n": 1, "head": "H"}\n'
    (document,) = read_bytes("c.jsonl", data, text_columns=("q", "a"), title_column="head")
    assert document.text == "q: Why?\na: So."
    assert (document.title, document.metadata) == ("H", {"n": 1})
    (document,) = read_bytes("c.jsonl", data, text_columns=("a",))
    assert document.text == "So."


BAD_LINES = {
    b"{broken": "not JSON",
    b"[1, 2]": "expected an object, got list",
    b"17": "expected an object, got int",
    b'{"a": ' * 3000 + b"1" + b"}" * 3000: "nested too deeply",
    b'{"n": ' + b"9" * 5000 + b"}": "not JSON",
    b"\xfe\xfa\xff": "not JSON",
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_line_is_a_note_and_the_rest_is_read(read_bytes, bad, place):
    lines = [b'{"text": "one"}', b'{"text": "two"}']
    lines.insert(place, bad)
    documents = read_bytes("c.jsonl", b"\n".join(lines) + b"\n")
    assert [document.text for document in documents] == ["one", "two"]
    assert [d.row for d in documents] == [i for i in (1, 2, 3) if i != place + 1]
    notes = [note for d in documents for note in d.notes if note.kind == "failed"]
    assert len(notes) == 1
    assert notes[0].message.startswith(f"row {place + 1} was not read: {BAD_LINES[bad]}")


def test_many_bad_lines_are_counted(read_bytes):
    documents = read_bytes("c.jsonl", b"oops\n" * 500 + b'{"text": "one"}\n')
    assert len(documents[0].notes) == 21
    assert "500 rows were not read" in documents[0].notes[-1].message


def test_a_file_of_bad_lines_only_is_an_error(read_bytes):
    with pytest.raises(LoadError, match="no row could be read; row 1: not JSON"):
        read_bytes("c.jsonl", b"oops\nagain\n")


def test_values_that_a_database_cannot_hold(read_bytes):
    data = b'{"text": "a\\ud800b\\u0000", "n": NaN, "big": 99999999999999999999, '
    data += b'"\\udfff": "\\u0000"}\n'
    (document,) = read_bytes("c.jsonl", data)
    assert document.text == "a\ufffdb"
    assert document.metadata["big"] == "99999999999999999999"
    json.dumps(document.metadata).encode()
    assert "n" not in document.metadata or document.metadata["n"] is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_encodings_of_lines(read_bytes, encoding):
    lines = (
        '{"text": "gr\u00fc\u00dfe \u00e9t\u00e9 f\u00fcr alle"}',
        "",
        '{"text": "a \u2028 b"}',
        "",
    )
    text = "\r\n".join(lines)
    if encoding == "cp1252":
        text = text.replace("\u2028", "")
    documents = read_bytes("c.jsonl", text.encode(encoding))
    assert documents[0].text == "gr\u00fc\u00dfe \u00e9t\u00e9 f\u00fcr alle"
    assert len(documents) == 2


def test_json_arrays_and_other_json(read_bytes):
    one, two = read_bytes("c.json", b' [ {"text": "one"},\n {"text": "two", "k": 1} ]')
    assert (one.text, two.text, two.metadata) == ("one", "two", {"k": 1})
    assert two.digest == hashlib.sha256(b'{"text": "two", "k": 1}').hexdigest()
    (document,) = read_bytes("c.json", b'{"a": {"b": [1, 2]}}')
    assert document.text == '{"a": {"b": [1, 2]}}'
    documents = read_bytes("c.json", b'[{"text": "one"}, {"text": broken')
    assert documents[0].text == "one"
    assert "the rest of the array is lost" in documents[0].notes[0].message


def test_lines_under_another_name(read_bytes):
    data = b'{"text": "one"}\n{"text": "two"}\n'
    assert [d.text for d in read_bytes("records", data)] == ["one", "two"]
    assert [d.text for d in read_bytes("records.json", data)] == ["one", "two"]


def test_a_csv_row(read_bytes):
    data = (
        b"id,name,zip,price,count,ok,day,empty\r\n"
        b'1,"Ann, B",007,3.10,5,true,2024-01-02,\r\n'
        b'2,"Line\nbreak",12345,4,6,FALSE,2024-01-03,\r\n'
    )
    one, two = read_bytes("t.csv", data)
    assert one.metadata == {
        "id": 1,
        "name": "Ann, B",
        "zip": "007",
        "price": 3.1,
        "count": 5,
        "ok": True,
        "day": "2024-01-02",
    }
    assert two.metadata["zip"] == "12345"
    assert two.metadata["name"] == "Line\nbreak"
    assert one.text == "name: Ann, B\nzip: 007\nday: 2024-01-02"
    assert (one.row, two.row, one.type) == (1, 2, "csv")


def test_equal_rows_under_other_headers_are_other_records(read_bytes):
    (one,) = read_bytes("a.csv", b"item,size\nbox,5\n")
    (two,) = read_bytes("b.csv", b"name,age\nbox,5\n")
    (same,) = read_bytes("c.csv", b"item,size\r\nbox,5\r\n")
    assert one.digest != two.digest
    assert one.text == same.text


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_delimiters(read_bytes, delimiter, name):
    rows = [["title", "text", "n"], ["A", "Words, and; more", "1"], ["B", "x", "2"]]
    quoted = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows)
    one, two = read_bytes(name, quoted.encode())
    assert (one.title, one.text, one.metadata) == ("A", "Words, and; more", {"n": 1})
    assert two.row == 2


def test_a_table_without_a_header(read_bytes):
    documents = read_bytes("t.csv", b"1,Ann\n2,Bob\n3,Cy\n")
    assert [d.metadata["column_2"] for d in documents] == ["Ann", "Bob", "Cy"]
    assert "no header row" in documents[0].notes[0].message


def test_ragged_and_empty_rows(read_bytes):
    documents = read_bytes("t.csv", b"text,b\none\n\n,,\ntwo,2,extra\n")
    assert [d.text for d in documents] == ["one", "two"]
    assert documents[1].metadata["column_3"] == "extra"


def test_a_quote_that_is_never_closed_costs_one_row(read_bytes):
    rows = b"".join(b"row %d,x\n" % i for i in range(3000))
    documents = read_bytes("t.csv", b'text,b\n"open,1\n' + rows)
    assert len(documents) == 3001
    assert documents[-1].text == "row 2999"


def test_a_record_over_the_limit_is_a_note(read_bytes):
    big = b'{"text": "' + b"x" * 5000 + b'"}\n'
    documents = read_bytes(
        "c.jsonl", b'{"text": "a"}\n' + big + b'{"text": "b"}\n', max_record_bytes=1000
    )
    assert [d.text for d in documents] == ["a", "b"]
    messages = [note.message for d in documents for note in d.notes]
    assert messages == ["row 2 was not read: longer than ingest.max_record_bytes"]


@pytest.mark.parametrize("name", ["big.csv", "big.jsonl"])
def test_memory_stays_flat(tmp_path, name):
    path = tmp_path / name
    with path.open("w") as handle:
        if name.endswith("csv"):
            handle.write("text,n\n")
        for i in range(60_000):
            words = "many words in this row " * 4
            handle.write(
                f"{words},{i}\n" if name.endswith("csv") else json.dumps({"text": words}) + "\n"
            )
    assert path.stat().st_size > 5_000_000
    tracemalloc.start()
    for _ in itertools.islice(read(str(path), IngestOptions(max_file_bytes=1000)), 3000):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25_000_000


def test_options_are_checked():
    assert IngestOptions.from_table({"text_columns": ["a"]}).text_columns == ("a",)
    for table in (
        {"chunk_token": 5},
        {"max_pages": 0},
        {"max_pages": "5"},
        {"ocr": "maybe"},
        {"overlap_tokens": 999},
    ):
        with pytest.raises(ConfigError):
            IngestOptions.from_table(table)
