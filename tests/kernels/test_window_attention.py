import pytest
import torch

from foveate.kernels import attention as module
from foveate.kernels.attention import attention
from foveate.kernels.window_attention import window_attention
from foveate.pipeline.errors import ShapeError


def make(lengths, dtype=torch.float32, h=4, g=2):
    gen = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    t = int(offsets[-1])
    shapes = ((h, t, 8), (g, t, 8), (g, t, 6))
    return *(torch.randn(s, generator=gen).to(dtype) for s in shapes), offsets


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(module, "TILE", 16)


def explicit(q, k, v, offsets, before, after):
    rows = torch.arange(q.shape[1])
    own = torch.bucketize(rows, offsets[1:], right=True)
    far = rows[None, :] - rows[:, None]
    seen = (own[:, None] == own[None, :]) & (far >= -before) & (far <= after)
    return torch.nn.functional.scaled_dot_product_attention(
        *(x.double() for x in (q, k, v)), attn_mask=seen, enable_gqa=True
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (5, 0), (3, 4), (1000, 1000)])
@pytest.mark.parametrize("lengths", [[1], [0, 40, 1, 0, 9], [63, 70], [3] * 40])
@pytest.mark.usefixtures("poison", "small_tiles")
def test_equals_the_explicit_mask(lengths, before, after, dtype, tolerance, rms):
    q, k, v, offsets = make(lengths, dtype)
    got = window_attention(q, k, v, offsets, before=before, after=after)
    assert rms(got, explicit(q, k, v, offsets, before, after)) < tolerance


def test_a_window_on_nothing_but_itself_gives_the_value():
    q, k, v, offsets = make([7, 5], h=2)
    assert torch.allclose(window_attention(q, k, v, offsets, before=0, after=0), v)


def test_a_wide_window_over_one_document_is_full_attention(rms):
    q, k, v, offsets = make([30])
    got = window_attention(q, k, v, offsets, before=30, after=30)
    assert rms(got, attention(q, k, v)) < 1e-5


def test_moving_what_is_far_changes_nothing():
    q, k, v, offsets = make([60])
    before = window_attention(q, k, v, offsets, before=3, after=3)
    k[:, 40:] += 1
    after = window_attention(q, k, v, offsets, before=3, after=3)
    assert torch.equal(before[:, :37], after[:, :37])


def test_gradient():
    q, k, v, offsets = make([5, 0, 4], torch.float64, 2, 1)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(
        lambda *x: window_attention(*x, offsets, before=2, after=1), leaves, fast_mode=True
    )


def test_triton_equals_the_reference(interpreter, rms):
    q, k, v, offsets = (x.to(interpreter) for x in make([20, 1, 0, 18]))
    got = window_attention(q, k, v, offsets, before=4, after=2, backend="triton")
    want = explicit(*(x.cpu() for x in (q, k, v, offsets)), 4, 2)
    assert rms(got, want) < 1e-5


def test_a_negative_reach_is_refused():
    with pytest.raises(ShapeError, match="at least 0"):
        window_attention(*make([3]), before=-1, after=0)
