from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from foveate.pipeline.evaluate.journal import Journal
from foveate.pipeline.evaluate.remembered import Foreseen, Remembered
from foveate.pipeline.testing import HashedWords


class Counting(HashedWords):
    """An encoder that notes what it is asked to encode."""

    def __init__(self, dim=64):
        super().__init__(dim=dim)
        self.seen = []
        self.asked = []

    def encode(self, inputs, *, progress=None):
        self.seen.extend(inputs)
        return super().encode(inputs, progress=progress)

    def encode_queries(self, queries):
        self.asked.append(list(queries))
        return super().encode_queries(queries)


TEXTS = ["red apples", "green pears", "red apples", ""]


def test_a_text_is_encoded_once_whoever_asks(tmp_path):
    first = Counting()
    want = HashedWords(dim=64).encode(TEXTS)
    np.testing.assert_array_equal(Remembered(first, tmp_path).encode(TEXTS), want)
    assert first.seen == ["red apples", "green pears", ""]
    second = Counting()
    again = Remembered(second, tmp_path)
    np.testing.assert_array_equal(again.encode([*TEXTS, "blue plums"])[:4], want)
    assert second.seen == ["blue plums"]
    assert again.n_found == 3
    assert again.tower == second.tower


def test_another_tower_has_its_own_vectors(tmp_path):
    Remembered(Counting(), tmp_path).encode(TEXTS)
    other = Counting(dim=32)
    assert Remembered(other, tmp_path).encode(TEXTS).shape == (4, 32)
    assert len(other.seen) == 3


def test_pictures_and_nothing_pass_through(tmp_path):
    class Pictures(HashedWords):
        def encode(self, inputs, *, progress=None):
            return np.full((len(inputs), 2), 0.5, dtype=np.float32)

    encoder = Remembered(Pictures(dim=2), tmp_path)
    assert encoder.encode([Image.new("RGB", (2, 2))]).shape == (1, 2)
    assert encoder.encode([]).shape == (0, 2)
    assert not list(tmp_path.iterdir())


def test_queries_to_come_are_encoded_together():
    inner = Counting()
    encoder = Foreseen(inner, ["a b", "c d", "a b"])
    encoder.encode_queries(["unforeseen"])
    assert inner.asked == [["unforeseen"]]
    for query in ("c d", "a b", "c d"):
        np.testing.assert_array_equal(
            encoder.encode_queries([query]), HashedWords(dim=64).encode_queries([query])
        )
    assert inner.asked[1:] == [["a b", "c d"]]


def test_a_journal_survives_a_torn_line(tmp_path):
    path = tmp_path / "deep" / "x.jsonl"
    journal = Journal(path)
    journal.put("a", {"v": 1})
    with path.open("a") as handle:
        handle.write('["b", {"v"')
    after = Journal(path)
    assert after.values == {"a": {"v": 1}}
    after.put("c", 3)
    assert Journal(path).values == {"a": {"v": 1}, "c": 3}
    assert Journal(path, fresh=True).values == {}
    assert not path.exists()
    Journal(None).put("a", 1)


def test_an_ended_journal_is_gone(tmp_path):
    journal = Journal(tmp_path / "x.jsonl")
    journal.put("a", 1)
    journal.end()
    journal.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.models
def test_minilm_through_its_memory_is_minilm(tmp_path):
    from foveate.pipeline import registry

    minilm = registry.find("encoder", "minilm")()
    Remembered(minilm, tmp_path).encode(TEXTS)
    kept = Remembered(minilm, tmp_path).encode(TEXTS)
    assert (kept * minilm.encode(TEXTS)).sum(axis=1).min() > 0.9999
