"""CASES row 7: what PDF text and broken exports hold, and offsets through the cleaning."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.pipeline.ingest.clean import clean, clean_value

ANY = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("\r\n\u00ad\ufb01\ud83d\ude00")
)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a\ud83d\ude00b", "a\U0001f600b"),
        ("a\ud83db", "a\ufffdb"),
        ("nul\x00l", "null"),
        ("\ue000icon", "icon"),
        ("\uf0b7 item", "\u2022 item"),
        ("e\ufb03cient \ufb01sh \ufb05", "efficient fish st"),
        ("hy\u00adphen", "hyphen"),
        ("con\u00ad\n  tinue", "continue"),
        ("a\r\nb\rc\u2028d\x0be", "a\nb\nc\nd\ne"),
        ("page\x0cnext\ttab", "page\x0cnext\ttab"),
        ("\x1b[31mred\x7f\x9b", "[31mred"),
        ("\ufefbrest", "\u0644\u0627rest"),
        (
            "caf\u00e9 \u1e9b\u0323 x\u00b2 \u2460 \u200d",
            "caf\u00e9 \u1e9b\u0323 x\u00b2 \u2460 \u200d",
        ),
    ],
)
def test_what_becomes_of_it(raw, text):
    assert clean(raw)[0] == text


@given(ANY)
def test_nothing_unclean_is_left_and_cleaning_twice_changes_nothing(raw):
    text, _ = clean(raw)
    assert not any(unicodedata.category(c) in {"Cs", "Co"} for c in text)
    assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t\f" for c in text)
    assert clean(text)[0] == text
    text.encode("utf-8")


@given(ANY)
def test_offsets_are_monotone_and_keep_the_unchanged_characters(raw):
    text, offsets = clean(raw)
    moved = [offsets.cleaned(i) for i in range(len(raw) + 1)]
    assert moved == sorted(moved)
    assert (moved[0], moved[-1]) == (0, len(text))
    back = [offsets.original(i) for i in range(len(text) + 1)]
    assert back == sorted(back)
    assert all(0 <= i <= len(raw) for i in back)
    for i, c in enumerate(raw):
        if c.isascii() and c.isalnum():
            assert text[moved[i]] == c


def test_a_clean_text_is_the_same_object():
    text = "nothing to do \u00e9 \u4e2d\n" * 10
    assert clean(text)[0] is text


def test_metadata_is_json_that_any_database_holds():
    value = {"a\ud800": ["x\x00", float("nan"), 1 << 70, {"b": (1, None, True)}], "t": "\r\n"}
    assert clean_value(value) == {
        "a\ufffd": ["x", None, str(1 << 70), {"b": [1, None, True]}],
        "t": "\n",
    }
