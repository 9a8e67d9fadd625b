import math

import pytest
import torch

from foveate.kernels import infonce as module
from foveate.kernels.infonce import infonce, infonce_reference
from foveate.pipeline.errors import ShapeError


def make(b, n, d=8, dtype=torch.float32):
    gen = torch.Generator().manual_seed(0)
    x = (torch.randn(k, d, generator=gen) for k in (b, n))
    q, docs = (torch.nn.functional.normalize(y, dim=1).to(dtype) for y in x)
    return q, docs, torch.randint(0, n, (b,), generator=gen)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(module, "TILE", 16)


@pytest.mark.parametrize(("b", "n"), [(1, 1), (1, 63), (63, 1), (32, 40), (123, 100)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.usefixtures("poison", "small_tiles")
def test_value_and_gradients_equal_the_float64_reference(b, n, dtype, tolerance, rms):
    q, docs, targets = make(b, n, dtype=dtype)
    leaves = [x.clone().requires_grad_() for x in (q, docs)]
    loss = infonce(*leaves, targets, temperature=0.1)
    loss.backward()
    wide = [x.double().requires_grad_() for x in (q, docs)]
    want = infonce_reference(*wide, targets, 0.1)
    want.backward()
    # a loss near 0 has no relative error: the largest logit, 1 / temperature, is its scale
    assert float((loss - want).detach().abs()) < tolerance * max(1.0, want.item())
    for a, w in zip(leaves, wide, strict=True):
        if float(w.grad.abs().max()) > 1e-12:
            assert rms(a.grad, w.grad) < tolerance
        else:
            assert float(a.grad.abs().max()) < 1e-5


def test_triton_equals_the_reference(interpreter, rms):
    q, docs, targets = (x.to(interpreter) for x in make(19, 35, 24))
    leaves = [x.clone().requires_grad_() for x in (q, docs)]
    loss = infonce(*leaves, targets, temperature=0.1, backend="triton")
    loss.backward()
    wide = [x.double().requires_grad_() for x in (q, docs)]
    want = infonce_reference(*wide, targets, 0.1)
    want.backward()
    assert float((loss - want).detach().abs()) < 1e-5 * want.item()
    for a, w in zip(leaves, wide, strict=True):
        assert rms(a.grad, w.grad) < 1e-5


@pytest.mark.usefixtures("small_tiles")
def test_gradcheck():
    q, docs, targets = make(20, 18, 3, torch.float64)
    leaves = [q.requires_grad_(), docs.requires_grad_()]
    assert torch.autograd.gradcheck(
        lambda a, b: infonce(a, b, targets, temperature=0.5), leaves, fast_mode=True
    )


def test_equal_rows_lose_the_logarithm_of_the_batch():
    x = torch.ones(7, 4) / 2
    assert float(infonce(x, x)) == pytest.approx(math.log(7), rel=1e-5)


def test_orthonormal_rows_have_a_known_loss():
    x = torch.eye(6)
    want = math.log(1 + 5 * math.exp(-1 / 0.5))
    assert float(infonce(x, x, temperature=0.5)) == pytest.approx(want, rel=1e-5)


@pytest.mark.usefixtures("small_tiles")
def test_no_tensor_is_as_large_as_the_matrix():
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    q, docs, targets = make(100, 100)
    with Watch():
        infonce(q.requires_grad_(), docs, targets).backward()
    assert largest <= 800


def test_wrong_targets_are_refused():
    q, docs, _ = make(3, 2)
    with pytest.raises(ShapeError, match="below 2"):
        infonce(q, docs)
    with pytest.raises(ShapeError, match="queries"):
        infonce(q, docs[:, :3])
