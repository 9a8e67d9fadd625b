from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from foveate.encoders.arrays import ArrayEncoder, Columns, Plain
from foveate.encoders.train import checkpoints
from foveate.encoders.train.array_tower import ArrayTower
from foveate.encoders.train.data import Example, Relevance, split
from foveate.encoders.train.judge import Judge, ndcg
from foveate.encoders.train.options import TrainOptions
from foveate.encoders.train.trainable import Trainable
from foveate.encoders.train.trainer import Trainer
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.testing import HashedWords

COLOURS = ("red", "green", "blue", "white", "black", "grey", "brown", "yellow")
SIZES = ("small", "large", "huge")
OPTIONS = TrainOptions(
    epochs=12, batch=16, micro=64, rate=5e-3, weight_decay=0.0, checks=3, patience=0
)


def rows() -> list[dict[str, object]]:
    """A table of 120 things, each said in words too; the price follows the size."""
    draw = np.random.default_rng(0)
    found = []
    for number in range(120):
        colour, size = COLOURS[number % 8], SIZES[number // 8 % 3]
        price = 10.0 ** SIZES.index(size) * (1 + 0.2 * draw.random())
        found.append({"id": number, "colour": colour, "price": price, "size": size})
    return found


def examples() -> list[Example]:
    made = []
    for row in rows():
        item = {"colour": row["colour"], "price": row["price"], "no": row["id"]}
        made.append(Example(f"{row['colour']} {row['size']} number {row['id']}", item))
    return made


def tower(seed: int = 0) -> ArrayTower:
    known = Columns.fit([example.positive for example in examples()])
    return ArrayTower(known, HashedWords(), seed=seed, width=32)


def trained(
    folder, options: TrainOptions = OPTIONS, *, resume: bool = False, judge=None, tell=None
):
    made = tower()
    job = Trainer(made, examples(), options, folder, judge=judge, tell=tell)
    return made, job.run(resume=resume)


def numbers(made: Trainable) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in made.parameters().values())


class TestTraining:
    def test_it_is_a_trainable(self) -> None:
        assert isinstance(tower(), Trainable)

    def test_the_loss_falls_and_held_out_queries_gain(self, tmp_path) -> None:
        kept, held = split(examples(), 0.2)
        judge = Judge(held, Relevance.of(examples()), [e.positive for e in examples()])
        made = tower()
        outcome = Trainer(made, kept, OPTIONS, tmp_path, judge=judge).run()
        assert outcome.losses[-1] < 0.7 * outcome.losses[0]
        assert judge.score(made) > outcome.scores["step 0"] + 0.1

    def test_gradient_caching_changes_nothing(self, tmp_path) -> None:
        options = dataclasses.replace(OPTIONS, epochs=2)
        # noise is drawn by part, so equality needs a tower that draws none
        whole, parts = tower(), tower()
        for made, micro in ((whole, 64), (parts, 5)):
            made._noise = 0.0
            some = dataclasses.replace(options, micro=micro)
            Trainer(made, examples(), some, tmp_path / str(micro)).run()
        for a, b in zip(whole.parameters().values(), parts.parameters().values(), strict=True):
            assert torch.allclose(a, b, atol=1e-5)

    def test_frozen_queries_are_encoded_once(self, tmp_path) -> None:
        made = tower()
        texts = made._texts
        calls: list[int] = []
        plain = texts.encode_queries
        texts.encode_queries = lambda q: calls.append(len(q)) or plain(q)  # type: ignore[method-assign]
        Trainer(made, examples(), OPTIONS, tmp_path).run()
        assert sum(calls) == len(examples())

    def test_early_stopping(self, tmp_path) -> None:
        kept, held = split(examples(), 0.2)
        judge = Judge(held, Relevance.of(examples()))
        judge.score = lambda tower, tell=None: 0.5  # type: ignore[method-assign]
        options = dataclasses.replace(OPTIONS, checks=12, patience=2)
        made = tower()
        start = numbers(made)
        outcome = Trainer(made, kept, options, tmp_path, judge=judge).run()
        assert outcome.n_steps == 2 * (outcome_steps(kept, tmp_path) // 12)
        assert outcome.part == 0.0  # nothing was gained, so nothing is changed
        assert numbers(made) == start

    def test_the_nearest_weights_with_most_of_the_gain_are_taken(self, tmp_path) -> None:
        kept, held = split(examples(), 0.2)
        judge = Judge(held, Relevance.of(examples()), [e.positive for e in examples()])
        made = tower()
        outcome = Trainer(made, kept, OPTIONS, tmp_path, judge=judge).run()
        base, best = outcome.scores["step 0"], max(outcome.scores.values())
        assert judge.score(made) - base >= 0.9 * (best - base) - 1e-9
        nearer = [
            score
            for name, score in outcome.scores.items()
            if name.startswith("part") and float(name.split()[1]) < outcome.part
        ]
        assert all(score - base < 0.9 * (best - base) for score in nearer)


def outcome_steps(kept: list[Example], folder) -> int:
    return Trainer(tower(), kept, OPTIONS, folder)._n_steps


class Killed(Exception):
    pass


class TestResume:
    @pytest.mark.parametrize("at", [13, 40, 65])
    def test_killed_and_resumed_is_the_same_to_the_bit(self, tmp_path, at: int) -> None:
        kept, held = split(examples(), 0.2)

        def job(folder, tell=None):
            judge = Judge(held, Relevance.of(examples()), [e.positive for e in examples()])
            made = tower()
            return made, Trainer(made, kept, OPTIONS, folder, judge=judge, tell=tell)

        def kill(stage: str, done: int, total: int | None) -> None:
            if stage == "train" and done == at:
                raise Killed

        whole, run = job(tmp_path / "whole")
        want = run.run()
        _, run = job(tmp_path / "cut", kill)
        with pytest.raises(Killed):
            run.run()
        again, run = job(tmp_path / "cut")
        got = run.run(resume=True)
        assert numbers(again) == numbers(whole)
        assert got.losses == want.losses
        assert got.scores == want.scores

    def test_out_of_time_is_resumed_too(self, tmp_path) -> None:
        whole, _ = trained(tmp_path / "a")
        short = dataclasses.replace(OPTIONS, minutes=1e-9)
        _, outcome = trained(tmp_path / "b", short)
        assert not outcome.finished
        assert outcome.n_steps == 1
        again, outcome = trained(tmp_path / "b", resume=True)
        assert outcome.finished
        assert numbers(again) == numbers(whole)

    def test_another_setting_is_refused_by_name(self, tmp_path) -> None:
        trained(tmp_path, dataclasses.replace(OPTIONS, minutes=1e-9))
        other = dataclasses.replace(OPTIONS, rate=1e-3)
        with pytest.raises(ModelError, match=r"rate 0\.005, now it is 0\.001"):
            trained(tmp_path, other, resume=True)

    def test_a_damaged_checkpoint_is_one_line(self, tmp_path) -> None:
        (tmp_path / checkpoints.NAME).write_bytes(b"no tensors")
        with pytest.raises(ModelError, match="cannot read the checkpoint"):
            trained(tmp_path, resume=True)


class TestOptions:
    @pytest.mark.parametrize(
        "wrong", [{"rate": 0.0}, {"batch": 0}, {"held_out": 1.0}, {"interpolate": (1.5,)}]
    )
    def test_a_wrong_value_is_named(self, wrong) -> None:
        with pytest.raises(ConfigError, match=f"train.{next(iter(wrong))}"):
            TrainOptions(**wrong)

    def test_an_unknown_loss_names_the_known(self, tmp_path) -> None:
        with pytest.raises(ConfigError, match="infonce"):
            trained(tmp_path, dataclasses.replace(OPTIONS, loss="triplet"))

    @pytest.mark.parametrize("loss", ["infonce", "hinge", "graded", "sigmoid", "focal"])
    def test_every_loss_trains(self, tmp_path, loss: str) -> None:
        options = dataclasses.replace(OPTIONS, loss=loss, epochs=4, anchor=0.1, uniformity=0.01)
        _, outcome = trained(tmp_path, options)
        assert np.mean(outcome.losses[-3:]) < np.mean(outcome.losses[:3])


class TestMeasure:
    def test_ndcg_by_hand(self) -> None:
        scores = np.array([[0.9, 0.8, 0.1], [0.5, 0.5, 0.1]])
        grades = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        # second place, and a tie that is lost
        assert ndcg(scores, grades).tolist() == pytest.approx([1 / np.log2(3)] * 2)


class TestYourOwnModality:
    def test_table_rows_are_found_by_words(self, tmp_path) -> None:
        made, _ = trained(tmp_path)
        made.save(tmp_path / "out", {"use": "array", "base": "an untrained network"})
        encoder = ArrayEncoder(tmp_path / "out", texts=HashedWords())
        items = [example.positive for example in examples()]
        stored = encoder.encode(items)
        asked = encoder.encode_queries(["blue huge"])
        best = [items[i]["colour"] for i in np.argsort(-(asked @ stored.T)[0])[:5]]
        assert best.count("blue") >= 4
        with torch.no_grad():
            assert np.allclose(stored, made.embed(items, "passage").numpy(), atol=1e-6)
        np.testing.assert_allclose(encoder.encode_queries(items[:2]), stored[:2], atol=1e-6)

    def test_the_folder_names_its_space(self, tmp_path) -> None:
        made, _ = trained(tmp_path)
        made.save(tmp_path / "out", {"use": "array"})
        other = ArrayEncoder(tmp_path / "out", texts=HashedWords(name="another"))
        with pytest.raises(ModelError, match="another/64"):
            other.encode_queries(["blue"])
        assert json.loads((tmp_path / "out" / "training.json").read_text())["use"] == "array"
        assert "`foveate train`" in (tmp_path / "out" / "README.md").read_text()

    def test_missing_and_unknown_values(self) -> None:
        known = Columns.fit([{"a": 1.0, "b": "x"}, {"a": 3.0, "b": "y"}])
        assert known.read([{"a": 3.0, "b": "x"}]).tolist() == [[1, 0, 1, 0]]
        assert known.read([{"b": "z"}]).tolist() == [[0, 1, 0, 0]]
        assert known.read([{"a": float("nan"), "b": None}]).tolist() == [[0, 1, 0, 0]]

    def test_plain_arrays_are_scaled(self) -> None:
        known = Plain.fit([np.array([[0.0, 5.0]]), np.array([[2.0, 5.0]])])
        assert known.read([np.array([2.0, 6.0])]).tolist() == [[1, 1]]
