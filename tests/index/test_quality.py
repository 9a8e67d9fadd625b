"""Passage quality: scored without labels, skipped by dense search, never deleted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.index import quality
from foveate.index.quality import rate, score, worst
from foveate.pipeline import config
from foveate.pipeline.errors import ConfigError, CorruptIndex
from foveate.pipeline.testing import HashedWords

PROSE = (
    "The aspect ratio of a wing is limited by its weight, since a longer spar bends more under the "
    "same load and has to be made thicker, which costs more than the lower drag brings in."
)
POOR = ("12 | 44 | 9 | 0.3 | 17", "ok", "again and again and again and again and again and again")


def test_prose_is_better_than_figures_scraps_and_repeats():
    prose, *poor = score([PROSE, *POOR])
    assert prose > 0.9
    assert all(value < prose for value in poor)


def test_equal_texts_tie_and_lines_of_many_passages_count_for_nothing():
    menu = "Home\nProducts\nContact us\nAll rights reserved by the company and its partners"
    scores = score([f"{menu}\n{i}" for i in range(5)] + [PROSE, PROSE])
    assert scores[-1] == scores[-2]
    assert (scores[:5] < 0.5).all()


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)
def test_a_larger_share_only_skips_more_and_ties_stay_together(values, a, b):
    ids = np.arange(10, 10 + len(values), dtype=np.int64)
    scores = np.asarray(values, dtype=np.float32)
    few, many = sorted((a, b))
    small, large = worst(ids, scores, few), worst(ids, scores, many)
    assert set(small) <= set(large)
    assert len(large) <= many * len(ids)
    kept = set(ids) - set(large)
    assert not {scores[i - 10] for i in large} & {scores[i - 10] for i in kept}


def test_no_share_skips_nothing_and_all_of_it_is_refused():
    ids, scores = np.arange(3), np.asarray([0.1, 0.2, 0.3], dtype=np.float32)
    assert not len(worst(ids, scores, 0.0))
    with pytest.raises(ConfigError, match=r"0\.\.0\.9"):
        worst(ids, scores, 1.0)


@pytest.fixture
def engine(tmp_path):
    rows = [PROSE, *POOR, "Bread is baked in a hot oven until its crust is brown and hard."]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    settings = config.load("offline", overrides={"encoders.image.use": "none"})
    with foveate.open(
        tmp_path / "x.fov", create=True, config=settings, encoders={"text": HashedWords()}
    ) as engine:
        engine.add(corpus)
        yield engine


def texts(engine, query, mode):
    return {h.passage.text for h in engine.search(query, k=10, mode=mode, collapse=False)}


def test_dense_search_skips_the_worst_and_words_still_find_them(engine):
    ids, scores = rate(engine.index)
    before = texts(engine, "again", "dense")
    engine.index.skipped.put(worst(ids, scores, 0.5).tolist())
    after = texts(engine, "again", "dense")
    assert after < before
    assert PROSE in after
    assert any("again" in text for text in texts(engine, "again", "words"))
    engine.index.skipped.put(())
    assert texts(engine, "again", "dense") == before
    assert not (engine.path / quality.FILE).exists()


def test_nothing_skipped_gives_the_same_results(engine):
    before = [(h.passage.id, h.score) for h in engine.search("wing weight", k=5)]
    ids, scores = rate(engine.index)
    engine.index.skipped.put(worst(ids, scores, 0.0).tolist())
    assert [(h.passage.id, h.score) for h in engine.search("wing weight", k=5)] == before


def test_another_process_sees_what_is_skipped_and_new_passages_are_not(engine, tmp_path):
    ids, _ = rate(engine.index)
    engine.index.skipped.put(ids.tolist())
    with foveate.open(engine.path, encoders={"text": HashedWords()}) as other:
        assert texts(other, "wing", "dense") == set()
        new = tmp_path / "new.txt"
        new.write_text("A new wing was built in spring.")
        other.add(new)
        assert len(texts(other, "wing", "dense")) == 1


def test_a_damaged_file_is_named(engine):
    (engine.path / quality.FILE).write_bytes(b"no array")
    with pytest.raises(CorruptIndex, match=r"skipped\.npy"):
        engine.search("wing", mode="dense")
