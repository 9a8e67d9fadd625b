from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from foveate.encoders.pooling import EfficientProbe, LatentAttention, masked_mean, pool
from foveate.pipeline.errors import ConfigError


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


MASK = torch.tensor([[True, True, True, False], [False, True, True, True]])


class TestPlain:
    def test_each_kind_by_hand(self) -> None:
        x = draw(2, 4, 3)
        assert torch.allclose(pool(x, "mean", MASK)[0], x[0, :3].mean(0))
        assert torch.equal(pool(x, "cls", MASK), torch.stack([x[0, 0], x[1, 1]]))
        assert torch.equal(pool(x, "last", MASK), torch.stack([x[0, 2], x[1, 3]]))

    @pytest.mark.parametrize("kind", ["mean", "cls", "last"])
    def test_without_padding_no_mask_is_needed(self, kind: str) -> None:
        x = draw(2, 4, 3)
        everywhere = torch.ones(2, 4, dtype=torch.bool)
        assert torch.allclose(pool(x, kind), pool(x, kind, everywhere))

    def test_an_unknown_kind_names_the_known(self) -> None:
        with pytest.raises(ConfigError, match="mean, cls, last"):
            pool(draw(1, 2, 3), "max")


class TestLatentAttention:
    @pytest.fixture
    def pooler(self) -> LatentAttention:
        torch.manual_seed(0)
        return LatentAttention(16, n_latents=6, n_heads=4)

    def test_without_output_projections_it_is_the_mean(self, pooler) -> None:
        for tensor in (pooler.out.weight, pooler.down.weight, pooler.down.bias):
            torch.nn.init.zeros_(tensor)
        x = draw(2, 4, 16)
        want = F.normalize(masked_mean(x, MASK), dim=1)
        assert torch.allclose(pooler(x, MASK), want, atol=1e-6)

    def test_the_order_of_latents_does_not_matter(self, pooler) -> None:
        x = draw(2, 4, 16)
        want = pooler(x, MASK)
        with torch.no_grad():
            pooler.latents.copy_(pooler.latents.flip(0))
        assert torch.allclose(pooler(x, MASK), want, atol=1e-6)

    def test_padding_and_instructions_change_nothing(self, pooler) -> None:
        x = draw(2, 4, 16)
        want = pooler(x, MASK)
        x[~MASK] = 100.0
        assert torch.allclose(pooler(x, MASK), want, atol=1e-6)

    def test_heads_must_divide(self) -> None:
        with pytest.raises(ConfigError, match="8 heads"):
            LatentAttention(30)


class TestEfficientProbe:
    def test_one_query_and_no_key_is_the_mean(self) -> None:
        probe = EfficientProbe(8, n_queries=1)
        torch.nn.init.zeros_(probe.key.weight)
        x = draw(2, 5, 8)
        assert torch.allclose(probe(x), x.mean(1), atol=1e-6)

    @pytest.mark.parametrize("merge", ["mean", "split"])
    def test_the_order_of_patches_does_not_matter(self, merge: str) -> None:
        torch.manual_seed(0)
        probe = EfficientProbe(8, n_queries=4, merge=merge)
        x = draw(2, 5, 8)
        assert torch.allclose(probe(x.flip(1)), probe(x), atol=1e-6)
        assert probe(x).shape == (2, 8)

    def test_rows_sum_to_one_and_skip_padding(self) -> None:
        probe = EfficientProbe(8, n_queries=3)
        a = probe.attention(draw(2, 4, 8), MASK)
        assert torch.allclose(a.sum(-1), torch.ones(2, 3))
        assert (a[0, :, 3] == 0).all()

    def test_split_takes_each_querys_own_channels(self) -> None:
        torch.manual_seed(0)
        probe = EfficientProbe(4, n_queries=2, merge="split")
        x = draw(1, 3, 4)
        each = probe.attention(x) @ x
        assert torch.allclose(probe(x)[0], torch.cat([each[0, 0, :2], each[0, 1, 2:]]))

    def test_a_split_that_does_not_divide_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="split"):
            EfficientProbe(10, n_queries=4, merge="split")
