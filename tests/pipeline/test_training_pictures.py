from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from foveate.encoders.clip import OpenCLIP
from foveate.encoders.train import data
from foveate.pipeline import config as configuration
from foveate.pipeline import training
from foveate.pipeline.errors import ConfigError, FoveateError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def tiny_models():
    place = Path(__file__).parents[1] / "encoders" / "train" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_models", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> dict[str, str]:
    folder = tiny_models().write_clip(tmp_path_factory.mktemp("clip"))
    return {
        "encoders.image.use": "open-clip",
        "encoders.image.model": str(folder / "tiny-clip.json"),
        "encoders.image.weights": str(folder / "tiny-clip.safetensors"),
        "encoders.image.dtype": "fp32",
        "train.batch": 16,
        "train.rate": 2e-3,
        "train.checks": 2,
        "train.held_out": 0.2,
        "train.weight_decay": 0.0,
        "train.tower.fit": "full",
    }


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return tiny_models().write_squares(tmp_path_factory.mktemp("squares"))


def settings(clip, **changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return configuration.load(overrides=clip | named)


def found(encoder, pictures: Path) -> float:
    """The part of all captions whose own picture is the nearest."""
    examples = data.read(pictures).examples
    asked = encoder.encode_queries([e.query for e in examples])
    stored = encoder.encode([data.open_picture(str(e.positive)) for e in examples])
    return float(((asked @ stored.T).argmax(1) == np.arange(len(examples))).mean())


def test_pictures_and_captions_become_a_folder_that_finds_more(clip, pictures, tmp_path) -> None:
    config = settings(clip, train__epochs=30, train__tower__augment=False)
    card = training.train(pictures, tmp_path / "out", config=config)
    assert card["finished"]
    assert card["held_out"] == "13 pictures, 13 captions"
    assert card["trained"]["R@1"] > card["untrained"]["R@1"] + 0.3
    assert card["loss"]["last"] < 0.6 * card["loss"]["first"]
    assert card["options"]["temperature"] == pytest.approx(0.07, abs=1e-3)  # the model's own
    out = str(tmp_path / "out")
    before = OpenCLIP(clip["encoders.image.model"], weights=clip["encoders.image.weights"])
    assert found(OpenCLIP(out), pictures) > found(before, pictures) + 0.3
    assert not (tmp_path / "out" / training.WORK).exists()
    assert "open-clip" in (tmp_path / "out" / "README.md").read_text()
    # from that folder, without a word in the configuration
    more = configuration.load(overrides={"train.epochs": 1, "train.tower.fit": "head"})
    card = training.train(pictures, tmp_path / "more", encoder=out, config=more)
    assert card["base"] == "out"


def test_out_of_time_and_resumed_is_the_same_file(clip, pictures, tmp_path) -> None:
    config = settings(clip, train__epochs=2)
    training.train(pictures, tmp_path / "whole", config=config)
    short = settings(clip, train__epochs=2, train__minutes=1e-9)
    card = training.train(pictures, tmp_path / "cut", config=short)
    assert (card["finished"], card["steps"]) == (False, 1)
    assert not (tmp_path / "cut" / "open_clip_model.safetensors").exists()
    card = training.train(pictures, tmp_path / "cut", config=config, resume=True)
    assert card["finished"]
    name = "open_clip_model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_not_trained_says_what_is(clip, pictures, tmp_path) -> None:
    config = configuration.load(overrides={"encoders.image.use": "none"})
    with pytest.raises(ConfigError, match="open-clip"):
        training.train(pictures, tmp_path / "a", config=config)
    with pytest.raises(ConfigError, match=r"unknown option train\.tower\.n_prompts"):
        training.train(pictures, tmp_path / "b", config=settings(clip, train__tower__n_prompts=3))
    with pytest.raises(FoveateError, match="no run to resume"):
        training.train(pictures, tmp_path / "c", config=settings(clip), resume=True)


@pytest.mark.slow
def test_a_killed_command_resumed_writes_the_same_file(clip, pictures, tmp_path) -> None:
    def command(out: str, *more: str) -> list[str]:
        changes = [f"--set={key}={json.dumps(value)}" for key, value in clip.items()]
        return [
            sys.executable, "-m", "foveate.cli", "train", str(pictures), "--out",
            str(tmp_path / out), "--epochs", "20", "--set=train.checkpoints=40", *changes, *more,
        ]  # fmt: skip

    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command("whole"), env=env, check=True, capture_output=True, timeout=600)
    checkpoint = tmp_path / "cut" / training.WORK / "checkpoint.safetensors"
    killed = subprocess.Popen(command("cut"), env=env, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 300
    while not checkpoint.is_file() and killed.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    subprocess.run(
        command("cut", "--resume"), env=env, check=True, capture_output=True, timeout=600
    )
    name = "open_clip_model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
