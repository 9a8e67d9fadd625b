import pytest
import torch

from foveate.kernels import masks
from foveate.kernels.attention import attention
from foveate.kernels.quantised_score import four_bits, quantised_score
from foveate.pipeline.errors import ShapeError

SMALL = {"block": 8, "sink": 4, "local": 8}


def make(t, h=4, g=2, scale=1.0):
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=gen) for s in ((h, t, 16), (g, t, 16), (g, t, 6)))
    return q * scale, k, v


def full(q, k, v):
    t = q.shape[1]
    return attention(*(x.double() for x in (q, k, v)), masks.causal(t, t))


@pytest.mark.parametrize("t", [1, 7, 63, 123])
@pytest.mark.usefixtures("poison")
def test_no_threshold_is_causal_attention(t, rms):
    q, k, v = make(t)
    got, kept = quantised_score(q, k, v, tau=0.0, **SMALL)
    assert float(kept) == 1.0
    assert rms(got, full(q, k, v)) < 1e-5


def test_the_error_is_within_what_was_dropped():
    q, k, v = make(123, scale=3.0)
    got, kept = quantised_score(q, k, v, tau=0.05, **SMALL)
    assert 0 < float(kept) < 1
    error = (got - full(q, k, v)).norm(dim=2)
    # with the identity for values the output is the weights: 0 where a key was dropped
    eye = torch.eye(123).expand(2, -1, -1)
    weights, _ = quantised_score(q, k, eye, tau=0.05, **SMALL)
    dropped = full(q, k, eye).masked_fill(weights > 0, 0.0).sum(2)
    spread = max(float(torch.cdist(x, x).max()) for x in v)
    assert 0 < float(dropped.max()) < 0.5
    assert (error <= dropped * spread + 1e-5).all()


def test_what_is_dropped_is_below_the_threshold():
    q, k, _ = make(123, 2, 1, scale=3.0)
    eye = torch.eye(123).expand(1, -1, -1)
    weights, _ = quantised_score(q, k, eye, tau=0.05, **SMALL)
    exact = full(q, k, eye)
    for h in range(2):
        codes = four_bits(q[h]), four_bits(k[0])
        estimate = (codes[0][0] * codes[0][1]) @ (codes[1][0] * codes[1][1]).T / 4
        slack = float((estimate - q[h] @ k[0].T / 4).abs().max())
        dropped = (weights[h] == 0) & (exact[h] > 0)
        # exact weights are shares of more than the sink and the neighbours
        assert (exact[h][dropped] <= 0.05 * torch.tensor(slack).exp()).all()


def test_a_higher_threshold_keeps_less():
    q, k, v = make(123, scale=3.0)
    shares = [float(quantised_score(q, k, v, tau=tau, **SMALL)[1]) for tau in (0.0, 0.01, 0.1, 10)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares[-1] < 0.2


def test_equal_values_have_no_error():
    q, k, v = make(100, scale=3.0)
    v[:] = 2.0
    got, kept = quantised_score(q, k, v, tau=0.5, **SMALL)
    assert float(kept) < 1
    assert torch.allclose(got, v.new_tensor(2.0))


def test_a_needle_is_kept():
    q, k, v = make(120, 1, 1)
    k[0, 20] = 20.0 * q[0, 119] / q[0, 119].norm()
    v[0, 20] = 50.0
    got, _ = quantised_score(q, k, v, tau=0.1, **SMALL)
    assert float(got[0, 119, 0]) > 45


def test_codes_err_by_half_a_step():
    rows = torch.randn(20, 16)
    codes, scales = four_bits(rows)
    assert codes.abs().max() <= 7
    assert ((codes * scales - rows).abs() <= scales / 2 + 1e-6).all()
    assert (four_bits(torch.zeros(1, 4))[0] == 0).all()


def test_wrong_settings_are_refused():
    with pytest.raises(ShapeError, match="tau"):
        quantised_score(*make(8), tau=-1)


@pytest.mark.parametrize(("tau", "block"), [(0.0, 8), (0.02, 8), (0.05, 16)])
def test_triton_keeps_the_same_blocks(tau, block, interpreter, rms):
    gen = torch.Generator().manual_seed(8)
    q, k, v = (
        2 * torch.randn(s, generator=gen).to(interpreter)
        for s in ((2, 61, 12), (1, 61, 12), (1, 61, 6))
    )
    given = {"tau": tau, "block": block, "sink": 5, "local": 10}
    got, kept = quantised_score(q, k, v, backend="triton", **given)
    want, wanted = quantised_score(q, k, v, backend="cpu", **given)
    assert rms(got, want) < 1e-5
    assert float(kept) == pytest.approx(float(wanted))
