from itertools import pairwise

import pytest
import torch

from foveate.kernels import maxsim_products as ways
from foveate.kernels import maxsim_scan as module
from foveate.kernels.documents import Documents, quantise
from foveate.kernels.maxsim import maxsim, maxsim_matches, maxsim_reference, maxsim_topk
from foveate.pipeline.errors import FoveateError, ShapeError

LENGTHS = {
    "none": [],
    "empty": [0],
    "one": [1],
    "alike": [7] * 12,
    "mixed": [0, 5, 1, 0, 63, 123, 2, 2, 40, 0],
    "many": [i % 4 for i in range(10_000)],
}
# the codes' own values are the reference, so that only the arithmetic is measured: a product in
# bfloat16 rounds query and sum, by 2^-9 each; codes meet a query of 16 bits (see `Planes`), 2.6e-5
KINDS = {"float32": 1e-5, "bfloat16": 5e-3, "int8": 1e-4, "onebit": 1e-4}


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def make(lengths, kind="float32", dim=24, seed=0):
    gen = torch.Generator().manual_seed(seed)
    offsets = offsets_of(lengths)
    tokens = torch.randn(int(offsets[-1]), dim, generator=gen)
    tokens = torch.nn.functional.normalize(tokens, dim=1)
    if kind in ("int8", "onebit"):
        return quantise(tokens, offsets, kind)
    return Documents(tokens.to(getattr(torch, kind)), offsets)


def ask(lengths, dim=24, seed=1):
    gen = torch.Generator().manual_seed(seed)
    offsets = offsets_of(lengths)
    return torch.randn(int(offsets[-1]), dim, generator=gen), offsets


@pytest.mark.parametrize(("kind", "tolerance"), KINDS.items())
@pytest.mark.parametrize("shape", LENGTHS)
def test_equals_the_float64_reference(shape, kind, tolerance, rms, poison, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1024)
    lengths = LENGTHS[shape][:60]
    documents = make(lengths, kind)
    queries, offsets = ask([5, 0, 1, 33])
    got = maxsim(queries, documents, query_offsets=offsets)
    want = maxsim_reference(queries.double(), documents, query_offsets=offsets)
    assert got.dtype == torch.float32
    assert rms(got, want) < tolerance


@pytest.mark.parametrize(("kind", "tolerance"), KINDS.items())
@pytest.mark.parametrize("native", [True, False])
def test_every_processor_gets_the_same(kind, tolerance, native, rms, monkeypatch):
    # torch multiplies all types everywhere; natively only some processors do
    monkeypatch.setattr(ways, "multiplies", lambda dtype: native)
    documents = make(LENGTHS["mixed"], kind)
    queries, offsets = ask([5, 1, 33])
    queries[3] = 0
    got = maxsim(queries, documents, query_offsets=offsets)
    want = maxsim_reference(queries.double(), documents, query_offsets=offsets)
    assert rms(got, want) < (tolerance if native else 1e-5)


def test_ten_thousand_documents(rms):
    documents, (queries, _) = make(LENGTHS["many"]), ask([3])
    got = maxsim(queries, documents)
    sims = queries.double() @ documents.tokens.double().T
    places = documents.offsets.tolist()
    pairs = pairwise(places)
    want = [float(sims[:, a:b].amax(1).sum()) if b > a else -torch.inf for a, b in pairs]
    assert rms(got, torch.tensor([want], dtype=torch.float64)) < 1e-5


@pytest.mark.parametrize("k", [1, 3, 500])
def test_topk_is_the_full_sort(k, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1024)
    documents = make([0, 3, 9, 9, 1, 0, 30, 4] * 20, "int8")
    queries, offsets = ask([4, 7])
    scores, ids = maxsim_topk(queries, documents, k, query_offsets=offsets)
    every = maxsim(queries, documents, query_offsets=offsets)
    ranked, order = every.sort(dim=1, descending=True, stable=True)
    n = min(k, 120)  # of 160, 40 are empty
    assert torch.allclose(scores[:, :n], ranked[:, :n])
    assert torch.equal(ids[:, :n], order[:, :n])
    assert (ids[:, n:] == -1).all()
    assert (scores[:, n:] == -torch.inf).all()


def test_equal_documents_come_in_order(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 256)
    token = torch.ones(1, 8)
    documents = Documents(token.repeat(600, 1), offsets_of([1] * 600))
    _, ids = maxsim_topk(token, documents, 5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]]


def test_one_token_each_is_the_dot_product():
    a, b = torch.randn(1, 16), torch.randn(1, 16)
    assert torch.allclose(maxsim(a, Documents(b, offsets_of([1]))), a @ b.T)


def test_a_token_more_never_lowers_the_score():
    documents, (queries, _) = make([9, 9]), ask([6])
    more = torch.cat([documents.tokens, torch.randn(1, 24)])
    after = maxsim(queries, Documents(more, offsets_of([9, 10])))
    assert (after >= maxsim(queries, documents) - 1e-6).all()


def test_the_order_of_tokens_does_not_matter():
    documents, (queries, _) = make([20]), ask([6])
    turned = Documents(documents.tokens.flip(0), documents.offsets)
    assert torch.allclose(maxsim(queries, turned), maxsim(queries, documents))


def test_matches_name_the_token_that_won():
    documents, (queries, _) = make(LENGTHS["mixed"]), ask([6])
    values, where = maxsim_matches(queries, documents)
    sims = queries @ documents.tokens.T
    for n, (a, b) in enumerate(zip(documents.offsets, documents.offsets[1:], strict=False)):
        if a == b:
            assert (where[:, n] == -1).all()
            continue
        assert torch.allclose(values[:, n], sims[:, a:b].amax(1), atol=1e-6)
        assert torch.allclose(sims[:, a:b].gather(1, where[:, n : n + 1])[:, 0], values[:, n])


def test_int8_stays_within_its_bound():
    exact = make([4, 50, 7])
    coded = quantise(exact.tokens, exact.offsets, "int8")
    queries, _ = ask([9])
    bound = float(coded.scales.max()) / 2 * queries.abs().sum()
    assert (maxsim(queries, coded) - maxsim(queries, exact)).abs().max() <= bound


def test_one_bit_codes_find_a_near_copy():
    documents = make([20] * 50, dim=128)
    coded = quantise(documents.tokens, documents.offsets, "onebit")
    assert coded.tokens.shape == (1000, 16)
    queries = documents.tokens[140:160] + 0.02 * torch.randn(20, 128)
    assert maxsim_topk(queries, coded, 1)[1].tolist() == [[7]]


def test_zero_tokens_have_codes():
    documents = quantise(torch.zeros(2, 8), offsets_of([2]), "int8")
    assert maxsim(torch.ones(1, 8), documents).tolist() == [[0.0]]


def test_gradient():
    documents = make([3, 0, 1, 5], "float64", dim=4)
    queries, offsets = ask([2, 3], dim=4)
    queries = queries.double().requires_grad_()
    tokens = documents.tokens.requires_grad_()

    def score(q, d):
        scores = maxsim(q, Documents(d, documents.offsets), query_offsets=offsets)
        return scores[:, [0, 2, 3]]  # what is -inf has no slope

    assert torch.autograd.gradcheck(score, (queries, tokens))
    score(queries, tokens).square().sum().backward()
    got = queries.grad.clone(), tokens.grad.clone()
    queries.grad = tokens.grad = None
    want = maxsim_reference(queries, Documents(tokens, documents.offsets), query_offsets=offsets)
    want[:, [0, 2, 3]].square().sum().backward()
    assert torch.allclose(got[0], queries.grad)
    assert torch.allclose(got[1], tokens.grad)


def test_a_gradient_through_empty_documents_is_finite():
    queries = torch.randn(2, 8, requires_grad=True)
    scores = maxsim(queries, Documents(torch.randn(3, 8), offsets_of([0, 3])))
    scores.logsumexp(1).sum().backward()
    assert queries.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "onebit"])
def test_triton_equals_the_reference(kind, interpreter, rms):
    documents = make([0, 5, 1, 37], kind)
    documents = Documents(
        *(None if t is None else t.to(interpreter) for t in
          (documents.tokens, documents.offsets, documents.scales))
    )  # fmt: skip
    queries, offsets = (t.to(interpreter) for t in ask([3, 0, 18]))
    if kind == "bfloat16":
        queries = queries.bfloat16()
    got = maxsim(queries, documents, query_offsets=offsets, backend="triton")
    want = maxsim_reference(queries.double(), documents, query_offsets=offsets)
    assert rms(got, want) < 1e-5
    values, where = maxsim_matches(queries, documents, backend="triton")
    want_values, want_where = maxsim_matches(queries, documents, backend="cpu")
    assert rms(values, want_values) < KINDS[kind]  # the cpu path's own bound
    if kind != "bfloat16":
        assert torch.equal(where, want_where)


def test_triton_gradient(interpreter):
    found = {}
    for backend in ("triton", "cpu"):
        documents = make([2, 0, 19])
        queries, offsets = ask([3, 2])
        leaves = [t.to(interpreter).detach().requires_grad_() for t in (queries, documents.tokens)]
        ragged = Documents(leaves[1], documents.offsets.to(interpreter))
        at = offsets.to(interpreter)
        maxsim(leaves[0], ragged, query_offsets=at, backend=backend)[:, [0, 2]].sum().backward()
        found[backend] = [t.grad for t in leaves]
    for a, b in zip(found["triton"], found["cpu"], strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_wrong_shapes_are_named():
    documents = make([3])
    with pytest.raises(ShapeError, match=r"queries \(s, 24\)"):
        maxsim(torch.randn(2, 8), documents)
    with pytest.raises(ShapeError, match="rise from 0 to 3"):
        Documents(documents.tokens, torch.tensor([0, 2]))
    with pytest.raises(ShapeError, match="scales"):
        Documents(torch.zeros(1, 8, dtype=torch.int8), torch.tensor([0, 1]))
    with pytest.raises(ShapeError, match="onebit"):
        quantise(torch.randn(1, 9), torch.tensor([0, 1]), "onebit")
    with pytest.raises(ShapeError, match="at least 1"):
        maxsim_topk(torch.randn(2, 24), documents, 0)


def test_triton_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(FoveateError, match="triton"):
        maxsim(torch.randn(2, 24), make([3]), backend="triton")
