import pytest
import torch

from foveate.kernels import attention as module
from foveate.kernels import masks
from foveate.kernels.attention import (
    Score,
    Sigmoid,
    Softmax,
    attention,
    attention_reference,
    attention_with_sums,
    keep_largest,
)
from foveate.pipeline.errors import ShapeError

OFFSETS = torch.tensor([0, 4, 4, 5, 17, 40, 41])


def make(h=4, g=2, t=41, u=41, d=8, e=6, dtype=torch.float32, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shapes = ((h, t, d), (g, u, d), (g, u, e))
    return [torch.randn(s, generator=gen).to(dtype) for s in shapes]


MASKS = {  # self and cross, causal and not, then what is composed of them
    "self": (41, lambda: masks.full(41, 41)),
    "self, causal": (41, lambda: masks.causal(41, 41)),
    "cross": (23, lambda: masks.full(41, 23)),
    "cross, causal": (57, lambda: masks.causal(41, 57)),
    "more rows than keys": (9, lambda: masks.causal(41, 9)),
    "packed": (41, lambda: masks.packed(OFFSETS, OFFSETS)),
    "block_rank": (41, lambda: masks.block_rank(OFFSETS)),
    "window": (41, lambda: masks.window(41, 3, 2)),
    "packed window": (
        41,
        lambda: masks.both(masks.window(41, 5, 0), masks.packed(OFFSETS, OFFSETS)),
    ),
}
SCORES = {
    "plain": lambda u: Score(),
    "capped": lambda u: Score(scale=0.7, cap=2.0),
    "biased": lambda u: Score(bias=torch.linspace(-1, 1, u)),
}
NORMALISERS = {
    "softmax": Softmax(),
    "zero": Softmax(zero=True),
    "top": Softmax(top=3),
    "sigmoid": Sigmoid(-1.0),
}


@pytest.fixture(params=[8, 128])
def tile(request, monkeypatch):
    monkeypatch.setattr(module, "TILE", request.param)


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_composition_equals_the_float64_reference(mask, normaliser, tile, rms, poison):
    u, make_mask = MASKS[mask]
    for make_score in SCORES.values():
        q, k, v = make(u=u)
        score, shown = make_score(u), make_mask()
        got, sums = attention_with_sums(
            q, k, v, shown, score=score, normaliser=NORMALISERS[normaliser]
        )
        wide = (x.double() for x in (q, k, v))
        want, want_sums = attention_reference(*wide, shown, score, NORMALISERS[normaliser])
        assert rms(got, want) < 1e-5
        assert rms(sums, want_sums) < 1e-5
        alone = attention(q, k, v, shown, score=score, normaliser=NORMALISERS[normaliser])
        assert rms(alone, want) < 1e-5


@pytest.mark.parametrize(
    ("h", "g", "t", "u"),
    [(1, 1, 0, 5), (1, 1, 5, 0), (2, 1, 1, 1), (3, 3, 1, 63), (4, 1, 123, 7), (2, 2, 130, 260)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
def test_shapes(h, g, t, u, dtype, tolerance, rms, poison):
    q, k, v = make(h, g, t, u, dtype=dtype)
    got = attention(q, k, v)
    want, _ = attention_reference(q.double(), k.double(), v.double())
    assert got.dtype == dtype
    assert rms(got, want) < tolerance


def test_equals_torch(rms):
    q, k, v = make(4, 4)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert rms(attention(q, k, v, masks.causal(41, 41)), want) < 1e-5


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_gradient(normaliser, monkeypatch):
    monkeypatch.setattr(module, "TILE", 4)
    leaves = [x.double().requires_grad_() for x in make(2, 1, 9, 9, 3, 2)]
    # the first row sees no key
    shown = masks.window(9, 2, 1).clone()
    shown[0] = 0
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, bias):
        score = Score(cap=3.0, bias=bias)
        return attention(q, k, v, shown, score=score, normaliser=NORMALISERS[normaliser])

    assert torch.autograd.gradcheck(attend, (*leaves, bias), fast_mode=True)


def test_gradient_of_the_fused_tiles(monkeypatch):
    monkeypatch.setattr(module, "TILE", 4)
    leaves = [x.double().requires_grad_() for x in make(2, 1, 9, 9, 3, 3)]
    shown = masks.window(9, 2, 1).clone()
    shown[0] = shown[4:8] = 0  # a row and a whole tile that see nothing
    attend = lambda q, k, v: attention(q, k, v, shown)  # noqa: E731
    assert torch.autograd.gradcheck(attend, leaves, fast_mode=True)


def test_equal_logits_keep_the_first():
    kept = keep_largest(torch.tensor([1.0, 2.0, 1.0, 1.0, 0.0]), 3)
    assert kept.isfinite().tolist() == [True, True, True, False, False]


def test_tiles_do_not_cross_documents():
    offsets = torch.tensor([0, 10, 30, 60])
    found = masks.tiles(masks.packed(offsets, offsets), 16)
    assert [(a, b) for a, b, _ in found] == [(0, 10), (10, 26), (26, 30), (30, 46), (46, 60)]
    assert found[3][2] == [(30, 60)]


@pytest.mark.parametrize("mask", MASKS)
def test_triton_equals_the_reference(mask, interpreter, rms):
    u, make_mask = MASKS[mask]
    q, k, v = (x.to(interpreter) for x in make(2, 1, u=u))
    shown = make_mask().to(interpreter)
    score = Score(cap=2.0, bias=torch.linspace(-1, 1, u).to(interpreter))
    for zero in (False, True):
        chosen = {"score": score, "normaliser": Softmax(zero=zero)}
        got, sums = attention_with_sums(q, k, v, shown, backend="triton", **chosen)
        wide = (x.double() for x in (q, k, v))
        want, want_sums = attention_reference(*wide, shown, *chosen.values())
        assert rms(got, want) < 1e-5
        assert rms(sums, want_sums) < 1e-5


def test_triton_half_precision(interpreter, rms):
    q, k, v = (x.to(interpreter) for x in make(2, 2, 17, 33, dtype=torch.bfloat16))
    want, _ = attention_reference(q.double(), k.double(), v.double())
    assert rms(attention(q, k, v, backend="triton"), want) < 5e-3


def test_wrong_shapes_are_named():
    q, k, v = make()
    with pytest.raises(ShapeError, match="multiple of g"):
        attention(q[:3], k, v)
    with pytest.raises(ShapeError, match=r"mask \(41, j, 2\)"):
        attention(q, k, v, masks.full(40, 41))
    with pytest.raises(ShapeError, match="0 to 41"):
        attention(q, k, v, masks.full(41, 42))


@pytest.mark.parametrize("kind", ["plain", "windows", "scored", "zero"])
def test_triton_gradient_is_that_of_the_cpu_path(kind, interpreter):
    gen = torch.Generator().manual_seed(7)
    shapes = ((2, 9, 8), (1, 11, 8), (1, 11, 6), (11,))
    given = [torch.randn(s, generator=gen).to(interpreter) for s in shapes]
    mask = None
    if kind == "windows":
        begins = torch.tensor([0, 0, 1, 2, 3, 5, 5, 0, 4])
        ends = torch.tensor([3, 1, 9, 2, 11, 8, 6, 0, 11])
        mask = torch.stack([begins, ends], 1)[:, None].to(interpreter)
    found = {}
    for backend in ("triton", "cpu"):
        q, k, v, bias = (x.clone().requires_grad_() for x in given)
        score = Score(scale=0.6, cap=1.5, bias=bias) if kind == "scored" else Score()
        out, sums = attention_with_sums(
            q, k, v, mask, score=score, normaliser=Softmax(zero=kind == "zero"), backend=backend
        )
        (out.square().sum() + sums[sums.isfinite()].square().sum()).backward()
        found[backend] = [q.grad, k.grad, v.grad, *([bias.grad] if kind == "scored" else [])]
    for got, want in zip(found["triton"], found["cpu"], strict=True):
        assert torch.allclose(got, want, atol=1e-4)
