"""Finding heads: planted ones come first, lists are saved and checked."""

import json

import numpy as np
import pytest

from foveate.pipeline.errors import ConfigError
from foveate.rerank import heads
from foveate.rerank.attention import AttentionScan
from foveate.rerank.heads import Labelled

GOLD = [[True, False, False, False], [False, False, True, True]]


def planted(head, n_heads=6):
    """Scores in which one head points at what answers and the others do not care."""
    rng = np.random.default_rng(0)
    found = []
    for gold in GOLD * 20:
        scores = rng.normal(size=(4, n_heads)).astype(np.float32) * 0.01
        scores[:, head] += np.array(gold) * 0.1
        found.append(scores)
    return found


@pytest.mark.parametrize("criterion", heads.CRITERIA)
def test_a_planted_head_is_first(criterion):
    ratings = heads.rate(planted(4), GOLD * 20, criterion)
    assert ratings.argmax() == 4
    assert heads.choose_best(ratings, (2, 3, 3), 1) == [(1, 1)]


def test_rank_and_contrast_by_hand():
    scores = [np.array([[0.3, 0.1], [0.2, 0.1], [0.1, 0.1]], dtype=np.float32)]
    gold = [[False, True, False]]
    ranked = heads.rate(scores, gold, "rank")
    assert ranked[0] == pytest.approx(1 / np.log2(3))
    # uniform attention: one right among three
    assert heads.rate(scores, gold, "contrast")[1] == pytest.approx(1 / 3)


def test_questions_that_tell_nothing_are_refused():
    with pytest.raises(ConfigError, match="no question"):
        heads.rate([np.zeros((2, 3), np.float32)], [[True, True]], "rank")
    with pytest.raises(ConfigError, match="unknown criterion"):
        heads.rate([np.zeros((2, 3), np.float32)], [[True, False]], "x")


def test_a_saved_list_is_read_and_used(reader, tmp_path):
    asked = Labelled("what do wings weigh?", ("wings are light", "the sun"), (True, False))
    (scores,) = heads.observe(reader, [asked])
    assert scores.shape == (2, 12)
    path = tmp_path / "deep" / "mine.json"
    heads.save_heads(path, reader, [(2, 1), (0, 3)], {"criterion": "rank"})
    assert json.loads(path.read_text())["criterion"] == "rank"
    assert AttentionScan(reader, heads=path).heads.pairs == ((0, 3), (2, 1))
    assert heads.find_heads("all", reader) is None


def test_lists_of_another_reader_and_bad_files_are_told(reader, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"reader": "big", "shape": [9, 9, 9], "heads": [[0, 0]]}))
    with pytest.raises(ConfigError, match="another shape"):
        heads.read_heads(path, reader)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="cannot read heads"):
        heads.read_heads(path, reader)


def test_the_users_own_list_goes_before_the_shipped_one(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "saved_place", lambda name: tmp_path / "own.json")
    monkeypatch.setattr(heads, "shipped_place", lambda name: tmp_path / "shipped.json")
    assert heads.find_heads(None, reader) is None
    heads.save_heads(tmp_path / "shipped.json", reader, [(1, 1)], {})
    assert heads.find_heads(None, reader) == [(1, 1)]
    heads.save_heads(tmp_path / "own.json", reader, [(0, 2)], {})
    assert heads.find_heads(None, reader) == [(0, 2)]
