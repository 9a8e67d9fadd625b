import importlib
import importlib.util

import pytest

from foveate.kernels import REGISTRY
from foveate.kernels.dispatch import path, paths
from foveate.pipeline.errors import UnknownComponent


@pytest.mark.parametrize("op", REGISTRY)
def test_every_operation_exists_and_says_its_path(op):
    module, _, name = REGISTRY[op].partition(":")
    assert module == f"foveate.kernels.{op}"
    assert callable(getattr(importlib.import_module(module), name))
    chosen = path(op)
    assert (chosen.op, chosen.name) == (op, "cpu")
    assert chosen.reason


def test_a_gpu_takes_triton_where_there_is_a_kernel():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed here")
    assert path("maxsim", "cuda:0").name == "triton"


def test_missing_triton_is_said(monkeypatch):
    def find(name):
        return None if name == "triton" else object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    chosen = path("maxsim", "cuda")
    assert chosen.name == "cpu"
    assert "triton is not installed" in chosen.reason


def test_all_paths_are_listed():
    assert [p.op for p in paths("cpu")] == list(REGISTRY)


def test_unknown_names_are_refused():
    with pytest.raises(UnknownComponent, match="maxsim"):
        path("maxsin")
    with pytest.raises(UnknownComponent, match="backend"):
        path("maxsim", backend="cuda")
