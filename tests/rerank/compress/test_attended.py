"""Compressors over the attention scan, on a scan whose attention is known."""

import json

import numpy as np
import pytest

from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.testing import (
    CompressorContract,
    check_context,
    count_words,
    hit_of,
    lend,
)
from foveate.rerank import attention
from foveate.rerank.attention import Look
from foveate.rerank.compress.attended import Attended
from foveate.rerank.compress.cafe import Cafe, shares, union
from foveate.rerank.compress.infini import InfiniRetri, carry
from foveate.rerank.compress.sentinel import Probe, Sentinel, features, fit
from foveate.rerank.compress.units import cut

N_HEADS = 4
NEEDLE = "The secret word of the wing is flutter."


class Words:
    """A scan over words: those of the question get all attention, by the head's number."""

    def __init__(self, question_share=0.9):
        self.share = question_share

    def look(self, query, passages, *, per_head=False):
        texts = [p if isinstance(p, str) else p.text for p in passages]
        asked = set(query.lower().strip("?").split())
        spans, heads = [], []
        for text in texts:
            places, at = [], 0
            for word in text.split():
                at = text.index(word, at)
                places.append((at, at + len(word)))
                at += len(word)
            spans.append(np.asarray(places, dtype=np.int32).reshape(-1, 2))
            held = [word.lower().strip(".,") in asked for word in text.split()]
            near = np.asarray(held, dtype=np.float32)
            heads.append(np.stack([near * (h + 1) + 0.01 for h in range(N_HEADS)], 1))
        total = sum(h.sum(0) for h in heads) if heads else np.ones(N_HEADS)
        heads = [(h / total).astype(np.float32) for h in heads]
        rows = tuple(h.sum(1) for h in heads)
        by_head = np.asarray([h.sum(0) for h in heads], dtype=np.float32).reshape(-1, N_HEADS)
        ids = tuple(np.zeros(len(r), dtype=np.int64) for r in rows)
        return Look(
            np.asarray([r.sum() for r in rows], dtype=np.float32),
            rows,
            tuple(spans),
            ids,
            by_head,
            tuple(heads) if per_head else None,
            np.ones(len(rows), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )


class Reader:
    name = "words"

    class model:
        class config:
            num_hidden_layers = 2
            num_attention_heads = N_HEADS

    def count_tokens(self, text):
        return count_words(text)


@pytest.fixture(autouse=True)
def scan(monkeypatch):
    monkeypatch.setattr(attention, "shared_scan", lambda resources, **options: Words())


def lent():
    return lend(reader=Reader)


def probe():
    ones = np.ones(N_HEADS, dtype=np.float32)
    return Probe("words", 0 * ones, ones, ones, 0.0)


def sentinel():
    made = Sentinel(lent())
    made._probe = probe()
    return made


class TestAttended(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return Attended(lent())


class TestCafe(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return Cafe(lent())


class TestInfiniRetri(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return InfiniRetri(lent(), window_tokens=60, carry_tokens=10)


class TestSentinel(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return sentinel()


def haystack(n=60, at=17):
    other = [f"Sentence {i} speaks of cooking pasta with oil." for i in range(n)]
    return " ".join([*other[:at], NEEDLE, *other[at:]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Attended(lent()),
        lambda: Cafe(lent()),
        lambda: InfiniRetri(lent(), window_tokens=60, carry_tokens=10),
        sentinel,
    ],
    ids=["attention", "cafe", "infini", "sentinel"],
)
@pytest.mark.parametrize("at", [0, 30, 60])
def test_the_sentence_that_is_looked_at_is_kept_wherever_it_stands(make, at):
    hit = hit_of(haystack(at=at))
    context = make().compress("secret word of the wing", [hit], 14, count_tokens=count_words)
    check_context(context, [hit], 14, count_words)
    assert NEEDLE in " ".join(hit.passage.text[a:b] for k in context.kept for a, b in k.spans)


def test_sentinel_features_weighted_by_length_spread_one_over_the_passages():
    hits = [hit_of(haystack(12), id=1), hit_of("Birds glide. They know it.", id=2)]
    found = cut(hits, lend().sentences)
    seen = np.exp(features(lent(), "secret word", hits, found))
    lengths = np.asarray([len(unit.text.split()) for unit in found])
    shares_of_heads = (seen * lengths[:, None]).sum(0) / lengths.sum()
    np.testing.assert_allclose(shares_of_heads, 1, rtol=1e-4)


def test_a_probe_without_weights_says_one_half_and_selection_follows_the_order():
    zero = np.zeros(N_HEADS, dtype=np.float32)
    made = Sentinel(lent())
    made._probe = Probe("words", zero, zero + 1, zero, 0.0)
    assert (made.probe.chances(np.ones((3, N_HEADS), dtype=np.float32)) == 0.5).all()
    hit = hit_of(haystack(20))
    context = made.compress("secret", [hit], 18, count_tokens=count_words)
    assert context.kept[0].spans[0][0] == 0


def test_sentinel_ranks_sentences_alike_in_any_order():
    texts = [f"Sentence {i} about pasta." for i in range(6)]
    texts[2] = NEEDLE
    for order in (texts, texts[::-1]):
        hits = [hit_of(text, id=i) for i, text in enumerate(order, start=1)]
        found = cut(hits, lend().sentences)
        chances = probe().chances(features(lent(), "secret word of the wing", hits, found))
        assert found[int(chances.argmax())].text == NEEDLE


def test_all_passages_of_every_head_filter_nothing():
    scores = np.random.default_rng(0).random((7, N_HEADS)).astype(np.float32)
    assert sorted(union(shares(scores), N_HEADS, 7)) == list(range(7))


def test_the_union_holds_each_heads_best_and_the_best_stands_last():
    scores = np.asarray([[0.9, 0.0], [0.0, 0.8], [0.1, 0.2], [0.05, 0.1]], dtype=np.float32)
    assert union(shares(scores), 2, 1) == [1, 0]
    assert union(shares(scores), 1, 1) == [0]


def test_what_is_carried_is_bounded_and_a_wide_window_drops_nothing():
    scores = [np.full(5, i, dtype=np.float32) for i in range(10)]
    assert sum(carry(scores, 12)) == 3
    assert carry(scores, 12)[-3:] == [True, True, True]
    assert carry(scores, 50) == [True] * 10


def test_a_text_beyond_the_window_is_read_in_windows_and_said_so():
    hit = hit_of(haystack(200))
    made = InfiniRetri(lent(), window_tokens=100, carry_tokens=12)
    context = made.compress("secret word of the wing", [hit], 30, count_tokens=count_words)
    assert context.trace["compress"]["windows"] > 10
    assert context.trace["compress"]["carried"] <= 12


def test_a_fitted_probe_finds_the_head_that_marks_the_sentence_and_is_saved(tmp_path):
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(20, N_HEADS)).astype(np.float32) for _ in range(30)]
    made = fit("words", rows, [x[:, 2] > 1 for x in rows])
    assert made.weights.argmax() == 2
    asked = rng.normal(size=(50, N_HEADS)).astype(np.float32)
    assert ((made.chances(asked) > 0.5) == (asked[:, 2] > 1)).mean() > 0.8
    place = tmp_path / "p.json"
    place.write_text(json.dumps(made.as_dict()))
    loaded = Sentinel(lent(), probe=place).probe
    np.testing.assert_allclose(loaded.chances(asked), made.chances(asked), atol=1e-3)


def test_a_probe_is_asked_for_and_one_of_another_reader_is_refused(tmp_path):
    hits = [hit_of(haystack(5))]
    with pytest.raises(ConfigError, match="foveate fit sentinel"):
        Sentinel(lent()).compress("a", hits, 5, count_tokens=count_words)
    place = tmp_path / "p.json"
    place.write_text(json.dumps({**probe().as_dict(), "reader": "other"}))
    with pytest.raises(ModelError, match="'other'"):
        Sentinel(lent(), probe=place).compress("a", hits, 5, count_tokens=count_words)


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="cafe"):
        Cafe(lent(), coarse_heads=0)
    with pytest.raises(ConfigError, match="infini"):
        InfiniRetri(lent(), carry_tokens=0)
