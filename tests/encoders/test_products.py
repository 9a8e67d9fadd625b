"""Packed products give what plain ones give, and plain ones serve where packing is not there."""

import pytest
import torch

from foveate.encoders import products
from foveate.encoders.products import Packed, Product, packing_works, product

needs_packing = pytest.mark.skipif(not packing_works(), reason="no packed bfloat16 products here")


def made(n_rows, n_in, n_out):
    draw = torch.Generator().manual_seed(n_rows)
    shapes = (n_rows, n_in), (n_in, n_out), (n_out,), (n_rows, n_out)
    return [torch.randn(s, generator=draw).to(torch.bfloat16) for s in shapes]


def rms(got, want):
    return float((got.double() - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt())


@pytest.mark.parametrize("kind", [Product, pytest.param(Packed, marks=needs_packing)])
@pytest.mark.parametrize("n_rows", [1, 3, 512, 700])
@torch.inference_mode()
def test_each_product_is_the_formula(kind, n_rows):
    x, weight, bias, y = made(n_rows, 48, 80)
    times = kind(weight, bias)
    straight = x.double() @ weight.double()
    assert rms(times(x), straight + bias.double()) < 5e-3
    for shape in ("none", "tanh"):
        want = torch.nn.functional.gelu(straight + bias.double(), approximate=shape)
        assert rms(times.gelu(x, shape), want) < 5e-3
    assert rms(kind(weight).onto(y.clone(), x), y.double() + straight) < 5e-3
    assert rms(kind(weight)(x), straight) < 5e-3


def test_float32_is_never_packed():
    weight = torch.zeros(4, 4)
    assert type(product(weight)) is Product


@pytest.mark.parametrize("fault", [AttributeError, RuntimeError, TypeError])
def test_without_packing_plain_products_serve(fault, monkeypatch):
    def broken(self, weight, bias=None):
        raise fault("not in this torch")

    monkeypatch.setattr(Packed, "__init__", broken)
    products.packing_works.cache_clear()
    try:
        assert type(product(torch.zeros(4, 4, dtype=torch.bfloat16))) is Product
    finally:
        products.packing_works.cache_clear()


def test_packing_that_gives_other_numbers_is_not_used(monkeypatch):
    monkeypatch.setattr(Packed, "__call__", lambda self, x: torch.zeros(len(x), 32))
    products.packing_works.cache_clear()
    try:
        assert not packing_works()
    finally:
        monkeypatch.undo()
        products.packing_works.cache_clear()
