import os

import pytest
import torch


@pytest.fixture
def interpreter():
    """The device that Triton kernels run on: a GPU, or the CPU through Triton's interpreter.

    Triton must be told before it is first imported, so test_interpreter.py runs these tests in a
    Python of their own.
    """
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no GPU: test_interpreter.py runs this one")
    return "cpu"


@pytest.fixture
def rms():
    """RMS of the error over RMS of the wanted, where both are finite; the rest must be equal."""

    def measure(got, want):
        got, want = got.detach().double().cpu(), want.detach().double().cpu()
        assert got.shape == want.shape
        finite = want.isfinite()
        assert torch.equal(got[~finite], want[~finite])
        if not finite.any():
            return 0.0
        error = (got - want)[finite].pow(2).mean().sqrt()
        return float(error / want[finite].pow(2).mean().sqrt().clamp(min=1e-30))

    return measure


@pytest.fixture
def poison(monkeypatch):
    """Fill what torch.empty gives with NaN, so that a value never written is seen."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=False)
    yield
    torch.use_deterministic_algorithms(False)
