from __future__ import annotations

import itertools

import numpy as np
import pytest

from foveate.pipeline.evaluate.compare import (
    bootstrap_interval,
    compare,
    differences,
    holm,
    randomisation_test,
)


def exact_p(a, b):
    d = np.asarray(b) - np.asarray(a)
    sums = [abs(np.dot(signs, d)) for signs in itertools.product((-1, 1), repeat=len(d))]
    return np.mean([s >= abs(d.sum()) - 1e-12 for s in sums])


def test_randomisation_agrees_with_all_sign_patterns():
    rng = np.random.default_rng(1)
    for shift in (0.0, 0.3, 1.0):
        a = rng.normal(size=10)
        b = a + rng.normal(shift, 0.5, size=10)
        assert randomisation_test(a, b) == pytest.approx(exact_p(a, b), abs=0.02)


def test_equal_sides_give_one_and_a_clear_gap_gives_little():
    a = np.linspace(0, 1, 40)
    assert randomisation_test(a, a) == 1.0
    assert randomisation_test([], []) == 1.0
    assert randomisation_test(a, a + 0.1) == pytest.approx(1 / 10_001)
    assert randomisation_test(a, a + 0.1) == randomisation_test(a + 0.1, a)


def test_p_is_uniform_when_nothing_differs():
    rng = np.random.default_rng(2)
    ps = [
        randomisation_test(rng.normal(size=30), rng.normal(size=30), n_draws=400)
        for _ in range(200)
    ]
    assert 0.02 <= np.mean(np.array(ps) < 0.1) <= 0.18


def test_bootstrap_is_seeded_and_covers_the_mean():
    values = np.random.default_rng(3).normal(5, 2, size=200)
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(200)
    assert low == pytest.approx(values.mean() - half, abs=0.05)
    assert high == pytest.approx(values.mean() + half, abs=0.05)
    assert np.isnan(bootstrap_interval([])).all()


def test_compare_takes_the_shared_queries():
    found = compare({"a": 0.0, "b": 1.0, "c": 0.5}, {"a": 1.0, "b": 1.0, "z": 9.0})
    assert (found.n, found.n_better, found.n_worse) == (2, 1, 0)
    assert found.difference == 0.5
    assert differences({"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.2}) == [("a", -0.5), ("b", 0.2)]


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
