from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from foveate.encoders.train import losses
from foveate.encoders.train.loss.captions import (
    conditioned_columns,
    word_region_map,
    word_region_scores,
)
from foveate.encoders.train.loss.judged import weights_of
from foveate.encoders.train.loss.local import clip, patches_inside
from foveate.encoders.train.loss.replaced import replaced_labels
from foveate.pipeline.errors import ConfigError, ShapeError
from foveate.pipeline.types import Box

WIDE = torch.float64


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(draw(*shape, seed=seed), dim=-1)


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


def check_gradient(loss, *inputs: torch.Tensor) -> None:
    assert torch.autograd.gradcheck(loss, tuple(leaf(x) for x in inputs), eps=1e-6, atol=1e-5)


class TestInfoNCE:
    def test_by_hand(self) -> None:
        q = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=WIDE)
        d = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=WIDE)
        # rows of logits at T = 0.5: (2, 1.2) and (0, 1.6)
        want = (math.log(1 + math.exp(-0.8)) + math.log(1 + math.exp(-1.6))) / 2
        assert losses.infonce(q, d, temperature=0.5).item() == pytest.approx(want, abs=1e-6)

    def test_targets_name_the_positive(self) -> None:
        q, d = unit(2, 4), unit(5, 4, seed=1)
        targets = torch.tensor([3, 0])
        want = F.cross_entropy(q @ d.T / 0.05, targets)
        assert losses.infonce(q, d, targets).item() == pytest.approx(want.item(), rel=1e-5)

    def test_gradient(self) -> None:
        check_gradient(lambda q, d: losses.infonce(q, d, temperature=0.5), unit(3, 4), unit(4, 4))


class TestSimCSE:
    def test_identical_rows_give_log_b(self) -> None:
        z = unit(1, 8).expand(6, 8)
        assert losses.simcse_unsupervised(z, z).item() == pytest.approx(math.log(6), abs=1e-6)

    def test_orthonormal_rows(self) -> None:
        z = torch.eye(5, dtype=WIDE)
        want = math.log(1 + 4 * math.exp(-1 / 0.05))
        assert losses.simcse_unsupervised(z, z).item() == pytest.approx(want, abs=1e-9)

    def test_without_dropout_the_diagonal_is_one_over_t(self) -> None:
        # z = z': only a diagonal of exactly 1/T gives this value
        z = unit(4, 8)
        logits = z @ z.T / 0.05
        want = (logits.logsumexp(1) - 1 / 0.05).mean()
        assert losses.simcse_unsupervised(z, z).item() == pytest.approx(want.item(), rel=1e-6)

    def test_hard_negatives_stand_in_every_denominator(self) -> None:
        a, p, n = torch.eye(2, 4, dtype=WIDE), torch.eye(2, 4, dtype=WIDE), unit(2, 4)
        logits = torch.cat([a @ p.T, a @ n.T], dim=1) / 0.1
        want = F.cross_entropy(logits, torch.arange(2))
        got = losses.simcse_supervised(a, p, n, temperature=0.1)
        assert got.item() == pytest.approx(want.item(), rel=1e-6)

    def test_gradients(self) -> None:
        check_gradient(
            lambda a, b: losses.simcse_unsupervised(a, b, temperature=0.5), draw(3, 4), draw(3, 4)
        )
        check_gradient(
            lambda a, p, n: losses.simcse_supervised(a, p, n, temperature=0.5),
            draw(3, 4),
            draw(3, 4, seed=1),
            draw(3, 4, seed=2),
        )


class TestFocalInfoNCE:
    def test_by_hand(self) -> None:
        # cosines [[1, .5], [.5, 1]]
        first = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=WIDE)
        got = losses.focal_infonce(first, first, margin=0.0, temperature=1.0)
        assert got.item() == pytest.approx(0.38687, abs=1e-5)

    def test_orthonormal_rows(self) -> None:
        z = torch.eye(4, dtype=WIDE)
        want = math.log(1 + 3 * math.exp(-1 / 0.05))
        assert losses.focal_infonce(z, z).item() == pytest.approx(want, abs=1e-9)

    def test_a_negative_cosine_never_turns_the_gradient_round(self) -> None:
        a = leaf(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=WIDE))
        b = torch.tensor([[-0.9, 0.4], [-0.1, 1.0]], dtype=WIDE)
        losses.focal_infonce(a, b, temperature=1.0).backward()
        # squared as it is, the pair of cosine -0.9 would be driven further apart
        assert a.grad[0].tolist() == [0, 0]

    def test_gradient(self) -> None:
        rows = draw(3, 4).abs()  # away from the clamp
        check_gradient(lambda a, b: losses.focal_infonce(a, b, temperature=0.5), rows, rows.flip(0))


class TestHinge:
    def made(self, positive: float, negative: float):
        anchor = torch.tensor([[1.0, 0.0, 0.0]], dtype=WIDE)
        others = [(c, math.sqrt(1 - c * c)) for c in (positive, negative)]
        own, other = (torch.tensor([[c, s, 0.0]], dtype=WIDE) for c, s in others)
        # two negatives: one is the hardest
        return anchor, own, torch.cat([other, torch.tensor([[0.0, 0.0, 1.0]], dtype=WIDE)])

    def test_by_hand(self) -> None:
        parts = self.made(0.9, 0.6)
        assert losses.hard_hinge(*parts, margin=0.2).item() == pytest.approx(0)
        assert losses.hard_hinge(*parts, margin=0.4).item() == pytest.approx(0.1)

    def test_the_own_positive_is_no_negative(self) -> None:
        z = torch.eye(3, dtype=WIDE)
        assert losses.hard_hinge(z, z, margin=0.2).item() == 0  # with it, 0.2

    def test_a_single_pair_is_refused(self) -> None:
        with pytest.raises(ShapeError, match="larger batch"):
            losses.hard_hinge(unit(1, 4), unit(1, 4))

    def test_gradient(self) -> None:
        check_gradient(
            lambda a, p, n: losses.hard_hinge(a, p, n, margin=1.0),
            draw(3, 4),
            draw(3, 4, seed=1),
            draw(3, 4, seed=2),
        )


class TestSupCon:
    def test_equal_vectors_of_one_label(self) -> None:
        z = unit(1, 4).expand(5, 4)
        got = losses.supcon(z, torch.zeros(5, dtype=torch.long))
        assert got.item() == pytest.approx(math.log(4), abs=1e-6)

    def test_two_views_of_single_labels_are_simclr(self) -> None:
        first, second = unit(4, 6), unit(4, 6, seed=1)
        both = torch.cat([first, second])
        logits = (both @ both.T / 0.1).fill_diagonal_(-torch.inf)
        want = F.cross_entropy(logits, torch.arange(8).roll(4))
        got = losses.supcon(both, torch.arange(4).repeat(2), temperature=0.1)
        assert got.item() == pytest.approx(want.item(), rel=1e-9)

    def test_lone_labels_are_refused(self) -> None:
        with pytest.raises(ShapeError, match="one label"):
            losses.supcon(unit(3, 4), torch.arange(3))

    def test_gradient(self) -> None:
        labels = torch.tensor([0, 0, 1, 1, 2])
        check_gradient(lambda z: losses.supcon(z, labels, temperature=0.5), draw(5, 4))


class TestComposition:
    def test_a_linear_bag_is_its_parts_sum(self) -> None:
        first, second = draw(3, 5), draw(3, 5, seed=1)
        whole = first + second
        want = losses.simcse_unsupervised(whole, whole)
        got = losses.composition(whole, first, second)
        assert got.item() == pytest.approx(want.item(), rel=1e-6)

    def test_gradient(self) -> None:
        check_gradient(
            lambda w, a, b: losses.composition(w, a, b, temperature=0.5),
            draw(3, 4),
            draw(3, 4, seed=1),
            draw(3, 4, seed=2),
        )


class TestPolyView:
    @pytest.mark.parametrize("kind", ["geometric", "arithmetic", "statistic"])
    def test_two_views_are_simclr(self, kind: str) -> None:
        views = draw(2, 4, 6)
        ways = [losses.simcse_unsupervised(a, b) for a, b in (views, views.flip(0))]
        want = sum(way.item() for way in ways) / 2
        assert losses.poly_view(views, kind=kind).item() == pytest.approx(want, rel=1e-5)

    def test_three_views_differ_by_kind(self) -> None:
        views = draw(3, 4, 6)
        found = [
            losses.poly_view(views, kind=kind).item()
            for kind in ("geometric", "arithmetic", "statistic")
        ]
        assert found[1] < found[0]  # the log of a mean is above the mean of logs
        assert len({round(x, 6) for x in found}) == 3

    def test_unknown_kinds_are_refused(self) -> None:
        with pytest.raises(ShapeError, match="'median'"):
            losses.poly_view(draw(2, 3, 4), kind="median")

    @pytest.mark.parametrize("kind", ["geometric", "arithmetic", "statistic"])
    def test_gradient(self, kind: str) -> None:
        check_gradient(lambda v: losses.poly_view(v, kind=kind, temperature=0.5), draw(3, 3, 4))


class TestDebiased:
    def test_a_threshold_of_one_is_infonce(self) -> None:
        q, d = unit(4, 6), unit(4, 6, seed=1)
        got = losses.debiased(q, d, q @ d.T, threshold=1.0)
        assert got.item() == pytest.approx(losses.infonce(q, d).item(), rel=1e-5)

    def test_likely_positives_leave_the_denominator(self) -> None:
        q = torch.eye(2, dtype=WIDE)
        close = torch.tensor([[1.0, 0.95], [0.95, 1.0]], dtype=WIDE)
        assert losses.debiased(q, q, close, threshold=0.9).item() == pytest.approx(0)

    def test_gradient(self) -> None:
        close = torch.zeros(3, 3, dtype=WIDE)
        close[0, 1] = 1
        check_gradient(
            lambda q, d: losses.debiased(q, d, close, temperature=0.5), unit(3, 4), unit(3, 4)
        )


class TestSpread:
    def test_alignment_of_equal_pairs_is_zero(self) -> None:
        z = unit(4, 5)
        assert losses.alignment(z, z).item() == 0

    def test_alignment_by_hand(self) -> None:
        a = torch.tensor([[1.0, 0.0]], dtype=WIDE)
        b = torch.tensor([[0.0, 1.0]], dtype=WIDE)
        assert losses.alignment(a, b).item() == pytest.approx(2)
        assert losses.alignment(a, b, alpha=1).item() == pytest.approx(math.sqrt(2))

    def test_uniformity_of_equal_vectors_is_zero(self) -> None:
        z = unit(1, 5).expand(4, 5)
        assert losses.uniformity(z).item() == pytest.approx(0, abs=1e-12)

    def test_uniformity_of_an_antipodal_pair_is_minus_eight(self) -> None:
        z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=WIDE)
        assert losses.uniformity(z).item() == pytest.approx(-8)

    def test_anchored_by_hand(self) -> None:
        a = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=WIDE)
        b = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=WIDE)
        assert losses.anchored(a, b).item() == pytest.approx(0.2)

    def test_gradients(self) -> None:
        check_gradient(losses.alignment, unit(3, 4), unit(3, 4, seed=1))
        check_gradient(losses.uniformity, unit(4, 4))
        check_gradient(losses.anchored, unit(3, 4), unit(3, 4, seed=1))


class TestGraded:
    def test_equal_weights_are_clips_loss(self) -> None:
        q, d = unit(4, 6), unit(4, 6, seed=1)
        got = losses.graded(q, d, torch.full((4,), 3.0, dtype=WIDE))
        assert got.item() == pytest.approx(clip(q, d, temperature=0.05).item(), rel=1e-9)

    def test_by_hand(self) -> None:
        q = torch.eye(2, dtype=WIDE)
        d = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=WIDE)
        # logits at T = 1: (1, .6), (0, .8); p(d|q): -.4, -.8; p(q|d) columns (1, 0), (.6, .8)
        forth = [math.log(1 + math.exp(-0.4)), math.log(1 + math.exp(-0.8))]
        back = [math.log(1 + math.exp(-1.0)), math.log(1 + math.exp(-0.2))]
        want = (3 * (forth[0] + back[0]) + forth[1] + back[1]) / 8
        weights = torch.tensor([3.0, 1.0], dtype=WIDE)
        assert losses.graded(q, d, weights, temperature=1.0).item() == pytest.approx(want)

    def test_weight_zero_is_a_negative_only(self) -> None:
        q, d = leaf(unit(3, 4)), leaf(unit(3, 4, seed=1))
        weights = torch.tensor([1.0, 2.0, 0.0], dtype=WIDE)
        losses.graded(q, d, weights).backward()
        # as a negative of the others document 2 is pushed away from them, not drawn to its query
        others = d.grad[2] @ torch.stack([q[0], q[1]]).detach().T
        assert (others > 0).any()
        pair = torch.autograd.grad(losses.graded(q, d, weights), q, create_graph=False)[0][2]
        # query 2 is a negative for documents 0 and 1: its gradient lies in their span alone
        span = torch.linalg.lstsq(d[:2].detach().T, pair[:, None]).solution
        assert torch.allclose((d[:2].detach().T @ span)[:, 0], pair)

    def test_scaling_all_weights_changes_nothing(self) -> None:
        q, d, w = unit(3, 4), unit(3, 4, seed=1), torch.tensor([1.0, 2.0, 4.0], dtype=WIDE)
        assert losses.graded(q, d, w).item() == pytest.approx(losses.graded(q, d, 7 * w).item())

    def test_weights_by_kind(self) -> None:
        grades = torch.tensor([4.0, 1.0, 2.0, 0.0], dtype=WIDE)
        assert weights_of(grades).tolist() == [4, 1, 2, 0]
        assert weights_of(grades, "constant").tolist() == [1, 1, 1, 0]
        assert weights_of(grades, "reciprocal").tolist() == pytest.approx([1, 1 / 3, 1 / 2, 0])
        assert weights_of(grades, "log").tolist() == pytest.approx(
            [math.log(5), math.log(2), math.log(3), 0]
        )
        with pytest.raises(ConfigError, match="linear"):
            weights_of(grades, "cubic")

    def test_no_positive_weight_is_refused(self) -> None:
        with pytest.raises(ShapeError, match="above 0"):
            losses.graded(unit(2, 3), unit(2, 3), torch.zeros(2, dtype=WIDE))

    def test_gradient(self) -> None:
        weights = torch.tensor([1.0, 0.0, 4.0], dtype=WIDE)
        check_gradient(
            lambda q, d, n: losses.graded(q, d, weights, n, temperature=0.5),
            unit(3, 4),
            unit(3, 4, seed=1),
            unit(2, 4, seed=2),
        )


class TestQuerySide:
    def test_hinge_is_zero_where_it_should_be(self) -> None:
        q = torch.eye(2, 4, dtype=WIDE)
        away = torch.eye(4, dtype=WIDE)[2:]
        assert losses.query_side(q, q, away, kind="hinge", margin=0.0).item() == 0

    def test_swapping_turns_a_zero_hinge_into_the_gap(self) -> None:
        q, near = unit(1, 6), unit(1, 6, seed=1)
        near, far = (near, -near) if (q * near).sum() > 0 else (-near, near)
        assert losses.query_side(q, near, far, kind="hinge", margin=0.0).item() == 0
        gap = ((q * near).sum() - (q * far).sum()).item()
        got = losses.query_side(q, far, near, kind="hinge", margin=0.0)
        assert got.item() == pytest.approx(gap)

    def test_dot_has_no_lower_bound(self) -> None:
        q, far = unit(1, 3), -unit(1, 3)
        found = [losses.query_side(s * q, q, far, kind="dot").item() for s in (1, 10)]
        assert found == pytest.approx([-1, -10])

    def test_infonce_by_hand(self) -> None:
        q = torch.eye(2, dtype=WIDE)
        edits = torch.tensor([[0.6, 0.8], [0.8, 0.6]], dtype=WIDE)
        # query 0 at T = 1 sees its paraphrase 1, the other's 0, the edits .6 and .8
        rows = [[1, 0, 0.6, 0.8], [1, 0, 0.8, 0.6]]
        want = sum(math.log(sum(math.exp(x) for x in row)) - 1 for row in rows) / 2
        assert losses.query_side(q, q, edits, temperature=1.0).item() == pytest.approx(want)

    def test_unknown_kinds_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="known"):
            losses.query_side(unit(1, 2), unit(1, 2), unit(1, 2), kind="square")

    @pytest.mark.parametrize("kind", ["infonce", "hinge", "dot"])
    def test_gradient(self, kind: str) -> None:
        check_gradient(
            lambda q, p, n: losses.query_side(q, p, n, kind=kind, margin=3.0, temperature=0.5),
            unit(3, 4),
            unit(3, 4, seed=1),
            unit(3, 4, seed=2),
        )


class TestSigmoid:
    def test_by_hand(self) -> None:
        x = torch.eye(2, dtype=WIDE)
        # on the diagonal 10 - 5 = 5, elsewhere -5 with label -1: all four are log sigma(5)
        want = 2 * math.log(1 + math.exp(-5))
        assert losses.sigmoid(x, x, scale=10.0, bias=-5.0).item() == pytest.approx(want)

    def test_gradient_of_scale_and_bias_too(self) -> None:
        check_gradient(
            lambda x, t, s, b: losses.sigmoid(x, t, scale=s, bias=b),
            unit(3, 4),
            unit(3, 4, seed=1),
            torch.tensor(2.0, dtype=WIDE),
            torch.tensor(-1.0, dtype=WIDE),
        )


def attend(texts: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
    weights = (texts @ patches.transpose(1, 2)).softmax(-1)
    return F.normalize(weights @ patches, dim=-1)


class TestFlair:
    def test_one_caption_is_siglip(self) -> None:
        x, t = unit(4, 6), unit(4, 6, seed=1)
        want = losses.sigmoid(x, t).item()
        assert losses.flair_global(x, t[:, None]).item() == pytest.approx(want)

    def test_k_positives_a_row(self) -> None:
        captions = unit(3, 2, 4)
        columns, own = conditioned_columns(captions, torch.ones(3, 3, dtype=torch.long))
        assert columns.shape == (3, 4, 4)
        assert own.sum(1).tolist() == [2, 2, 2]
        assert torch.equal(columns[1, :2], captions[1])
        assert torch.equal(columns[1, 2:], captions[[0, 2], 1])

    def test_by_hand(self) -> None:
        # vectors at right angles: every positive product is 1, every negative one 0
        captions = torch.eye(2, dtype=WIDE)[:, None]
        got = losses.flair_conditioned(
            lambda texts, patches: F.normalize(patches.mean(1, keepdim=True), dim=-1).expand_as(
                texts
            ),
            captions,
            captions,
            torch.zeros(2, 2, dtype=torch.long),
            scale=4.0,
            bias=-2.0,
        )
        assert got.item() == pytest.approx(2 * math.log(1 + math.exp(-2)))

    def test_identical_patches_pool_to_one_vector(self) -> None:
        patches = unit(2, 1, 4).expand(2, 5, 4)
        pooled = attend(unit(2, 3, 4, seed=1), patches)
        assert torch.allclose(pooled, pooled[:, :1].expand_as(pooled))

    def test_gradients(self) -> None:
        check_gradient(
            lambda x, t: losses.flair_global(x, t, scale=2.0, bias=-1.0), unit(3, 4), unit(3, 2, 4)
        )
        chosen = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 0, 1]])
        check_gradient(
            lambda p, t: losses.flair_conditioned(attend, p, t, chosen, scale=2.0, bias=-1.0),
            draw(3, 3, 4),
            unit(3, 2, 4),
        )


class TestMultimodal:
    def test_no_weight_is_simcse(self) -> None:
        a, b, s = draw(3, 4), draw(3, 4, seed=1), (draw(3, 5), draw(3, 5, seed=2))
        got = losses.multimodal(a, b, s, draw(3, 5, seed=3), weight=0.0)
        assert got.item() == pytest.approx(losses.simcse_unsupervised(a, b).item())

    def test_by_hand(self) -> None:
        z = torch.eye(2, dtype=WIDE)
        part = math.log(1 + math.exp(-1))
        got = losses.multimodal(z, z, (z, z), z, weight=0.5, temperature=1.0)
        assert got.item() == pytest.approx(1.5 * part, abs=1e-6)

    def test_gradient(self) -> None:
        check_gradient(
            lambda a, b, s, t, v: losses.multimodal(a, b, (s, t), v, weight=1.0, temperature=0.5),
            *(draw(3, 4, seed=seed) for seed in range(5)),
        )


class TestWordRegion:
    def parts(self, n_regions: int = 3):
        words, queries = draw(2, 4, 5), draw(2, 4, 5, seed=1)
        keys, values = draw(2, n_regions, 5, seed=2), draw(2, n_regions, 5, seed=3)
        mask = torch.tensor([[True] * 4, [True, True, False, False]])
        return words, queries, keys, values, mask

    def test_one_region_takes_all(self) -> None:
        _, queries, keys, _, _ = self.parts(1)
        assert torch.equal(word_region_map(queries, keys), torch.ones(2, 4, 1, dtype=WIDE))

    def test_the_order_of_regions_does_not_matter(self) -> None:
        words, queries, keys, values, mask = self.parts()
        turned = (keys.flip(1), values.flip(1))
        assert torch.allclose(
            word_region_scores(words, queries, keys, values, mask),
            word_region_scores(words, queries, *turned, mask),
        )

    def test_padding_has_no_say(self) -> None:
        words, queries, keys, values, mask = self.parts()
        want = losses.word_region(words, queries, keys, values, mask)
        words[1, 2:] = 100
        assert losses.word_region(words, queries, keys, values, mask).item() == want.item()

    def test_by_hand(self) -> None:
        # one word, one region: the compatibility is <word, value>
        w = torch.eye(2, dtype=WIDE)[:, None]
        mask = torch.ones(2, 1, dtype=torch.bool)
        got = losses.word_region(w, w, w, w, mask)
        assert got.item() == pytest.approx(math.log(1 + math.exp(-1)))

    def test_a_better_noun_in_its_place_costs(self) -> None:
        w = torch.eye(2, dtype=WIDE)[:, None]
        mask, place = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.long)
        others = torch.stack([w.flip(0), w.flip(0)], dim=2)
        got = losses.word_region(w, w, w, w, mask, nouns=(place, others))
        assert got.item() == pytest.approx(2 * math.log(1 + math.exp(-1)))

    def test_gradient(self) -> None:
        *parts, mask = self.parts()
        check_gradient(lambda w, q, k, v: losses.word_region(w, q, k, v, mask), *parts)


class TestGoal:
    def test_the_closest_pair_is_chosen(self) -> None:
        regions = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        sentences = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.1, 1.0]])
        assert losses.best_pair(regions, sentences) == (1, 2)

    def test_a_box_names_its_patches(self) -> None:
        assert patches_inside(Box(0, 0, 1, 1), 2, 2).all()
        assert patches_inside(Box(0.5, 0, 1, 0.5), 2, 2).tolist() == [False, True, False, False]
        assert patches_inside(Box(0.01, 0.9, 0.02, 0.95), 2, 2).tolist() == [
            False,
            False,
            True,
            False,
        ]

    def test_the_whole_as_its_part_asks_the_tokens_mean_to_be_the_whole(self) -> None:
        x, t = unit(2, 4), unit(2, 4, seed=1)
        tokens = (x[:, None].expand(2, 3, 4), t[:, None].expand(2, 5, 4))
        everywhere = (torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool))
        got = losses.local_matching((x, t), (x, t), tokens, everywhere)
        assert got.item() == pytest.approx(1.5 * clip(x, t).item())

    def test_without_matching_it_is_both_clip_losses(self) -> None:
        whole, local = (unit(2, 4), unit(2, 4, seed=1)), (unit(2, 4, seed=2), unit(2, 4, seed=3))
        tokens = (draw(2, 3, 4), draw(2, 5, 4))
        some = (torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool))
        got = losses.local_matching(whole, local, tokens, some, weights=(1, 0.5, 0))
        assert got.item() == pytest.approx(clip(*whole).item() + 0.5 * clip(*local).item())

    def test_gradient(self) -> None:
        inside = (torch.eye(2, 3, dtype=torch.bool), torch.eye(2, 3, dtype=torch.bool))
        local = (unit(2, 4, seed=4), unit(2, 4, seed=5))
        check_gradient(
            lambda x, t, p, w: losses.local_matching(
                (x, t), local, (p, w), inside, temperature=0.5
            ),
            unit(2, 4),
            unit(2, 4, seed=1),
            draw(2, 3, 4),
            draw(2, 3, 4, seed=1),
        )


class TestGradientAttention:
    def parts(self):
        gradients, values = draw(2, 1, 4), draw(2, 1, 9, 4)
        attention = torch.zeros(2, 1, 9, dtype=WIDE)
        attention[:, :, :3] = draw(2, 1, 3, seed=5).abs()
        return gradients, attention, values, torch.ones(1, 9, dtype=torch.bool)

    def test_no_attention_no_score(self) -> None:
        gradients, attention, values, mask = self.parts()
        plain = losses.token_scores(gradients, attention, values, mask, windows=0)
        assert (plain[0, 3:] == 0).all()
        assert plain.any()
        near = losses.token_scores(gradients, attention, values, mask)
        assert (near[0, 5:] == 0).all()  # beyond the neighbourhood of what is attended to

    def test_scaling_the_similarity_scales_all_scores(self) -> None:
        gradients, attention, values, mask = self.parts()
        once = losses.token_scores(gradients, attention, values, mask)
        thrice = losses.token_scores(3 * gradients, attention, values, mask)
        assert torch.allclose(thrice, 3 * once)

    def test_the_batch_does_not_matter(self) -> None:
        gradients, attention, values, mask = self.parts()
        alone = losses.token_scores(gradients, attention, values, mask)
        both = losses.token_scores(
            torch.cat([gradients, 9 * gradients], 1),
            torch.cat([attention, attention], 1),
            torch.cat([values, values], 1),
            mask.expand(2, -1),
        )
        assert torch.allclose(both[0], alone[0])

    def test_low_scores_are_masked_at_most_as_often_as_the_cap(self) -> None:
        scores = torch.linspace(0, 1, 8, dtype=WIDE).expand(4000, 8)
        mask = torch.ones(4000, 8, dtype=torch.bool)
        generator = torch.Generator().manual_seed(0)
        low = losses.mask_tokens(scores, mask, kind="low", generator=generator).double().mean(0)
        high = losses.mask_tokens(scores, mask, kind="high", generator=generator).double().mean(0)
        assert (low[4:] == 0).all()
        assert low[0] == low.max()
        assert 0.1 < low[0] < 0.22
        assert (high[:4] == 0).all()
        assert 0.15 < high[-1] < 0.32
        with pytest.raises(ConfigError, match="'low' or 'high'"):
            losses.mask_tokens(scores, mask, kind="middle")

    def test_padding_is_never_masked(self) -> None:
        mask = torch.tensor([[True, True, False]])
        scores = torch.tensor([[1.0, 0.0, 0.0]])
        drawn = [losses.mask_tokens(scores, mask, kind="low", cap=1.0) for _ in range(20)]
        assert not any(bool(d[0, 2]) for d in drawn)

    def test_matching_distribution_by_hand(self) -> None:
        x = torch.eye(2, dtype=WIDE)
        p = 1 / (1 + math.exp(-1))
        row = p * (math.log(p) - math.log(1 + 1e-8)) + (1 - p) * (math.log(1 - p) - math.log(1e-8))
        got = losses.matching_distribution(x, x, torch.arange(2), temperature=1.0)
        assert got.item() == pytest.approx(2 * row)

    def test_gradient(self) -> None:
        labels = torch.tensor([0, 1, 1])
        check_gradient(
            lambda x, t: losses.matching_distribution(x, t, labels, temperature=0.5),
            unit(3, 4),
            unit(3, 4, seed=1),
        )


class TestDistillation:
    def test_equal_towers_cost_nothing(self) -> None:
        x = draw(2, 3, 4, 4)
        assert losses.attention_transfer(x, x).item() == 0
        assert losses.pixelwise(x, x).item() == pytest.approx(0)

    def test_attention_counts_places_not_channels(self) -> None:
        x = draw(2, 3, 4, 4)
        assert losses.attention_transfer(x, 5 * x.flip(1)).item() == pytest.approx(0, abs=1e-12)

    def test_attention_by_hand(self) -> None:
        a = torch.tensor([[[1.0, 0.0]]], dtype=WIDE)
        b = torch.tensor([[[0.0, 1.0]]], dtype=WIDE)
        assert losses.attention_transfer(a, b).item() == pytest.approx(2)

    def test_pixelwise_by_hand(self) -> None:
        student = torch.zeros(1, 2, 1, dtype=WIDE)
        teacher = torch.tensor([[[math.log(3.0)], [0.0]]], dtype=WIDE)  # 3/4, 1/4
        want = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
        assert losses.pixelwise(student, teacher).item() == pytest.approx(want)

    def test_no_gradient_reaches_the_teacher(self) -> None:
        student, teacher = leaf(draw(1, 2, 3)), leaf(draw(1, 2, 3, seed=1))
        (
            losses.attention_transfer(student, teacher) + losses.pixelwise(student, teacher)
        ).backward()
        assert teacher.grad is None
        assert student.grad is not None

    def test_gradients(self) -> None:
        teacher = draw(2, 3, 4, seed=1)
        check_gradient(lambda s: losses.attention_transfer(s, teacher), draw(2, 3, 4))
        check_gradient(lambda s: losses.pixelwise(s, teacher, temperature=2.0), draw(2, 3, 4))


class TestDiffCSE:
    def parts(self):
        first, second = draw(2, 4), draw(2, 4, seed=1)
        mask = torch.tensor([[True, True, True], [True, True, False]])
        return first, second, draw(2, 3, seed=2), mask

    def test_no_weight_is_simcse(self) -> None:
        first, second, logits, mask = self.parts()
        labels = torch.ones(2, 3, dtype=torch.bool)
        got = losses.diffcse(first, second, logits, labels, mask, weight=0.0)
        assert got.item() == losses.simcse_unsupervised(first, second).item()

    def test_a_generator_that_copies_replaces_nothing(self) -> None:
        ids = torch.tensor([[5, 6, 7]])
        everywhere = torch.ones(1, 3, dtype=torch.bool)
        assert not replaced_labels(ids, ids, everywhere).any()

    def test_labels_leave_padding_out(self) -> None:
        ids, filled = torch.tensor([[5, 6, 0]]), torch.tensor([[5, 9, 3]])
        mask = torch.tensor([[True, True, False]])
        assert replaced_labels(ids, filled, mask).tolist() == [[False, True, False]]
        logits = torch.tensor([[0.0, 0.0, 50.0]], dtype=WIDE)
        found = losses.replaced_tokens(logits, filled != ids, mask)
        assert found.item() == pytest.approx(math.log(2))

    def test_gradient(self) -> None:
        first, second, logits, mask = self.parts()
        labels = torch.tensor([[True, False, False], [False, True, False]])
        check_gradient(
            lambda a, b, x: losses.diffcse(a, b, x, labels, mask, weight=1.0, temperature=0.5),
            first,
            second,
            logits,
        )
