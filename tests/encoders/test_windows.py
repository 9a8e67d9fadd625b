from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foveate.encoders.minilm import pack
from foveate.encoders.windows import even_bounds, merge_windows, split_text, split_windows


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 700))
def test_packs_hold_every_row_once_within_the_budget(lengths, budget) -> None:
    packs = list(pack(lengths, budget))
    assert sorted(row for rows in packs for row in rows) == list(range(len(lengths)))
    for rows in packs:
        assert len(rows) == 1 or sum(lengths[row] for row in rows) <= budget
    order = [lengths[row] for rows in packs for row in rows]
    assert order == sorted(order, reverse=True)


@given(st.integers(0, 2000), st.integers(1, 300))
def test_windows_are_even_and_cover_everything(n_tokens, limit) -> None:
    windows = split_windows(list(range(n_tokens)), limit)
    assert [token for window in windows for token in window] == list(range(n_tokens))
    sizes = [len(window) for window in windows]
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1
    assert len(even_bounds(n_tokens, limit)) == max(1, -(-n_tokens // limit))


def test_a_text_is_cut_between_tokens() -> None:
    spans = np.array([[0, 3], [4, 7], [8, 13], [14, 18], [19, 23]], dtype=np.int32)
    text = "one two three four five."
    assert split_text(text, spans, 5) == [(text, 5)]
    assert split_text(text, spans, 3) == [("one two", 2), ("three four five", 3)]


def test_merging_weighs_windows_by_their_tokens() -> None:
    vectors = np.array([[1, 0], [0, 1], [0, 1]], dtype=np.float32)
    merged = merge_windows(vectors, [0, 0, 1], [3, 1, 0], 2)
    np.testing.assert_allclose(merged, [[3 / 10**0.5, 1 / 10**0.5], [0, 1]], rtol=1e-6)
