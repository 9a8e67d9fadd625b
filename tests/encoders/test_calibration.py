from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from foveate.encoders.calibration import Calibration, attach, calibrate
from foveate.pipeline.errors import ConfigError, ModelError


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).softmax(-1)


class TestCalibrate:
    def test_full_strength_gives_every_basket_the_same(self) -> None:
        got = calibrate(rows(3, 20), Calibration(1.0, 8))
        for start, end in ((0, 8), (8, 16), (16, 20)):
            assert got[:, start:end].sum(1).tolist() == pytest.approx([1 / 3] * 3)

    @pytest.mark.parametrize("n_first", [0, 1])
    @pytest.mark.parametrize("last", [False, True])
    @pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
    def test_rows_still_sum_to_one(self, n_first: int, last: bool, strength: float) -> None:
        got = calibrate(rows(3, 4, 20), Calibration(strength, 8), n_first=n_first, last=last)
        assert torch.allclose(got.sum(-1), torch.ones(3, 4, dtype=torch.float64))

    def test_no_strength_is_the_identity(self) -> None:
        a = rows(3, 20)
        assert torch.allclose(calibrate(a, Calibration(0.0, 4), n_first=1), a)

    def test_one_basket_changes_nothing_where_the_first_token_is_pooled(self) -> None:
        a = rows(3, 9)
        assert torch.allclose(calibrate(a, Calibration(1.0, 8), n_first=1), a)
        moved = calibrate(a, Calibration(1.0, 8), last=True)
        assert moved[:, -1].tolist() == pytest.approx([0.5] * 3)

    def test_proportions_within_a_basket_stay(self) -> None:
        a = rows(1, 12)
        got = calibrate(a, Calibration(1.0, 4))
        assert torch.allclose(got[0, :4] / got[0, 0], a[0, :4] / a[0, 0])

    def test_the_first_token_keeps_its_share(self) -> None:
        a = rows(3, 12)
        got = calibrate(a, Calibration(1.0, 4), n_first=1)
        assert torch.allclose(got[:, 0], a[:, 0])

    def test_by_hand(self) -> None:
        a = torch.tensor([0.4, 0.3, 0.1, 0.2], dtype=torch.float64)
        got = calibrate(a, Calibration(1.0, 2))
        assert got.tolist() == pytest.approx([2 / 7, 1.5 / 7, 1 / 6, 1 / 3])
        half = calibrate(a, Calibration(0.5, 2))
        assert half.tolist() == pytest.approx(((got + a) / 2).tolist())

    def test_padding_on_either_side_makes_no_difference(self) -> None:
        a, none = rows(2, 10), torch.zeros(2, 3, dtype=torch.float64)
        some = torch.ones(2, 10, dtype=torch.bool)
        off = torch.zeros(2, 3, dtype=torch.bool)
        options = {"n_first": 1, "last": True}
        want = calibrate(a, Calibration(0.7, 4), **options)
        left = calibrate(
            torch.cat([none, a], 1), Calibration(0.7, 4), mask=torch.cat([off, some], 1), **options
        )
        right = calibrate(
            torch.cat([a, none], 1), Calibration(0.7, 4), mask=torch.cat([some, off], 1), **options
        )
        assert torch.allclose(left[:, 3:], want)
        assert torch.allclose(right[:, :10], want)

    def test_a_text_without_content_stays(self) -> None:
        a = rows(2, 2)
        assert torch.allclose(calibrate(a, Calibration(1.0, 4), n_first=1, last=True), a)

    def test_wrong_settings_are_named(self) -> None:
        with pytest.raises(ConfigError, match=r"1\.5"):
            Calibration(1.5)
        with pytest.raises(ConfigError, match="basket"):
            Calibration(0.5, 0)

    def test_half_of_the_layers_by_default(self) -> None:
        assert [Calibration().first_layer(n) for n in (6, 12, 3)] == [3, 6, 2]
        assert Calibration(layers=99).first_layer(6) == 0


def bert(pooling: str, calibration: Calibration | None):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    settings = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=64,
    )
    model = BertModel(settings, add_pooling_layer=False).eval()
    if calibration is not None:
        attach(model, calibration, pooling)
    return model


class TestAttach:
    ids = torch.randint(1, 50, (2, 30), generator=torch.Generator().manual_seed(1))

    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_no_strength_changes_nothing(self, pooling: str) -> None:
        with torch.no_grad():
            want = bert(pooling, None)(self.ids).last_hidden_state
            got = bert(pooling, Calibration(0.0, 4))(self.ids).last_hidden_state
        assert torch.allclose(got, want, atol=1e-5)

    @pytest.mark.parametrize(("pooling", "row"), [("cls", 0), ("last", -1)])
    def test_only_the_pooled_row_is_levelled(self, pooling: str, row: int) -> None:
        with torch.no_grad():
            want = bert(pooling, None)(self.ids).last_hidden_state
            got = bert(pooling, Calibration(1.0, 4))(self.ids).last_hidden_state
        same = (got - want).abs().amax(-1) < 1e-5
        assert not same[:, row].any()
        same[:, row] = True
        assert same.all()

    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_padding_makes_no_difference(self, pooling: str) -> None:
        model = bert(pooling, Calibration(1.0, 4))
        padded = F.pad(self.ids, (0, 5))
        mask = (torch.arange(35) < 30).expand(2, -1).long()
        with torch.no_grad():
            want = model(self.ids).last_hidden_state
            got = model(padded, attention_mask=mask).last_hidden_state[:, :30]
        assert torch.allclose(got, want, atol=1e-5)

    def test_a_model_without_such_attention_is_refused(self) -> None:
        with pytest.raises(ModelError, match="Linear"):
            attach(torch.nn.Linear(2, 2), Calibration(), "mean")


class TestMiniLM:
    @pytest.fixture
    def folder(self, tmp_path):
        import importlib.util
        from pathlib import Path

        place = Path(__file__).parent / "train" / "conftest.py"
        spec = importlib.util.spec_from_file_location("tiny_models", place)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return lambda pooling: module.write_model(tmp_path / pooling, pooling=pooling)

    @pytest.mark.parametrize(
        ("pooling", "mode"), [("mean", "mean_tokens"), ("cls", "cls_token"), ("last", "lasttoken")]
    )
    def test_both_paths_agree(self, folder, pooling: str, mode: str) -> None:
        from transformers import AutoModel

        from foveate.encoders.minilm import MiniLM
        from foveate.encoders.pooling import pool

        place = folder(mode)
        texts = [" ".join(f"w{(i * 7 + j) % 60}" for j in range(n)) for i, n in enumerate((30, 9))]
        encoder = MiniLM(place, dtype="fp32", calibration=0.8, calibration_basket=4)
        library = AutoModel.from_pretrained(place, add_pooling_layer=False).eval()
        attach(library, Calibration(0.8, 4), pooling)
        rows = []
        for text in texts:
            ids = torch.tensor([[2, *(5 + int(w[1:]) for w in text.split()), 3]])
            with torch.no_grad():
                rows.append(pool(library(ids).last_hidden_state, pooling)[0])
        want = F.normalize(torch.stack(rows), dim=1).numpy()
        np.testing.assert_allclose(encoder.encode(texts), want, atol=1e-5)
        plain = MiniLM(place, dtype="fp32")
        assert np.abs(plain.encode(texts) - want).max() > 1e-4
        assert plain.tower != encoder.tower
        assert math.isclose(float(np.linalg.norm(encoder.encode(texts)[0])), 1, abs_tol=1e-5)

    def test_the_librarys_models_take_it_too(self, folder) -> None:
        from foveate.encoders.minilm import MiniLM
        from foveate.encoders.sentence_transformer import SentenceTransformer

        place = folder("mean_tokens")
        texts = [" ".join(f"w{(i * 7 + j) % 60}" for j in range(n)) for i, n in enumerate((30, 9))]
        options = {"dtype": "fp32", "calibration": 0.8, "calibration_basket": 4}
        own = MiniLM(place, **options)
        library = SentenceTransformer(place, local_files_only=True, **options)
        np.testing.assert_allclose(library.encode(texts), own.encode(texts), atol=1e-5)
        assert "calibrated=0.8x4@half" in library.tower
