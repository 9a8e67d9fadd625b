import pytest
import torch

from foveate.kernels.sinkhorn import distances_between, marginals, plan, sinkhorn
from foveate.pipeline.errors import ShapeError


def make(lengths, s=4, d=6, dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(s, d, generator=gen), torch.randn(int(offsets[-1]), d, generator=gen)
    q, docs = (torch.nn.functional.normalize(y, dim=1).to(dtype) for y in x)
    return q, docs, offsets


@pytest.mark.parametrize("lengths", [[1], [3, 0, 5, 4, 1, 20], [0, 0], [], [2] * 40])
@pytest.mark.usefixtures("poison")
def test_equals_one_document_at_a_time(lengths, rms):
    q, docs, offsets = make(lengths)
    want = sinkhorn(q, docs, offsets, backend="reference", tolerance=1e-9)
    assert rms(sinkhorn(q, docs, offsets, tolerance=1e-9), want) < 1e-6
    single = sinkhorn(q.float(), docs.float(), offsets, tolerance=1e-6)
    # the plan moves by the tolerance at most
    assert rms(single, want) < 1e-4
    assert (single[torch.tensor(lengths) == 0] == -torch.inf).all()


def test_one_vector_each_is_the_distance():
    q, docs, offsets = make([1], s=1)
    assert float(sinkhorn(q, docs, offsets)) == pytest.approx(-float((q - docs).norm()))


def test_equal_sets_cost_nothing_without_entropy():
    q, _, _ = make([], s=5)
    assert float(sinkhorn(q, q, torch.tensor([0, 5]), blur=0.002)) == pytest.approx(0, abs=1e-3)


def test_the_plan_has_its_margins():
    q, docs, _ = make([6])
    distances = distances_between(q, docs[None])
    real = torch.ones(1, 6, dtype=torch.bool)
    real[0, 5] = False
    found = plan(distances, real, tolerance=1e-8)
    log_a, log_b = marginals(distances, real, 1.0)
    assert torch.allclose(found.sum(2), log_a.exp(), atol=1e-7)
    assert torch.allclose(found.sum(1), log_b.exp(), atol=1e-9)
    assert (found[..., 5] == 0).all()


def test_the_order_of_documents_and_vectors_does_not_matter():
    q, docs, offsets = make([4, 3])
    turned = sinkhorn(q.flip(0), docs.flip(0), torch.tensor([0, 3, 7]), tolerance=1e-9)
    assert torch.allclose(turned.flip(0), sinkhorn(q, docs, offsets, tolerance=1e-9))


def test_gradient_flows_through_the_distances():
    q, docs, _ = make([3])
    q.requires_grad_()
    sinkhorn(q, docs, torch.tensor([0, 3]), tolerance=1e-9).sum().backward()
    start = q.detach()
    distances = distances_between(start, docs[None])
    found = plan(distances, torch.ones(1, 3, dtype=torch.bool), tolerance=1e-9)[0]
    ways = (start[:, None] - docs) / distances[0][..., None]
    assert torch.allclose(q.grad, -(found[..., None] * ways).sum(1), atol=1e-7)


def test_an_empty_query_is_refused():
    q, docs, offsets = make([2])
    with pytest.raises(ShapeError, match="s > 0"):
        sinkhorn(q[:0], docs, offsets)


@pytest.mark.parametrize("lengths", [[1], [3, 0, 5, 4, 1, 20], [2] * 5])
def test_triton_equals_the_reference(lengths, interpreter, rms):
    q, docs, offsets = (x.to(interpreter) for x in make(lengths, s=5))
    want = sinkhorn(q, docs, offsets, backend="reference", tolerance=1e-9)
    got = sinkhorn(q.float(), docs.float(), offsets, backend="triton", tolerance=1e-6)
    # the plan moves by the tolerance at most
    assert rms(got, want) < 1e-4
