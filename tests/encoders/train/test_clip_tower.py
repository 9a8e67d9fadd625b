from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.encoders.clip import OpenCLIP
from foveate.encoders.train import data
from foveate.encoders.train.clip_tower import FITS, ClipTower
from foveate.encoders.train.data import Relevance, split
from foveate.encoders.train.judge import Judge, picture_recalls
from foveate.encoders.train.options import TrainOptions
from foveate.encoders.train.trainable import Trainable
from foveate.encoders.train.trainer import Trainer
from foveate.pipeline.errors import ConfigError, LoadError, ShapeError
from foveate.pipeline.testing import cosines

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
OPTIONS = TrainOptions(
    loss="symmetric", epochs=2, batch=16, micro=64, rate=2e-3, weight_decay=0.0, checks=2,
    patience=0, temperature=0.07,
)  # fmt: skip
CAPTIONS = ["red left of blue", "green left of red"]


def load(clip: Path, **options) -> OpenCLIP:
    weights = clip / "tiny-clip.safetensors"
    return OpenCLIP(str(clip / "tiny-clip.json"), weights=weights, dtype="fp32", **options)


def tower(clip: Path, **options) -> ClipTower:
    return ClipTower(load(clip), **options)


def numbers(made: Trainable) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in made.parameters().values())


def seen(pictures: Path) -> list[Path]:
    return list(data.read(pictures).corpus[:3])


@pytest.mark.parametrize("fit", FITS)
class TestFits:
    def test_before_training_it_is_the_encoder(self, clip, pictures, fit: str) -> None:
        made = tower(clip, fit=fit)
        assert isinstance(made, Trainable)
        encoder = load(clip)
        with torch.no_grad():
            texts, images = made.embed(CAPTIONS, "query"), made.embed(seen(pictures), "passage")
        opened = [data.open_picture(str(place)) for place in seen(pictures)]
        assert cosines(texts.numpy(), encoder.encode(CAPTIONS)).min() > 0.99999
        assert cosines(images.numpy(), encoder.encode(opened)).min() > 0.99999
        assert (made.space, made.dim) == (encoder.space, encoder.dim)

    def test_the_saved_folder_gives_the_trained_vectors(
        self, clip, pictures, tmp_path, fit: str
    ) -> None:
        made = tower(clip, fit=fit, rank=4)
        rate = {"lora": 1e-2, "head": 1e-2}.get(fit, 2e-3)
        options = dataclasses.replace(OPTIONS, rate=rate)
        Trainer(made, data.read(pictures).examples, options, tmp_path / "run").run()
        made.save(tmp_path / "out", {"use": "open-clip", "role": "image", "option": "model"})
        encoder = OpenCLIP(str(tmp_path / "out"), dtype="fp32")
        opened = [data.open_picture(str(place)) for place in seen(pictures)]
        with torch.no_grad():
            texts, images = made.embed(CAPTIONS, "query"), made.embed(seen(pictures), "passage")
        assert cosines(encoder.encode(CAPTIONS), texts.numpy()).min() > 0.99999
        assert cosines(encoder.encode(opened), images.numpy()).min() > 0.99999
        assert cosines(encoder.encode(CAPTIONS), load(clip).encode(CAPTIONS)).min() < 0.9999
        assert encoder.space == "out/32"
        assert encoder.tower != load(clip).tower
        assert 'model = "PATH' in (tmp_path / "out" / "README.md").read_text()
        again = ClipTower(encoder)  # and can be trained on
        assert again.space == "out/32"

    @pytest.mark.parametrize("sides", ["query", "passage"])
    def test_one_side_leaves_the_other_as_it_is(
        self, clip, pictures, tmp_path, fit: str, sides: str
    ) -> None:
        made = tower(clip, fit=fit, sides=sides, rank=4)
        other = {"query": "passage", "passage": "query"}[sides]
        assert made.frozen_roles == {other}
        inputs = {"query": CAPTIONS, "passage": seen(pictures)}
        with torch.no_grad():
            before = {role: made.embed(some, role) for role, some in inputs.items()}
        options = dataclasses.replace(OPTIONS, rate=1e-2)
        Trainer(made, data.read(pictures).examples, options, tmp_path).run()
        with torch.no_grad():
            after = {role: made.embed(some, role) for role, some in inputs.items()}
        torch.testing.assert_close(after[other], before[other])
        assert not torch.allclose(after[sides], before[sides], atol=1e-3)


class TestTraining:
    @pytest.mark.parametrize("loss", ["symmetric", "infonce", "sigmoid"])
    def test_the_loss_falls_and_held_out_pictures_are_found(
        self, clip, pictures, tmp_path, loss: str
    ) -> None:
        found = data.read(pictures)
        kept, held = split(found.examples, 0.2, by="positive")
        made = tower(clip, fit="full", augment=False)
        before = picture_recalls(made, held)
        options = dataclasses.replace(OPTIONS, loss=loss, epochs=30)
        judge = Judge(held, Relevance.of(found.examples))
        outcome = Trainer(made, kept, options, tmp_path, judge=judge).run()
        after = picture_recalls(made, held)
        assert np.mean(outcome.losses[-4:]) < 0.6 * np.mean(outcome.losses[:4])
        assert after["R@1"] > before["R@1"] + 0.3
        assert max(outcome.scores.values()) > outcome.scores["step 0"] + 0.2

    def test_a_siglip_like_model_brings_its_own_bias(self, make_clip, tmp_path, pictures) -> None:
        place = make_clip(tmp_path, "tiny-pairs", custom_text=True, init_logit_bias=-10)
        encoder = OpenCLIP(str(place / "tiny-pairs.json"), weights=place / "tiny-pairs.safetensors")
        made = ClipTower(encoder, fit="full", augment=False)
        assert made.bias == -10
        options = dataclasses.replace(OPTIONS, loss="sigmoid", bias=made.bias, epochs=6)
        outcome = Trainer(made, data.read(pictures).examples, options, tmp_path / "run").run()
        assert outcome.losses[-1] < outcome.losses[0]
        made.save(tmp_path / "out", {"use": "open-clip"})
        with torch.no_grad():
            want = made.embed(CAPTIONS, "query").numpy()
        got = OpenCLIP(str(tmp_path / "out")).encode(CAPTIONS)
        assert cosines(got, want).min() > 0.999

    def test_gradient_caching_gives_the_whole_batchs_gradient(
        self, clip, pictures, tmp_path
    ) -> None:
        examples = data.read(pictures).examples[:12]
        for fit in ("full", "lora"):
            found = []
            for micro in (64, 5):
                made = tower(clip, fit=fit, augment=False)
                some = dataclasses.replace(OPTIONS, micro=micro, batch=12)
                job = Trainer(made, examples, some, tmp_path)
                made.train(True)
                job._backward(job._epoch(0)[0], 0)
                found.append({n: p.grad for n, p in made.parameters().items()})
            for name, whole in found[0].items():
                if whole is not None:
                    torch.testing.assert_close(whole, found[1][name], atol=1e-5, rtol=1e-3)

    def test_training_views_differ_and_a_seed_makes_them_again(self, clip, pictures) -> None:
        made = tower(clip)
        made.train()
        torch.manual_seed(1)
        first, second = (made.embed(seen(pictures), "passage") for _ in range(2))
        torch.manual_seed(1)
        again = made.embed(seen(pictures), "passage")
        assert torch.equal(first, again)
        assert not torch.equal(first, second)


class Killed(Exception):
    pass


@pytest.mark.parametrize("fit", ["full", "lora"])
@pytest.mark.parametrize("at", [3, 7])
def test_killed_and_resumed_is_the_same_to_the_bit(
    clip, pictures, tmp_path, fit: str, at: int
) -> None:
    found = data.read(pictures)
    kept, held = split(found.examples, 0.2, by="positive")

    def job(folder, tell=None):
        judge = Judge(held, Relevance.of(found.examples))
        made = tower(clip, fit=fit, rank=4)
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


class TestData:
    def test_rows_of_image_and_query_or_caption(self, pictures) -> None:
        rows = [{"image": "0.png", "query": "a"}, {"image": "images/1.png", "caption": "b"}]
        rows.append({"image": str(pictures / "images" / "2.png"), "captions": ["c", "d"]})
        place = pictures / "pairs.jsonl"
        place.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = data.read(place)
        assert [example.query for example in found.examples] == ["a", "b", "c", "d"]
        assert [p.name for p in found.corpus] == ["0.png", "1.png", "2.png"]

    @pytest.mark.parametrize("row", [{"image": "none.png", "query": "a"}, {"image": "0.png"}])
    def test_a_row_that_lacks_something_is_named(self, pictures, row) -> None:
        place = pictures / "bad.jsonl"
        good = json.dumps({"image": "0.png", "query": "a"})
        place.write_text(f"{good}\n{json.dumps(row)}\n")
        with pytest.raises(LoadError, match="row 2"):
            data.read(place)

    def test_no_picture_stands_on_both_sides(self, pictures) -> None:
        examples = data.read(pictures).examples
        twice = [*examples, *(dataclasses.replace(e, query=f"also {e.query}") for e in examples)]
        kept, held = split(twice, 0.2, by="positive")
        assert not {e.positive for e in kept} & {e.positive for e in held}
        assert len(kept) + len(held) == len(twice)
        assert len(held) == 2 * len({e.positive for e in held})


class TestErrors:
    def test_unknown_names_list_the_known(self, clip) -> None:
        with pytest.raises(ConfigError, match="lora"):
            tower(clip, fit="prompts")
        with pytest.raises(ConfigError, match="both, query, passage"):
            tower(clip, sides="left")

    def test_texts_and_pictures_do_not_mix(self, clip, pictures) -> None:
        with pytest.raises(ShapeError, match="both at once"):
            tower(clip).embed([*CAPTIONS, *seen(pictures)], "query")

    def test_a_folder_holds_its_own_weights(self, clip, tmp_path) -> None:
        with pytest.raises(ConfigError, match="drop the option weights"):
            OpenCLIP(str(clip), weights=clip / "tiny-clip.safetensors")
        with pytest.raises(Exception, match=r"open_clip_config\.json"):
            OpenCLIP(str(tmp_path)).encode(["a"])
