"""What is timed is checked first: rerankers, compressors and kernels by their registered names."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import pytest
import torch

import foveate.rerank
import foveate.rerank.compress
from foveate import kernels
from foveate.pipeline.errors import UnknownComponent
from foveate.pipeline.evaluate import bench, kernel_cases, stage_benches
from foveate.pipeline.types import Context, Hit, Kept, Locator, Passage, Source


class AsFound:
    reads = frozenset({"text"})

    def __init__(self, resources):
        pass

    def rerank(self, query, hits, k):
        return [dataclasses.replace(h, score=1 / (i + 1)) for i, h in enumerate(hits)][:k]


class OfPictures(AsFound):
    reads = frozenset({"image"})


class Whole:
    """A compressor that keeps all, whatever the budget."""

    def __init__(self, resources):
        pass

    def compress(self, query, hits, budget_tokens, *, count_tokens):
        return Context(tuple(Kept(h, (h.passage.locator.span,)) for h in hits), 0)


@pytest.fixture
def stages(monkeypatch):
    module = ModuleType("timed_stages_of_a_test")
    module.AsFound, module.OfPictures, module.Whole = AsFound, OfPictures, Whole
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for registry, name, kind in (
        (foveate.rerank.REGISTRY, "as-found", "AsFound"),
        (foveate.rerank.REGISTRY, "of-pictures", "OfPictures"),
        (foveate.rerank.compress.REGISTRY, "whole", "Whole"),
    ):
        monkeypatch.setitem(registry, name, f"{module.__name__}:{kind}")
    monkeypatch.delenv("FOVEATE_EVAL_DATA", raising=False)


def hit(number, score):
    source = Source(f"{number:032x}", ("/a.txt",), "text/plain", "text", 1, 0.0)
    return Hit(Passage(number, 0, source, "text", "x", Locator(span=(0, 1))), score)


def test_an_order_is_checked():
    hits = [hit(1, 0.9), hit(2, 0.5), hit(3, 0.5)]
    stage_benches.check_order(hits, hits, 3)
    stage_benches.check_order(hits[:2], hits, 2)
    for wrong in (hits[:1], [hits[0], hits[0]], [hits[1], hits[0]], [hits[0], hit(9, 0.1)]):
        with pytest.raises(bench.BenchError):
            stage_benches.check_order(wrong, hits, 2)
    with pytest.raises(bench.BenchError, match="not in the order"):
        stage_benches.check_order([hits[0], hits[2], hits[1]], hits, 3)


def test_every_kernel_has_a_case():
    assert set(kernel_cases.CASES) == set(kernels.REGISTRY)


def test_a_kernel_that_errs_is_not_timed():
    want = torch.ones(4)
    assert kernel_cases.agree("x", want, want) == "RMS error 0e+00"
    with pytest.raises(bench.BenchError, match="x: RMS error"):
        kernel_cases.agree("x", want + 1e-3, want)
    with pytest.raises(bench.BenchError):
        kernel_cases.agree("x", want * torch.nan, want)


def test_a_kernel_is_timed_beside_what_it_replaces():
    options = bench.Options(rounds=1, of=("window_attention",), peers=False)
    rows = bench.run(["kernels"], options)
    assert [r["contender"] for r in rows] == ["window_attention", "torch, explicit mask"]
    assert {r["operation"] for r in rows} == {"kernel window_attention"}
    with pytest.raises(UnknownComponent, match="unknown kernel 'windows'"):
        bench.run(["kernels"], bench.Options(of=("windows",)))


@pytest.mark.models
def test_rerankers_are_found_by_name(stages):
    lines = []
    options = bench.Options(rounds=1, n=60, of=("as-found", "of-pictures"), announce=lines.append)
    (row,) = bench.run(["rerank"], options)
    assert (row["operation"], row["contender"]) == ("rerank", "as-found")
    assert "  of-pictures: left out: it does not read text" in lines


@pytest.mark.models
def test_a_compressor_over_its_budget_is_not_timed(stages):
    with pytest.raises(bench.BenchError, match="whole: compress: expected up to"):
        bench.run(["compress"], bench.Options(rounds=1, n=60, of=("whole",)))
