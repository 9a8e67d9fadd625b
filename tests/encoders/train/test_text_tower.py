from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from foveate.encoders.minilm import MiniLM
from foveate.encoders.train.data import Example
from foveate.encoders.train.options import TrainOptions
from foveate.encoders.train.text_tower import FITS, TextTower
from foveate.encoders.train.trainable import Trainable
from foveate.encoders.train.trainer import Trainer
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.testing import cosines

TEXTS = ["w1 w2 w3", "", "w5", "w9 w9 w4 " * 30, "w7 w8 w1"]
OPTIONS = TrainOptions(epochs=3, batch=8, micro=4, rate=3e-3, checks=1, patience=0)


def pairs(n: int = 24) -> list[Example]:
    draw = np.random.default_rng(0)
    found = []
    for _ in range(n):
        words = [f"w{i}" for i in draw.choice(60, 6, replace=False)]
        found.append(Example(" ".join(words[:3]), " ".join(words)))
    return found


def trained(model, folder, fit: str, **options) -> TextTower:
    tower = TextTower(model, fit=fit, dtype="fp32", rank=4, n_prompts=3, **options)
    rate = {"head": 1e-2, "prompts": 3e-2, "bridge": 1.0}.get(fit, 3e-3)
    Trainer(tower, pairs(), dataclasses.replace(OPTIONS, rate=rate), folder / "run").run()
    return tower


def embed(tower: TextTower, role: str = "passage") -> np.ndarray:
    with torch.no_grad():
        return tower.embed(TEXTS, role).numpy()


@pytest.mark.parametrize("fit", FITS)
class TestFits:
    def test_before_training_it_is_the_encoder(self, model, fit: str) -> None:
        tower = TextTower(model, fit=fit, dtype="fp32")
        assert isinstance(tower, Trainable)
        if fit != "prompts":  # random positions change the attention at once
            assert cosines(embed(tower), MiniLM(model, dtype="fp32").encode(TEXTS)).min() > 0.99999

    def test_the_saved_folder_gives_the_trained_vectors(self, model, tmp_path, fit: str) -> None:
        tower = trained(model, tmp_path, fit)
        tower.save(tmp_path / "out", {"use": "minilm", "base": "tiny"})
        encoder = MiniLM(tmp_path / "out", dtype="fp32")
        assert cosines(embed(tower), encoder.encode(TEXTS)).min() > 0.99999
        asked = encoder.encode_queries(["w1 w2 w3", "w7 w8 w1"])
        assert cosines(embed(tower, "query")[[0, 4]], asked).min() > 0.99999
        before = MiniLM(model, dtype="fp32").encode_queries(["w1 w2 w3", "w7 w8 w1"])
        assert cosines(asked, before).min() < 0.9999

    def test_only_what_is_fitted_gets_a_gradient(self, model, fit: str) -> None:
        tower = TextTower(model, fit=fit, dtype="fp32")
        tower.train()
        tower.embed(TEXTS, "query").sum().backward()
        for tensor in tower._plain.weights.values():
            assert tensor.grad is None
        assert any(p.grad is not None for p in tower.parameters().values())


class TestTowers:
    def test_queries_alone_leave_the_index_valid(self, model, tmp_path) -> None:
        tower = trained(model, tmp_path, "layers", sides="query")
        tower.save(tmp_path / "out", {"use": "minilm"})
        plain, encoder = MiniLM(model, dtype="fp32"), MiniLM(tmp_path / "out", dtype="fp32")
        assert encoder.tower == plain.tower
        assert encoder.space == plain.space
        np.testing.assert_array_equal(encoder.encode(TEXTS), plain.encode(TEXTS))
        asked = encoder.encode_queries(TEXTS[:1])
        assert cosines(asked, plain.encode_queries(TEXTS[:1])).max() < 0.9999
        assert cosines(asked, embed(tower, "query")[:1]).min() > 0.99999

    @pytest.mark.parametrize("fit", ["layers", "head", "prompts"])
    def test_a_trained_encoder_has_a_fingerprint_of_its_own(self, model, tmp_path, fit) -> None:
        trained(model, tmp_path, fit).save(tmp_path / "out", {"use": "minilm"})
        plain = MiniLM(model, name="tiny").tower
        assert MiniLM(tmp_path / "out", name="tiny").tower != plain

    def test_a_bridge_leaves_passages_alone(self, model, tmp_path) -> None:
        trained(model, tmp_path, "bridge").save(tmp_path / "out", {"use": "minilm"})
        assert MiniLM(tmp_path / "out").tower == MiniLM(model).tower

    def test_the_library_loads_it_too(self, model, tmp_path) -> None:
        import sentence_transformers

        for fit in ("lora", "head"):
            tower = trained(model, tmp_path / fit, fit)
            tower.save(tmp_path / fit / "out", {"use": "minilm"})
            library = sentence_transformers.SentenceTransformer(
                str(tmp_path / fit / "out"), device="cpu", local_files_only=True
            )
            got = library.encode(TEXTS[:1] + TEXTS[2:3], normalize_embeddings=True)
            assert cosines(got, embed(tower)[[0, 2]]).min() > 0.9999

    def test_soft_prompts_leave_the_tower_frozen(self, model) -> None:
        tower = TextTower(model, fit="prompts", n_prompts=3, dtype="fp32")
        assert {tuple(p.shape) for p in tower.parameters().values()} == {(3, 32)}

    def test_no_prompts_are_the_plain_tower(self, model) -> None:
        none = TextTower(model, fit="prompts", n_prompts=0, dtype="fp32")
        assert cosines(embed(none), embed(TextTower(model, dtype="fp32"))).min() > 0.999999

    def test_dropout_makes_two_views_and_a_seed_makes_them_again(self, model) -> None:
        tower = TextTower(model, dtype="fp32")
        tower.train()
        torch.manual_seed(1)
        first, second = tower.embed(TEXTS, "query"), tower.embed(TEXTS, "query")
        torch.manual_seed(1)
        again = tower.embed(TEXTS, "query")
        assert torch.equal(first, again)
        assert not torch.equal(first, second)

    def test_gradient_caching_gives_the_whole_batchs_gradient(self, model, tmp_path) -> None:
        found = []
        for micro in (64, 3):
            tower = TextTower(model, dtype="fp32", dropout=0.0)
            some = dataclasses.replace(OPTIONS, micro=micro, batch=12)
            job = Trainer(tower, pairs(12), some, tmp_path)
            job._tower.train(True)
            job._backward(job._epoch(0)[0], 0)
            found.append({n: p.grad.clone() for n, p in tower.parameters().items()})
        for name in found[0]:
            assert torch.allclose(found[0][name], found[1][name], atol=1e-5), name


class TestErrors:
    def test_unknown_names_list_the_known(self, model) -> None:
        with pytest.raises(ConfigError, match="lora"):
            TextTower(model, fit="everything")
        with pytest.raises(ConfigError, match="both, query"):
            TextTower(model, sides="left")

    def test_two_towers_are_not_trained_at_once(self, model, tmp_path) -> None:
        tower = TextTower(model, sides="query", dtype="fp32")
        tower.save(tmp_path / "out", {"use": "minilm"})
        with pytest.raises(ModelError, match="query/"):
            TextTower(tmp_path / "out")
