"""Citations: every quote is verbatim, every marker is real, what is not supported goes out."""

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.pipeline import cite, evidence, terms
from foveate.pipeline.testing import HashedWords
from foveate.pipeline.types import Box, Hit, Locator, Passage, Source


def hit_of(text, *, title="", number=0, start=0, whole=None, score=0.9, name="notes.txt"):
    whole = text if whole is None else whole
    digest = hashlib.sha256(f"{title}{whole}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    source = Source(digest, (f"/d/{name}",), "text/plain", "text", len(whole), 0.0, title=title)
    span = (start, start + len(text))
    return Hit(Passage(number + 1, number, source, "text", text, Locator(span=span), title), score)


def gathered(question, *hits, texts=None):
    texts = texts or {h.passage.source.id: h.passage.text for h in hits}
    return evidence.gather(question, hits, texts=texts.__getitem__, encoder=HashedWords())


def cited(answer, found, **options):
    everything = range(len(found.sentences))
    return cite.cite(answer, found, everything, encoder=HashedWords(), **options)


MONACO = hit_of(
    "Lorenzo Monaco was born about 1370. He was influenced by Giotto and Spinello Aretino.",
    title="Lorenzo Monaco",
)
BRIDGE = hit_of("The bridge was opened in 1932. It is 503 metres long.", title="Harbour Bridge")


def test_each_sentence_is_followed_by_the_marker_of_its_support():
    found = gathered("Who influenced Lorenzo Monaco and how long is the bridge?", MONACO, BRIDGE)
    got = cited("Giotto influenced Lorenzo Monaco. The bridge is 503 metres long.", found)
    assert got.text == "Giotto influenced Lorenzo Monaco. [1] The bridge is 503 metres long. [2]"
    assert [c.quote for c in got.citations] == [
        "He was influenced by Giotto and Spinello Aretino.",
        "It is 503 metres long.",
    ]
    assert [got.text[slice(*c.sentence)] for c in got.citations] == [
        "Giotto influenced Lorenzo Monaco.",
        "The bridge is 503 metres long.",
    ]


def test_markers_that_the_model_invents_are_removed_and_counted():
    hits = [hit_of(f"Fact {w} is that {w} lives here.", title=w) for w in ("Ann", "Bo", "Cy", "Di")]
    found = gathered("Who lives here?", *hits)
    got = cited("Ann lives here [5]. Bo lives here [7].", found)
    assert got.removed == 2
    assert "[5]" not in got.text
    assert "[7]" not in got.text
    assert {int(n) for n in re.findall(r"\[(\d+)\]", got.text)} == {c.marker for c in got.citations}


@pytest.mark.parametrize(
    ("claim", "lacks"),
    [
        ("The bridge was opened in 1933.", "1933"),
        ("The bridge was opened by Queen Mary in 1932.", "mary"),
        ("It is 504 metres long.", "504"),
    ],
)
def test_a_number_or_name_that_no_passage_holds_drops_the_sentence(claim, lacks):
    got = cited(claim, gathered("When was the bridge opened?", BRIDGE))
    assert got.text == ""
    assert not got.citations
    assert lacks in got.dropped[0].reason
    assert got.dropped[0].by == "cite"


def test_an_unsupported_sentence_may_be_kept_with_a_mark_and_without_a_citation():
    found = gathered("When was the bridge opened?", BRIDGE)
    got = cited("It opened in 1932. Zebras graze under it.", found, keep_unsupported=True)
    assert got.text == "It opened in 1932. [1] Zebras graze under it. (not supported)"
    assert len(got.citations) == 1


def test_one_sentence_that_two_passages_support_cites_both():
    a = hit_of("Ada Lovelace wrote the notes in 1843.", title="Notes")
    b = hit_of("The engine was designed by Charles Babbage.", title="Engine")
    found = gathered("Who wrote the notes and who designed the engine?", a, b)
    got = cited("Ada Lovelace wrote the notes and Charles Babbage designed the engine.", found)
    assert got.text.endswith("[1] [2]")
    assert {c.passage.id for c in got.citations} == {1}
    assert {c.quote for c in got.citations} == {a.passage.text, b.passage.text}


def test_equal_passages_of_one_file_are_cited_at_their_own_places():
    text = "The valve opens at 40 bar."
    whole = f"{text}\n\nAnother chapter.\n\n{text}"
    hits = [
        hit_of(text, whole=whole, number=0, start=0),
        hit_of(text, whole=whole, number=2, start=whole.rindex(text)),
    ]
    found = gathered("When does the valve open?", *hits, texts={hits[0].passage.source.id: whole})
    got = cite.quote([0, 1], found)
    assert [c.span for c in got.citations] == [(0, 26), (46, 72)]
    assert [c.marker for c in got.citations] == [1, 2]
    assert all(whole[slice(*c.span)] == c.quote == text for c in got.citations)


def test_brackets_of_a_document_are_no_markers():
    found = gathered("What is said?", hit_of("It is said in [99] that a[0] is first [1, 2]."))
    got = cite.quote([0], found)
    assert re.findall(r"\[[^\]]*\]", got.text) == ["[1]"]
    assert got.citations[0].quote == "It is said in [99] that a[0] is first [1, 2]."


def test_boxes_of_the_cited_span_are_asked_for():
    asked = []

    def boxes(source_id, span):
        asked.append((source_id, span))
        return [(3, Box(0.1, 0.1, 0.5, 0.2)), (4, Box(0.1, 0.0, 0.2, 0.1))]

    found = gathered("When was it opened?", BRIDGE)
    got = cite.quote([0], found, boxes)
    assert asked == [(BRIDGE.passage.source.id, (0, 30))]
    assert (got.citations[0].page, got.citations[0].boxes) == (3, (Box(0.1, 0.1, 0.5, 0.2),))


def test_an_answer_that_denies_what_the_passage_says_has_less_support():
    found = gathered("Is the valve open?", hit_of("The valve is open at night."))
    yes, no = (
        cite.worth(cite.compare(text, found.sentences[0], found.question, None))
        for text in ("The valve is open at night.", "The valve is not open at night.")
    )
    assert no < yes - 0.1


def test_numbers_agree_across_ways_of_writing_them():
    assert terms.numbers("1,400 and 3.5 and three") == {"1400", "3.5", "3"}
    assert terms.names("The engine of Charles Babbage. It ran.") == {"charles", "babbage"}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_answer_over_any_text_resolves(document, answer):
    hit = hit_of(document)
    found = gathered("what is it", hit)
    for got in (cited(answer, found), cite.quote(range(len(found.sentences)), found)):
        for c in got.citations:
            assert document[slice(*c.span)] == c.quote
        markers = {int(n) for n in re.findall(r"\[(\d+)\]", got.text)}
        assert markers == {c.marker for c in got.citations}


def test_attention_decides_between_sentences_that_read_alike():
    import numpy as np

    from foveate.pipeline.looks import Looks

    twins = [
        hit_of("The valve is open.", title=t, number=i) for i, t in enumerate(("Left", "Right"))
    ]
    found = gathered("Is the valve open?", *twins)
    said = "The valve is open."
    for looked in (0, 1):
        on = {i: np.full(4, 0.5 if i == looked else 0.1, np.float32) for i in (0, 1)}
        got = cited(said, found, attention=Looks(said, np.array([4, 9, 12, 18]), on))
        assert got.citations[0].passage is twins[looked].passage
        assert got.claims[0].parts["looked"] == 1.0


def test_attention_cannot_make_a_claim_true():
    import numpy as np

    from foveate.pipeline.looks import Looks

    found = gathered("Who opened the bridge?", BRIDGE)
    said = "The bridge was opened by Jane Doe."
    on = {i: np.ones(1, np.float32) for i in range(len(found.sentences))}
    got = cited(said, found, attention=Looks(said, np.array([len(said)]), on))
    assert not got.citations
    assert "doe" in got.dropped[0].reason
