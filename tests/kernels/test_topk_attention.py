import pytest
import torch

from foveate.kernels import attention as module
from foveate.kernels import masks
from foveate.kernels.attention import PLAIN_SCORE, Score, attention
from foveate.kernels.topk_attention import sparse_error, topk_attention
from foveate.pipeline.errors import ShapeError


def make(h=2, g=1, t=37, u=50, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=gen) for s in ((h, t, 8), (g, u, 8), (g, u, 6))]


def by_sorting(q, k, v, top, shown=None):
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    for h in range(len(q)):
        for i in range(q.shape[1]):
            logits = (k[h // (len(q) // len(k))].double() @ q[h, i].double()) / q.shape[2] ** 0.5
            seen = range(len(logits)) if shown is None else shown[i].nonzero()[:, 0].tolist()
            best = sorted(seen, key=lambda j: -logits[j])[:top]
            if best:
                out[h, i] = logits[best].softmax(0) @ v[h // (len(q) // len(k))].double()[best]
    return out


@pytest.mark.parametrize("top", [1, 7, 49, 50, 1000])
def test_equals_a_full_sort(top, rms, poison, monkeypatch):
    monkeypatch.setattr(module, "TILE", 16)
    q, k, v = make()
    assert rms(topk_attention(q, k, v, top), by_sorting(q, k, v, top)) < 1e-5


def test_causal_rows_with_few_keys(rms):
    q, k, v = make(t=20, u=20)
    mask = masks.causal(20, 20)
    want = by_sorting(q, k, v, 5, masks.dense(mask, 20))
    assert rms(topk_attention(q, k, v, 5, mask), want) < 1e-5


def test_all_keys_are_full_attention(rms):
    q, k, v = make()
    assert rms(topk_attention(q, k, v, 50), attention(q, k, v)) < 1e-6


def test_equal_keys_keep_the_first():
    q, k = torch.ones(1, 1, 4), torch.ones(1, 6, 4)
    v = torch.arange(6.0).view(1, 6, 1)
    assert float(topk_attention(q, k, v, 2)) == pytest.approx(0.5)


@pytest.mark.parametrize("top", [1, 5, 20])
def test_the_error_is_the_weight_left_out_times_the_distance_of_means(top):
    q, k, v = (x.double() for x in make())
    logits = q[0] @ k[0].T / 8**0.5
    weights = logits.softmax(1)
    kept = torch.zeros_like(weights, dtype=torch.bool)
    kept.scatter_(1, logits.topk(top, dim=1).indices, True)
    error = (attention(q, k, v)[0] - topk_attention(q, k, v, top)[0]).norm(dim=1)
    assert torch.allclose(sparse_error(weights, v[0], kept), error, atol=1e-6)


def test_equal_values_have_no_error():
    q, k, v = make()
    v[:] = 3.0
    assert torch.allclose(topk_attention(q, k, v, 1), v.new_tensor(3.0))


def test_gradient():
    leaves = [x.double().requires_grad_() for x in make(2, 1, 4, 9)]
    assert torch.autograd.gradcheck(lambda *x: topk_attention(*x, 3), leaves)


def test_memory_is_linear_in_length():
    """No tensor is larger than a tile of rows by all keys."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.numel())
            return out

    found = []
    for t in (512, 1024):
        q, k, v = make(1, 1, t, t)
        largest = 0
        with Watch():
            topk_attention(q, k, v, 4)
        found.append(largest)
    assert found[1] <= 2 * found[0] < 512 * 512


def test_k_must_be_positive():
    with pytest.raises(ShapeError, match="at least 1"):
        topk_attention(*make(), 0)


@pytest.mark.parametrize(("top", "kind"), [(1, "plain"), (7, "causal"), (9, "scored")])
def test_triton_equals_the_sort(top, kind, interpreter, rms):
    # small: in the interpreter the bisection takes its time
    q, k, v = (x.to(interpreter) for x in make(h=1, t=5, u=30))
    mask, score = None, PLAIN_SCORE
    if kind == "causal":
        mask = masks.causal(5, 30).to(interpreter)
    if kind == "scored":
        bias = torch.randn(30, generator=torch.Generator().manual_seed(3)).to(interpreter)
        score = Score(scale=0.7, cap=2.0, bias=bias)
    got = topk_attention(q, k, v, top, mask, score=score, backend="triton")
    want = topk_attention(q, k, v, top, mask, score=score, backend="reference")
    assert rms(got, want) < 1e-5


def test_triton_keeps_the_first_of_equal_keys(interpreter):
    q, k = torch.ones(1, 3, 8, device=interpreter), torch.ones(1, 20, 8, device=interpreter)
    v = torch.eye(20, device=interpreter)[None]
    got = topk_attention(q, k, v, 5, backend="triton")
    assert torch.allclose(got[0, :, :5], torch.full((3, 5), 0.2, device=interpreter), atol=1e-6)
    assert (got[0, :, 5:] == 0).all()


def test_triton_rows_that_see_nothing_give_zeros(interpreter):
    q, k, v = (x.to(interpreter) for x in make(h=1, t=4, u=6))
    mask = torch.tensor([[0, 0], [2, 3], [0, 6], [5, 5]], device=interpreter)[:, None]
    got = topk_attention(q, k, v, 2, mask, backend="triton")
    assert (got[:, [0, 3]] == 0).all()
    assert got[:, 1:3].abs().sum() > 0
