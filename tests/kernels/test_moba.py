import pytest
import torch

from foveate.kernels import masks
from foveate.kernels.attention import attention
from foveate.kernels.moba import gates, moba, moba_reference
from foveate.pipeline.errors import ShapeError


def make(t, h=4, g=2, dtype=torch.float32):
    gen = torch.Generator().manual_seed(0)
    shapes = ((h, t, 8), (g, t, 8), (g, t, 6))
    return [torch.randn(s, generator=gen).to(dtype) for s in shapes]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("top", [1, 2, 4])
@pytest.mark.parametrize("t", [1, 8, 63, 70])
@pytest.mark.usefixtures("poison")
def test_merged_parts_equal_the_masked_matrix(t, top, dtype, tolerance, rms):
    q, k, v = make(t, dtype=dtype)
    got = moba(q, k, v, block=8, top=top)
    want = moba_reference(*(x.double() for x in (q, k, v)), gates(q, k, 8, top), 8)
    assert rms(got, want) < tolerance


def test_all_blocks_are_causal_attention(rms):
    q, k, v = make(50)
    want = attention(q, k, v, masks.causal(50, 50))
    assert rms(moba(q, k, v, block=8, top=7), want) < 1e-5


def test_a_row_keeps_its_own_block_and_none_after():
    q, k, _ = make(37)
    picked = gates(q, k, 8, 2)
    own = torch.arange(37) // 8
    assert picked[:, torch.arange(37), own].all()
    assert (picked.sum(2) == torch.minimum(own + 1, torch.tensor(2))).all()
    assert not (picked & (torch.arange(5) > own[:, None])).any()


def test_the_last_block_has_its_own_length():
    k = torch.zeros(1, 10, 8)
    k[:, 8:] = 1.0
    q = torch.ones(1, 10, 8)
    # the mean of the two last keys is 1, not 2 / 8
    assert gates(q, k, 8, 1)[0, 9].tolist() == [False, True]


def test_gradient():
    leaves = [x.requires_grad_() for x in make(11, 2, 1, torch.float64)]
    assert torch.autograd.gradcheck(lambda *x: moba(*x, block=4, top=2), leaves, fast_mode=True)


def test_no_block_is_refused():
    with pytest.raises(ShapeError, match="at least 1"):
        moba(*make(4), block=4, top=0)


@pytest.mark.parametrize(("t", "block", "top"), [(1, 4, 1), (33, 8, 2), (50, 16, 9), (40, 5, 3)])
def test_triton_equals_the_reference(t, block, top, interpreter, rms):
    gen = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(s, generator=gen).to(interpreter)
               for s in ((4, t, 12), (2, t, 12), (2, t, 6)))  # fmt: skip
    got = moba(q, k, v, block=block, top=top, backend="triton")
    want = moba(q.double(), k.double(), v.double(), block=block, top=top, backend="reference")
    assert rms(got, want) < 1e-5
