"""The compressor 'clauses': chances, coverage of possible answers, its weights file."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.pipeline.errors import ModelError
from foveate.pipeline.testing import (
    CompressorContract,
    check_context,
    count_words,
    hit_of,
    lend,
)
from foveate.rerank.compress import features, network
from foveate.rerank.compress.clausal import Clausal, chances_of, read_hits
from foveate.rerank.compress.packing import Packing

FILLER = "Pasta is boiled in salted water, drained in a sieve, and served with oil by cooks."


def kept_text(context):
    found = []
    for one in context.kept:
        base = one.hit.passage.locator.span[0] if one.hit.passage.locator.span else 0
        found += [one.hit.passage.text[a - base : b - base] for a, b in one.spans]
    return "\n".join(found)


class TestClausal(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return Clausal(lend())


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from("aB E.,\n|{}()1é日"), max_size=100), max_size=5),
    budget=st.integers(0, 60),
)
def test_the_budget_holds_whatever_the_texts(texts, budget):
    hits = [hit_of(text, id=i, title=text[:9]) for i, text in enumerate(texts, start=1)]
    for count in (count_words, len, lambda text: len(text) % 7 + 1):
        context = Clausal(lend()).compress("aB 1", hits, budget, count_tokens=count)
        check_context(context, hits, budget, count)


def test_the_answer_of_the_second_hop_is_kept_at_a_fifth():
    hits = [
        hit_of(f"Emma is a novel by Jane Austen. {FILLER * 4}", id=1, title="Emma"),
        hit_of(f"{FILLER * 6}", id=2, title="Pasta"),
        hit_of(
            f"Jane Austen was born in Steventon in 1775. {FILLER * 5}", id=3, title="Jane Austen"
        ),
        hit_of(f"{FILLER * 6}", id=4, title="Oil"),
    ]
    budget = sum(count_words(hit.passage.text) for hit in hits) // 5
    context = Clausal(lend()).compress(
        "When was the author of Emma born?", hits, budget, count_tokens=count_words
    )
    check_context(context, hits, budget, count_words)
    assert "1775" in kept_text(context)
    assert context.trace["compress"]["asks_for"] == "time"


def test_what_is_kept_already_makes_room_for_another_answer():
    text = "Ada Smith was there. Ada Smith was here. Bob Jones was there."
    hit = hit_of(text)
    lent = lend()
    read = read_hits(lent, "Who was it?", [hit])
    chances = np.asarray([1.0, 0.9, 0.8], dtype=np.float32)

    def kept(repeat):
        packing = Packing([hit], 10, count_words)
        Clausal(lent, repeat=repeat).fill(read, chances, packing)
        return kept_text(packing.context({}, {}))

    assert "Bob" not in kept(0.0)
    assert "Bob" in kept(0.9)


def test_whole_sentences_get_their_share_of_the_budget():
    text = "In 1936 the wing was made, after long trials by two brothers, in a shed near Graz."
    hits = [hit_of(text, id=1), hit_of(FILLER * 4, id=2, title="Pasta")]
    context = Clausal(lend(), whole=1.0).compress(
        "When was the wing made?", hits, 22, count_tokens=count_words
    )
    assert text in kept_text(context)


def test_chances_rise_with_the_scores_and_the_best_is_one():
    scores = np.asarray([-3.0, 2.0, 0.0], dtype=np.float32)
    chances = chances_of(scores)
    assert chances.max() == chances[1] == 1
    assert (np.argsort(chances) == np.argsort(scores)).all()
    assert chances_of(scores[:0]).shape == (0,)


def test_a_fit_finds_the_feature_that_marks_the_answer_and_is_saved_exactly(tmp_path):
    rng = np.random.default_rng(0)
    n = len(features.NAMES)
    rows, labels = [], []
    for _ in range(40):
        x = rng.normal(size=(30, n)).astype(np.float32)
        rows.append(x)
        labels.append(x[:, 5] == x[:, 5].max())
    made = network.fit(features.NAMES, rows, labels, n_members=2)
    asked = [rng.normal(size=(30, n)).astype(np.float32) for _ in range(40)]
    above = [float((made.scores(x) > made.scores(x)[x[:, 5].argmax()]).mean()) for x in asked]
    assert np.mean(above) < 0.2  # one half by chance
    again = network.fit(features.NAMES, rows, labels, n_members=2)
    np.testing.assert_array_equal(made.scores(asked[0]), again.scores(asked[0]))
    (tmp_path / "w.json").write_text(json.dumps(made.as_dict()))
    loaded = network.load(tmp_path / "w.json")
    np.testing.assert_allclose(loaded.scores(asked[0]), made.scores(asked[0]), atol=2e-3)


def test_weights_of_other_features_and_files_that_are_none_are_refused(tmp_path):
    place = tmp_path / "w.json"
    place.write_text("{}")
    with pytest.raises(ModelError, match="cannot read the compressor's weights"):
        network.load(place)
    table = network.load().as_dict()
    place.write_text(json.dumps({**table, "names": table["names"][::-1]}))
    with pytest.raises(ModelError, match="foveate fit clauses"):
        Clausal(lend(), weights=place).compress(
            "a", [hit_of("a b c d e f")], 2, count_tokens=count_words
        )
