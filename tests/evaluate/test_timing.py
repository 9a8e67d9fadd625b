from __future__ import annotations

import csv

import pytest

from foveate.pipeline.evaluate.timing import Timing, append_csv, hardware, interleave, ratio


def test_rounds_are_interleaved_and_alternate():
    calls = []
    found = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=1
    )
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert len(found["a"].seconds) == 3


def test_ratio_is_taken_round_by_round():
    slow, fast = Timing("s", (2.0, 40.0, 6.0)), Timing("f", (1.0, 10.0, 3.0))
    median, low, high = ratio(slow, fast)
    assert median == 2.0
    assert (low, high) == (2.0, pytest.approx(3.2))


def test_quantiles_interpolate():
    timing = Timing("t", (4.0, 1.0, 3.0, 2.0))
    assert timing.median == 2.5
    assert timing.quantile(0.0) == 1.0
    assert timing.quantile(1.0) == 4.0
    assert timing.quantile(0.5) == timing.median


def test_csv_keeps_what_is_there_and_takes_new_columns(tmp_path):
    path = tmp_path / "deep" / "bench.csv"
    append_csv(path, [{"what": "encode", "seconds": 1.5}])
    append_csv(path, [{"what": "search", "seconds": 0.5, "note": "a, b"}])
    with path.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [r["what"] for r in rows] == ["encode", "search"]
    assert rows[0]["note"] == ""
    assert rows[1]["note"] == "a, b"


def test_hardware_says_what_it_is():
    assert {"system", "python", "processor", "cores"} <= set(hardware())
