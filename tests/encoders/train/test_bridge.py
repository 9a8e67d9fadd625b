from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from foveate.encoders import bridge
from foveate.encoders.bert import Shape
from foveate.encoders.bridge import BIAS, DIRECTION, KEY, KINDS, Bridge
from foveate.encoders.minilm import MiniLM
from foveate.encoders.train.data import Example
from foveate.encoders.train.options import TrainOptions
from foveate.encoders.train.text_tower import TextTower
from foveate.encoders.train.trainer import Trainer
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.testing import cosines

N_WORDS, DIM = 12, 6
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused3]", *"abcdefg"]
SPECIAL = range(5)
WORDS = [[5, 7, 7], [], [11]]
QUERIES = ["w1 w2 w3", "", "w5 w5 w5", "w7 w8 w1"]
OPTIONS = TrainOptions(epochs=6, batch=8, micro=4, rate=1.0, checks=1, patience=0)


def parts(seed: int = 0, dtype=torch.float64):
    """Vectors, states of each word, and pooled states of three queries."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=dtype)

    vectors = F.normalize(normal(3, DIM), dim=1)
    return vectors, [normal(len(ids), DIM) for ids in WORDS], normal(3, DIM)


def make(kind: str, seed: int | None = 1, dtype=torch.float64) -> Bridge:
    """A bridge with random tensors, or with seed None one before training."""
    learned = {name: t.to(dtype) for name, t in bridge.start(kind, N_WORDS, DIM).items()}
    if seed is not None:
        draw = torch.Generator().manual_seed(seed)
        for name, tensor in learned.items():
            learned[name] = torch.randn(tensor.shape, generator=draw, dtype=dtype)
    table = torch.randn(N_WORDS, DIM, generator=torch.Generator().manual_seed(9), dtype=dtype)
    counted = bridge.countable(VOCABULARY, N_WORDS)
    return Bridge(kind, learned, counted, bridge.masked_logits(table, {}, SHAPE))


SHAPE = Shape(DIM, 1, 1, 16, 1e-12, "gelu")


@pytest.mark.parametrize("kind", KINDS)
class TestBridge:
    def test_before_training_no_query_changes(self, kind: str) -> None:
        vectors, states, pooled = parts()
        got = make(kind, None).modulate(vectors, WORDS, states, pooled)
        torch.testing.assert_close(got, vectors)

    def test_it_changes_them_after(self, kind: str) -> None:
        vectors, states, pooled = parts()
        got = make(kind).modulate(vectors, WORDS, states, pooled)
        assert not torch.allclose(got, vectors, atol=1e-3)
        torch.testing.assert_close(got.norm(dim=1), torch.ones(3, dtype=torch.float64))

    def test_duplicates_do_not_count_twice(self, kind: str) -> None:
        vectors, states, pooled = parts()
        made = make(kind)
        once = made.modulate(vectors[:1], [[5, 7]], [states[0][:2]], pooled[:1])
        again = [torch.cat([states[0][:2], states[0][:2]])]
        twice = made.modulate(vectors[:1], [[5, 7, 5, 7]], again, pooled[:1])
        torch.testing.assert_close(once, twice)

    def test_special_tokens_never_count(self, kind: str) -> None:
        vectors, states, pooled = parts()
        plain, loud = make(kind), make(kind)
        loud.learned[KEY][list(SPECIAL)] = 1e6
        words = [[0, 1, *ids, 3, 4] for ids in WORDS]
        edge = torch.full((2, DIM), 99.0, dtype=torch.float64)
        around = [torch.cat([edge, some, edge]) for some in states]
        want = plain.modulate(vectors, WORDS, states, pooled)
        torch.testing.assert_close(loud.modulate(vectors, words, around, pooled), want)

    def test_gradients(self, kind: str) -> None:
        vectors, states, pooled = parts()
        made = make(kind)
        names = sorted(made.learned)

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            learned = dict(zip(names, tensors, strict=True))
            other = dataclasses.replace(made, learned=learned)
            return other.modulate(vectors, WORDS, states, pooled)

        inputs = [made.learned[name].clone().requires_grad_() for name in names]
        assert torch.autograd.gradcheck(run, inputs)

    def test_it_is_the_same_read_again(self, kind: str, tmp_path: Path) -> None:
        made = make(kind, dtype=torch.float32)
        bridge.write(tmp_path / bridge.NAME, kind, made.learned)
        got_kind, learned = bridge.read(tmp_path / bridge.NAME)
        assert got_kind == kind
        assert {n: t.tolist() for n, t in learned.items()} == {
            n: t.tolist() for n, t in made.learned.items()
        }


class TestKinds:
    def test_llr_takes_the_largest_of_a_words_positions(self) -> None:
        made = make("llr")
        _, states, _ = parts()
        kept, weights = made.weigh(WORDS[0], states[0])
        each = states[0] @ made.learned[DIRECTION] / DIM + made.learned[BIAS]
        assert kept.tolist() == [5, 7]
        want = torch.stack([each[0], each[1:].max()]).clamp_min(0)
        torch.testing.assert_close(weights, want)

    def test_llr_begins_at_slr(self) -> None:
        vectors, states, _ = parts()
        slr, llr = make("slr"), make("llr", None)
        llr.learned[KEY].copy_(slr.learned[KEY])
        torch.testing.assert_close(
            llr.modulate(vectors, WORDS, states), slr.modulate(vectors, WORDS)
        )

    def test_clr_is_the_logarithm_of_positive_logits(self) -> None:
        made = make("clr")
        _, _, pooled = parts()
        weights = made.expand(pooled)
        assert (weights[:, list(SPECIAL)] == 0).all()
        want = made.logits(pooled).clamp_min(0).add(1).log() * 16 / N_WORDS
        torch.testing.assert_close(weights[:, 5:], want[:, 5:])

    def test_the_masked_language_head_is_the_librarys(self) -> None:
        from transformers import BertConfig, BertForMaskedLM

        torch.manual_seed(0)
        settings = BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=16,
        )  # fmt: skip
        model = BertForMaskedLM(settings).eval()
        model.cls.predictions.bias.data.normal_()
        states = torch.randn(3, 8)
        shape = Shape(8, 2, 1, 16, settings.layer_norm_eps, "gelu")
        words = model.bert.embeddings.word_embeddings.weight
        run = bridge.masked_logits(words, model.state_dict(), shape)
        with torch.no_grad():
            torch.testing.assert_close(run(states), model.cls(states))

    def test_a_file_that_is_none_is_refused(self, tmp_path: Path) -> None:
        bridge.write(tmp_path / "a", "xlr", {KEY: torch.zeros(2, 2)})
        with pytest.raises(ModelError, match="xlr"):
            bridge.read(tmp_path / "a")
        (tmp_path / "b").write_bytes(b"nothing")
        with pytest.raises(ModelError, match="cannot read the bridge"):
            bridge.read(tmp_path / "b")


def pairs(n: int = 32) -> list[Example]:
    """Questions whose answer shares one word with them: every question's first."""
    draw = np.random.default_rng(0)
    found = []
    for i in range(n):
        rest = [f"w{i}" for i in draw.choice(np.arange(40, 60), 5, replace=False)]
        found.append(Example(f"w{i} {rest[0]} {rest[1]}", f"w{i} {rest[2]} {rest[3]} {rest[4]}"))
    return found


def add_head(model: Path, folder: Path) -> Path:
    """Copy a model and give it a masked-language head."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    tensors = load_file(str(folder / "model.safetensors"))
    tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    draw = torch.Generator().manual_seed(5)
    start = f"{bridge.HEAD}transform."
    tensors[f"{start}dense.weight"] = torch.randn(32, 32, generator=draw) / 6
    tensors[f"{start}dense.bias"] = torch.randn(32, generator=draw)
    tensors[f"{start}LayerNorm.weight"] = torch.ones(32)
    tensors[f"{start}LayerNorm.bias"] = torch.zeros(32)
    tensors[f"{bridge.HEAD}bias"] = torch.randn(65, generator=draw)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", KINDS)
class TestTraining:
    def test_the_loss_falls_and_the_folder_gives_its_vectors(self, model, tmp_path, kind) -> None:
        tower = TextTower(model, fit="bridge", bridge=kind, dtype="fp32", dropout=0.0)
        before = {name: p.detach().clone() for name, p in tower.parameters().items()}
        rate = {"clr": 3.0}.get(kind, 1.0)
        options = dataclasses.replace(OPTIONS, rate=rate)
        outcome = Trainer(tower, pairs(), options, tmp_path / "run").run()
        assert np.mean(outcome.losses[-4:]) < 0.95 * np.mean(outcome.losses[:4])
        assert all(not torch.equal(before[name], p) for name, p in tower.parameters().items())
        tower.save(tmp_path / "out", {"use": "minilm"})
        plain, trained = MiniLM(model, dtype="fp32"), MiniLM(tmp_path / "out", dtype="fp32")
        assert trained.tower == plain.tower
        np.testing.assert_array_equal(trained.encode(QUERIES), plain.encode(QUERIES))
        with torch.no_grad():
            want = tower.embed(QUERIES, "query").numpy()
        got = trained.encode_queries(QUERIES)
        assert cosines(got, want).min() > 0.99999
        assert cosines(got, plain.encode_queries(QUERIES)).min() < 0.999
        alone = np.concatenate([trained.encode_queries([query]) for query in QUERIES])
        assert cosines(got, alone).min() > 0.9999
        long = trained.encode_queries(["w1 w2 " * 90])  # in windows
        assert long.shape == (1, 32)

    def test_a_model_with_another_pooling_and_a_head(self, cls_model, tmp_path, kind) -> None:
        start = add_head(cls_model, tmp_path / "start")
        tower = TextTower(start, fit="bridge", bridge=kind, dtype="fp32")
        with torch.no_grad():
            for parameter in tower.parameters().values():
                parameter.add_(torch.randn_like(parameter))
        tower.save(tmp_path / "out", {"use": "minilm"})
        with torch.no_grad():
            want = tower.embed(QUERIES, "query").numpy()
        got = MiniLM(tmp_path / "out", dtype="fp32").encode_queries(QUERIES)
        assert cosines(got, want).min() > 0.99999


def test_queries_only_says_nothing_more_than_a_bridge_does(model, tmp_path) -> None:
    tower = TextTower(model, fit="bridge", sides="query", dtype="fp32")
    with torch.no_grad():
        tower.parameters()[KEY].add_(torch.randn_like(tower.parameters()[KEY]))
    tower.save(tmp_path / "out", {"use": "minilm"})
    asked = MiniLM(tmp_path / "out", dtype="fp32").encode_queries(QUERIES[:1])
    assert cosines(asked, MiniLM(model, dtype="fp32").encode_queries(QUERIES[:1])).max() < 0.999


def test_an_unknown_kind_lists_the_known(model) -> None:
    with pytest.raises(ConfigError, match="slr, llr, clr"):
        TextTower(model, fit="bridge", bridge="plr")
