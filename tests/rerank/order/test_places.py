import pytest

from foveate.pipeline import registry
from foveate.pipeline.testing import hit_of, lend
from foveate.pipeline.types import Context, Kept
from foveate.rerank.order.places import Ranked, Reversed, Sides


def context_of(*scores):
    kept = [
        Kept(hit_of(f"text {i}", id=i, score=s), ((0, 6),)) for i, s in enumerate(scores, start=1)
    ]
    return Context(tuple(kept), 2 * len(kept), {"compress": {"by": "x"}})


def ids(context):
    return [k.hit.passage.id for k in context.kept]


@pytest.mark.parametrize(
    ("kind", "want"),
    [(Ranked, [2, 4, 1, 3, 5]), (Reversed, [5, 3, 1, 4, 2]), (Sides, [2, 1, 5, 3, 4])],
)
def test_orders_by_rank(kind, want):
    context = context_of(0.5, 0.9, 0.4, 0.8, 0.1)
    got = kind(lend()).order("q", context)
    assert ids(got) == want
    assert got.n_tokens == context.n_tokens
    assert got.trace["compress"] == {"by": "x"}
    assert got.trace["order"]["passages"] == want


@pytest.mark.parametrize("kind", [Ranked, Reversed, Sides])
def test_equal_none_and_one_pass_through(kind):
    orderer = kind(lend())
    assert orderer.order("q", context_of()).kept == ()
    assert ids(orderer.order("q", context_of(0.3))) == [1]
    assert sorted(ids(orderer.order("q", context_of(0.3, 0.3, 0.3)))) == [1, 2, 3]


def test_ranked_keeps_equal_ones_as_they_came():
    assert ids(Ranked(lend()).order("q", context_of(0.3, 0.3, 0.3))) == [1, 2, 3]


def test_the_orders_are_registered():
    names = registry.names("order")
    assert {"ranked", "reversed", "sides"} <= set(names)
    for name in ("ranked", "reversed", "sides"):
        assert registry.find("order", name).name == name
