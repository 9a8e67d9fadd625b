"""Sentences in many scripts, and what must not end one."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.pipeline.ingest.sentences import sentences


def cut(text):
    return [text[a:b] for a, b in sentences(text)]


@pytest.mark.parametrize(
    "parts",
    [
        ["Dr. Smith et al. found 3.5 mm (Fig. 2).", "It was by J. R. Tolkien.", "The end."],
        ['He said "Is it?" and left.', "U.S. Government acts.", "In the U.S.", "The law."],
        ["What?!", "Yes!!!", "Well... maybe.", "OK\u2026", "Next."],
        ["See no. 5 on p. 3, e.g. this one, i.e. that.", "No.", "It isn't."],
        ["Version 2.0.1 of www.example.org is out.", "C. elegans, approx. 5 mg."],
        ["z.B. das ist gut.", "Nr. 7 fehlt, bzw. Dr. M\u00fcller.", "Und das."],
        ["Vitamin C.", "The dose was given at 3 p.m. on Monday."],
    ],
)
def test_latin(parts):
    assert cut(" ".join(parts)) == parts


@pytest.mark.parametrize(
    "parts",
    [
        ["吾輩は猫である。", "名前はまだ無い。", "「どこ？」", "と聞いた"],
        ["他来了！", "你呢？", "好。"],
        ["यह एक है।", "दूसरा है।"],
        ["هل هذا؟", "نعم۔", "جيد."],
        ["Это первое.", "А это, т.е. второе."],
    ],
)
def test_other_scripts(parts):
    assert cut("".join(parts) if parts[0][-1] in "。！" else " ".join(parts)) == parts


def test_thai_is_cut_at_spaces_of_long_phrases():
    text = "สวัสดีครับผมชื่อสมชายและผมมาจากกรุงเทพมหานคร วันนี้อากาศดีมากจริงๆ ครับ"
    assert cut(text)[0].endswith("กรุงเทพมหานคร")


def test_list_numbers_and_empty_lines():
    assert cut("1. First one\n2. Second one. More\n\nNext") == [
        "1. First one\n2. Second one.",
        "More",
        "Next",
    ]


@given(st.text())
def test_all_that_is_not_space_is_in_exactly_one_sentence(text):
    spans = sentences(text)
    assert all(a < b for a, b in spans)
    assert all(x[1] <= y[0] for x, y in itertools.pairwise(spans))
    inside = "".join(text[a:b] for a, b in spans)
    assert "".join(inside.split()) == "".join(text.split())
    assert all(text[a:b].strip() == text[a:b] for a, b in spans)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 500_000,
        "." * 500_000,
        ". " * 250_000,
        "A. " * 150_000,
        "。" * 300_000,
        "\n" * 500_000,
        '."' * 200_000,
        "ก " * 200_000,
    ],
)
def test_time_grows_with_the_text_only(text):
    start = time.process_time()
    sentences(text)
    assert time.process_time() - start < 20
