import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.testing import hit_of, lend
from foveate.pipeline.types import Context, Kept
from foveate.rerank.order import profile
from foveate.rerank.order.profile import AttnRank, load, save, seats, shares_of


def context_of(n):
    kept = [Kept(hit_of(f"t{i}", id=i, score=1 / i), ((0, 2),)) for i in range(1, n + 1)]
    return Context(tuple(kept), 0)


def ids(context):
    return [k.hit.passage.id for k in context.kept]


def written(tmp_path, profiles):
    save(tmp_path / "p.json", profiles, {"reader": "x"})
    return tmp_path / "p.json"


def test_a_rising_profile_puts_the_best_last(tmp_path):
    place = written(tmp_path, {4: np.asarray([0.1, 0.2, 0.3, 0.4])})
    assert ids(AttnRank(lend(), profile=place).order("q", context_of(4))) == [4, 3, 2, 1]


def test_a_basin_puts_the_best_at_the_ends(tmp_path):
    place = written(tmp_path, {5: np.asarray([0.4, 0.1, 0.05, 0.15, 0.3])})
    assert ids(AttnRank(lend(), profile=place).order("q", context_of(5))) == [1, 4, 5, 3, 2]


def test_an_even_profile_keeps_the_ranks(tmp_path):
    place = written(tmp_path, {6: np.full(6, 1 / 6)})
    assert ids(AttnRank(lend(), profile=place).order("q", context_of(6))) == [1, 2, 3, 4, 5, 6]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_seats_are_a_permutation_and_better_ranks_get_no_less(shares):
    ranks = seats(np.asarray(shares, dtype=np.float32))
    assert sorted(ranks) == list(range(len(shares)))
    given_to = {rank: shares[place] for place, rank in enumerate(ranks)}
    assert [given_to[r] for r in range(len(shares))] == sorted(shares, reverse=True)


def test_another_number_of_places_takes_the_nearest_profile_stretched():
    profiles = {3: np.asarray([0.5, 0.2, 0.3], dtype=np.float32)}
    shares = shares_of(profiles, 5)
    assert shares.sum() == pytest.approx(1)
    assert shares.argmax() == 0
    assert shares.argmin() == 2
    assert (shares_of(profiles, 3) == profiles[3]).all()


def test_a_file_that_is_no_profile_is_refused(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps({"profiles": {"3": [0.1, 0.9]}}))
    with pytest.raises(ConfigError, match="as many shares as places"):
        load(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="cannot read the profile"):
        load(tmp_path / "none.json")


def test_an_unknown_reader_is_told_to_measure(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "saved_place", lambda name: tmp_path / "none.json")

    class Reader:
        name = "no-such-reader"

    with pytest.raises(ConfigError, match="foveate fit profile"):
        AttnRank(lend(reader=Reader)).order("q", context_of(3))


def test_the_profile_that_ships_is_a_basin():
    shipped = load(profile.shipped_place("smollm2-135m-instruct"))
    for n, shares in shipped.items():
        assert shares.sum() == pytest.approx(1, abs=1e-3)
        assert {int(i) for i in np.argsort(shares)[-2:]} == {0, n - 1}
