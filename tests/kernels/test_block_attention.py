import pytest
import torch

from foveate.kernels import masks
from foveate.kernels.attention import attention, attention_reference
from foveate.kernels.block_attention import block_attention, block_scores
from foveate.pipeline.errors import ShapeError

LENGTHS = {
    "ragged": [6, 3, 0, 1, 20, 5, 7],
    "prefix and query": [4, 6],
    "prefix alone": [5],
    "one passage": [4, 9, 3],
    "no prefix": [0, 4, 4, 2],
    "many": [3, *[i % 5 for i in range(60)], 4],
}


def make(lengths, dtype=torch.float32, h=4, g=2, seed=0):
    gen = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    t = int(offsets[-1])
    shapes = ((h, t, 8), (g, t, 8), (g, t, 6))
    return *(torch.randn(s, generator=gen).to(dtype) for s in shapes), offsets


def allowed(lengths):
    """The mask by its words: prefix causal, passages see it and themselves, the last sees all."""
    block = [b for b, n in enumerate(lengths) for _ in range(n)]
    ends, rows = (0, len(lengths) - 1), range(len(block))
    seen = [
        [j <= i and (block[i] in ends or block[j] in (0, block[i])) for j in rows] for i in rows
    ]
    return torch.tensor(seen)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_equals_the_explicit_mask(lengths, dtype, tolerance, rms, poison):
    q, k, v, offsets = make(lengths, dtype)
    got = block_attention(q, k, v, offsets)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.double() for x in (q, k, v)), attn_mask=allowed(lengths), enable_gqa=True
    )
    assert rms(got, want) < tolerance


def test_the_order_of_passages_permutes_the_output(rms):
    lengths = [4, 5, 3, 7, 6]
    q, k, v, offsets = make(lengths)
    parts = torch.arange(25).split(lengths)
    turned = torch.cat([parts[i] for i in (0, 3, 1, 2, 4)])
    moved = torch.tensor([0, 4, 11, 16, 19, 25])
    got = block_attention(q[:, turned], k[:, turned], v[:, turned], moved)
    want = block_attention(q, k, v, offsets)
    # rows of the query block see all passages, whose order does not matter, and are causal inside
    assert rms(got, want[:, turned]) < 1e-5


def test_a_passage_does_not_touch_another():
    lengths = [4, 5, 3, 6]
    q, k, v, offsets = make(lengths)
    before = block_attention(q, k, v, offsets)
    k[:, 4:9] += 1
    after = block_attention(q, k, v, offsets)
    assert torch.equal(before[:, 9:12], after[:, 9:12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


def test_one_passage_is_causal_attention(rms):
    q, k, v, offsets = make([4, 9, 3])
    want = attention(q, k, v, masks.causal(16, 16))
    assert rms(block_attention(q, k, v, offsets), want) < 1e-5


def test_work_is_linear_in_passages():
    def pairs(n):
        offsets = torch.tensor([0, 8, *[20] * n, 8]).cumsum(0)
        tiles = masks.tiles(masks.block_rank(offsets), 128)
        return sum((b - a) * sum(y - x for x, y in runs) for a, b, runs in tiles)

    assert pairs(80) - pairs(40) == 2 * (pairs(40) - pairs(20))


@pytest.mark.parametrize("lengths", [[3, 0, 1, 7], [5], [1] * 30, [0, 0, 2]])
def test_scores_are_the_weight_on_each_passage(lengths, rms):
    gen = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    q = torch.randn((4, 2, 8), generator=gen)
    k = torch.randn((2, int(offsets[-1]), 8), generator=gen)
    got = block_scores(q, k, offsets)
    logits = q.double() @ k.double().repeat_interleave(2, 0).transpose(1, 2) / 8**0.5
    weights = logits.softmax(-1).mean((0, 1))
    want = torch.stack([part.sum() for part in weights.split(lengths)])
    assert rms(got, want) < 1e-5
    assert float(got.sum()) == pytest.approx(1)


def test_permuted_passages_permute_the_scores(rms):
    q, k = torch.randn(4, 2, 8), torch.randn(2, 15, 8)
    got = block_scores(q, k, torch.tensor([0, 4, 9, 15]))
    turned = torch.cat([k[:, 9:], k[:, :4], k[:, 4:9]], 1)
    moved = block_scores(q, turned, torch.tensor([0, 6, 10, 15]))
    assert rms(moved, got[[2, 0, 1]]) < 1e-5


def test_gradients():
    q, k, v, offsets = make([3, 2, 0, 4, 2], torch.float64, 2, 1)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: block_attention(*x, offsets), leaves, fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda q, k: block_scores(q[:, :2], k, offsets), leaves[:2], fast_mode=True
    )


def test_triton_equals_the_reference(interpreter, rms):
    q, k, v, offsets = (x.to(interpreter) for x in make(LENGTHS["ragged"]))
    got = block_attention(q, k, v, offsets, backend="triton")
    want, _ = attention_reference(*(x.double() for x in (q, k, v)), masks.block_rank(offsets))
    assert rms(got, want) < 1e-5


def test_wrong_shapes_are_named():
    q, k, v, _ = make([3, 4])
    with pytest.raises(ShapeError, match="rise from 0 to 7"):
        block_attention(q, k, v, torch.tensor([0, 3]))
    with pytest.raises(ShapeError, match="multiple of g"):
        block_scores(q[:3], k, torch.tensor([0, 7]))
