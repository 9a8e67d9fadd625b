"""Orders by attention, over scans whose attention is known."""

import numpy as np
import pytest

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.testing import hit_of, lend
from foveate.pipeline.types import Context, Kept
from foveate.rerank.attention import Look
from foveate.rerank.order import attention as orders
from foveate.rerank.order.attention import AttentionSorting, FoundInTheMiddle, dummy


class Scan:
    """Attention a token: what the text is worth, times or plus what its place gets."""

    def __init__(self, worth, place=lambda i, n: 1.0):
        self.worth, self.place, self.n_looks = worth, place, 0

    def look(self, query, passages):
        self.n_looks += 1
        n = len(passages)
        tokens = [len(p.split()) for p in passages]
        each = [self.worth(p) * self.place(i, n) for i, p in enumerate(passages)]
        scores = np.asarray([a * t for a, t in zip(each, tokens, strict=True)], dtype=np.float32)
        rows = tuple(np.full(t, a, dtype=np.float32) for a, t in zip(each, tokens, strict=True))
        spans = tuple(np.zeros((t, 2), dtype=np.int32) for t in tokens)
        ids = tuple(np.zeros(t, dtype=np.int64) for t in tokens)
        ones = np.ones(n, dtype=np.int64)
        return Look(scores, rows, spans, ids, scores[:, None], None, ones, ones[:0])


def context_of(*texts):
    kept = [
        Kept(hit_of(text, id=i, score=1 / i), ((0, len(text)),))
        for i, text in enumerate(texts, start=1)
    ]
    return Context(tuple(kept), 0)


def ids(context):
    return [k.hit.passage.id for k in context.kept]


def worth(text):
    return 1.0 + 2.0 * text.count("wing")


CONTEXT = ("a wing and a wing", "nothing here at all", "one wing in a longer text than the others")


@pytest.fixture
def scan(monkeypatch):
    def put(scan):
        monkeypatch.setattr(orders, "reader_scan", lambda resources, options: scan)
        return scan

    return put


def test_attention_sorting_puts_the_most_looked_at_last_and_stops_when_stable(scan):
    seen = scan(Scan(worth))
    got = AttentionSorting(lend(), passes=5).order("wing", context_of(*CONTEXT))
    assert ids(got) == [2, 3, 1]
    # one pass to sort, one to see that nothing moves
    assert seen.n_looks == got.trace["order"]["passes"] == 2


def test_attention_sorting_ends_after_so_many_passes(scan):
    # whatever stands first is looked at most, so the order never settles
    seen = scan(Scan(lambda text: 1.0, place=lambda i, n: float(n - i)))
    got = AttentionSorting(lend(), passes=4).order("wing", context_of(*CONTEXT))
    assert seen.n_looks == got.trace["order"]["passes"] == 4
    assert sorted(ids(got)) == [1, 2, 3]


@pytest.mark.parametrize("dummies", ["together", "each"])
def test_what_a_place_gets_for_any_text_is_taken_off(scan, dummies):
    # the first place gets far more than the others, whatever stands there
    scan(Scan(worth, place=lambda i, n: 5.0 if i == 0 else 1.0))
    texts = ("nothing of note", "one wing", "a wing by a wing")
    got = FoundInTheMiddle(lend(), dummies=dummies).order("wing", context_of(*texts))
    assert ids(got) == [1, 2, 3]
    scan(Scan(worth, place=lambda i, n: 5.0 if i == 0 else 1.0))
    raw = AttentionSorting(lend(), passes=1).order("wing", context_of(*texts))
    assert ids(raw) == [2, 1, 3]


@pytest.mark.parametrize("dummies", ["together", "each"])
def test_dummies_everywhere_are_equally_relevant(scan, dummies):
    scan(Scan(worth, place=lambda i, n: float(i + 1)))
    texts = [dummy("x" * length) for length in (40, 40, 40)]
    got = FoundInTheMiddle(lend(), dummies=dummies).order("wing", context_of(*texts))
    assert ids(got) == [1, 2, 3]


@pytest.mark.parametrize("kind", [AttentionSorting, FoundInTheMiddle])
def test_none_and_one_pass_through_without_a_reader(kind):
    assert kind(lend()).order("q", context_of()).kept == ()
    assert ids(kind(lend()).order("q", context_of("one wing"))) == [1]


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="passes >= 1"):
        AttentionSorting(lend(), passes=0)
    with pytest.raises(ConfigError, match="together"):
        FoundInTheMiddle(lend(), dummies="some")
