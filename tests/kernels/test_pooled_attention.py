import pytest
import torch

from foveate.kernels import pooled_attention as module
from foveate.kernels.attention import Score, Sigmoid, Softmax
from foveate.kernels.pooled_attention import pooled_attention
from foveate.pipeline.errors import ShapeError

LENGTHS = {
    "ragged": [5, 0, 1, 63, 12, 12, 30],
    "none": [],
    "empty": [0, 0],
    "one": [1],
    "many": [i % 4 for i in range(200)],
}


def make(lengths, m=3, dtype=torch.float32):
    gen = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    t = int(offsets[-1])
    shapes = ((m, 8), (t, 8), (t, 6))
    return *(torch.randn(s, generator=gen).to(dtype) for s in shapes), offsets


def by_item(q, k, v, offsets, zero=False):
    items = []
    for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        logits = q.double() @ k[a:b].double().T / q.shape[1] ** 0.5
        some = v[a:b].double()
        if zero:
            logits = torch.cat([logits, logits.new_zeros(len(q), 1)], 1)
            some = torch.cat([some, some.new_zeros(1, some.shape[1])])
        items.append(logits.softmax(1) @ some)
    return torch.stack(items) if items else q.new_zeros((0, len(q), v.shape[1]))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_equals_one_item_at_a_time(lengths, dtype, tolerance, zero, rms, poison):
    q, k, v, offsets = make(lengths, dtype=dtype)
    got = pooled_attention(q, k, v, offsets, normaliser=Softmax(zero=zero))
    assert rms(got, by_item(q, k, v, offsets, zero)) < tolerance


@pytest.mark.parametrize("normaliser", [Softmax(), Softmax(zero=True), Softmax(top=2), Sigmoid()])
def test_equals_the_reference(normaliser, rms):
    q, k, v, offsets = make([4, 0, 9])
    score = Score(scale=0.3, cap=1.5, bias=torch.randn(13))
    got = pooled_attention(q, k, v, offsets, score=score, normaliser=normaliser)
    want = pooled_attention(
        q.double(), k.double(), v.double(), offsets,
        score=score, normaliser=normaliser, backend="reference",
    )  # fmt: skip
    assert rms(got, want) < 1e-5


def test_long_items_are_pooled_in_place(monkeypatch, rms):
    monkeypatch.setattr(module, "LONG", 60)
    q, k, v, offsets = make([5, 0, 1, 30, 12, 12])
    assert rms(pooled_attention(q, k, v, offsets), by_item(q, k, v, offsets)) < 1e-5


def test_equal_logits_are_the_mean():
    _, k, v, offsets = make([5, 2])
    got = pooled_attention(torch.zeros(1, 8), k, v, offsets)
    assert torch.allclose(got[:, 0], torch.stack([v[:5].mean(0), v[5:].mean(0)]), atol=1e-6)


def test_the_order_of_patches_does_not_matter():
    q, k, v, offsets = make([20])
    assert torch.allclose(
        pooled_attention(q, k, v, offsets),
        pooled_attention(q, k.flip(0), v.flip(0), offsets),
        atol=1e-6,
    )


def test_gradient():
    q, k, v, offsets = make([3, 0, 4], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: pooled_attention(*x, offsets), leaves)


def test_triton_equals_the_reference(interpreter, rms):
    q, k, v, offsets = (x.to(interpreter) for x in make([5, 0, 1, 20]))
    for zero in (False, True):
        got = pooled_attention(q, k, v, offsets, normaliser=Softmax(zero=zero), backend="triton")
        assert rms(got, by_item(q, k, v, offsets, zero)) < 1e-5


def test_wrong_shapes_are_named():
    q, k, v, offsets = make([3])
    with pytest.raises(ShapeError, match=r"keys \(t, d\)"):
        pooled_attention(q[:, :4], k, v, offsets)
