import pytest
import torch

from foveate.kernels.attention import attention
from foveate.kernels.sign_index import find_keys, indexed_attention, sign_index
from foveate.kernels.topk_attention import sparse_error
from foveate.pipeline.errors import ShapeError


def make(u=60, h=4, g=2, d=16, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=gen) for s in ((h, 1, d), (g, u, d), (g, u, 6))]


def test_a_pattern_for_each_key_makes_the_estimate_exact():
    signs = torch.tensor([[(p >> b & 1) * 2 - 1 for b in (3, 2, 1, 0)] for p in range(16)])
    keys = (signs.repeat(1, 2) * (torch.rand(16, 8) + 0.1))[None]
    index = sign_index(keys, centred=False)
    queries = torch.randn(1, 3, 8)
    assert torch.allclose(index.estimate(queries), queries @ keys.transpose(1, 2), atol=1e-5)


def test_estimate_is_the_sum_of_the_book():
    q, k, _ = make(d=24)
    index = sign_index(k)
    centred = k - index.centre[:, None]
    assert index.codes.shape == (2, 3, 60)
    found = index.estimate(q.view(2, 2, 24))
    for g in range(2):
        for j in (0, 17, 59):
            total = torch.zeros(2)
            for n in range(6):
                part = centred[g, :, 4 * n : 4 * n + 4] >= 0
                alike = (part == part[j]).all(1)
                mean = centred[g, alike, 4 * n : 4 * n + 4].mean(0)
                total += q.view(2, 2, 24)[g, :, 4 * n : 4 * n + 4] @ mean
            assert torch.allclose(found[g, :, j], total, atol=1e-4)


def test_the_centre_does_not_change_attention(rms):
    q, k, v = make()
    index = sign_index(k)
    assert rms(attention(q, k - index.centre[:, None], v), attention(q, k, v)) < 1e-5


@pytest.mark.parametrize("u", [1, 5, 60])
@pytest.mark.usefixtures("poison")
def test_a_budget_of_all_is_exact(u, rms):
    q, k, v = make(u)
    got = indexed_attention(q, k, v, sign_index(k), 1000)
    assert rms(got, attention(q.double(), k.double(), v.double())) < 1e-5


def test_the_error_is_what_was_left_out():
    q, k, v = make(h=2)
    index = sign_index(k)
    found = find_keys(index, q, 20)
    error = (indexed_attention(q, k, v, index, 20) - attention(q, k, v))[:, 0].norm(dim=1)
    for g in range(2):
        weights = (q[g] @ k[g].T / 4).softmax(1)
        kept = torch.zeros(1, 60, dtype=torch.bool)
        kept[0, found[g]] = True
        assert torch.allclose(sparse_error(weights, v[g], kept), error[g], atol=1e-5)


@pytest.mark.parametrize("centred", [True, False])
def test_it_finds_most_of_the_best(centred):
    hits = []
    for _ in range(10):
        q, k, _ = make(1000, 2, 2, 64)
        k = k + 2.0 * torch.randn(2, 1, 64)  # channels with a mean of their own
        found = find_keys(sign_index(k, centred=centred), q, 100)
        best = (q @ k.transpose(1, 2))[:, 0].topk(20, dim=1).indices
        pairs = zip(best, found, strict=True)
        hits += [len(set(a.tolist()) & set(b.tolist())) for a, b in pairs]
    # by chance: 2 of 20
    assert sum(hits) / len(hits) >= (16 if centred else 4)


def test_some_keys_are_always_kept():
    q, k, _ = make()
    found = find_keys(sign_index(k), q, 5, always=torch.tensor([0, 58, 59]))
    assert found.shape == (2, 8)
    assert all({0, 58, 59} <= set(row.tolist()) for row in found)


def test_wrong_shapes_are_named():
    with pytest.raises(ShapeError, match="8 divides d"):
        sign_index(torch.randn(1, 4, 6))
    with pytest.raises(ShapeError, match="budget"):
        find_keys(sign_index(torch.randn(1, 4, 8)), torch.randn(1, 1, 8), 0)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_triton_estimates_alike(rows, interpreter):
    keys = make(u=37, d=24)[1].to(interpreter)
    index = sign_index(keys)
    queries = torch.randn(2, rows, 24, generator=torch.Generator().manual_seed(5)).to(interpreter)
    want = index.estimate(queries, backend="cpu")
    assert torch.allclose(index.estimate(queries, backend="triton"), want, atol=1e-5)
