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

from foveate.pipeline import config as configuration
from foveate.pipeline import training
from foveate.pipeline.errors import ConfigError, FoveateError, LoadError
from foveate.pipeline.synthesis import accept, pick, write_pairs
from foveate.pipeline.testing import HashedWords

PLAIN = {
    "train.epochs": 4,
    "train.batch": 8,
    "train.rate": 3e-3,
    "train.tower.dtype": "fp32",
    "train.mining.n": 2,
    "train.mining.depth": 8,
}


def tiny_model(folder: Path) -> Path:
    place = Path(__file__).parents[1] / "encoders" / "train" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_models", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_model(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def settings(**changes):
    return configuration.load(
        overrides=PLAIN | {k.replace("__", "."): v for k, v in changes.items()}
    )


def write_rows(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def pairs(tmp_path) -> Path:
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(48):
        words = [f"w{i}" for i in draw.choice(60, 6, replace=False)]
        rows.append({"query": " ".join(words[:3]), "positive": " ".join(words)})
    return write_rows(tmp_path / "pairs.jsonl", rows)


class TestTrain:
    def test_pairs_become_a_folder_that_finds_more(self, model, pairs, tmp_path) -> None:
        from foveate.encoders.minilm import MiniLM

        card = training.train(pairs, tmp_path / "out", encoder=model, config=settings())
        assert card["finished"]
        assert card["held_out"] == "8 queries"
        rows = [json.loads(line) for line in pairs.read_text().splitlines()]

        def found(encoder) -> float:
            asked = encoder.encode_queries([row["query"] for row in rows])
            stored = encoder.encode([row["positive"] for row in rows])
            return float(((asked @ stored.T).argmax(1) == np.arange(len(rows))).mean())

        assert found(MiniLM(tmp_path / "out")) > found(MiniLM(model))
        names = {p.name for p in (tmp_path / "out").iterdir()}
        assert {"README.md", "training.json", "model.safetensors"} <= names
        assert training.WORK not in names

    def test_a_trained_folder_is_never_written_over(self, model, pairs, tmp_path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "training.json").write_text("{}")
        with pytest.raises(FoveateError, match="name a new folder"):
            training.train(pairs, out, encoder=model, config=settings())

    def test_unlabelled_texts_take_simcse(self, model, tmp_path) -> None:
        texts = tmp_path / "texts.txt"
        texts.write_text("\n".join(f"w{i} w{i + 1} w{i + 2}" for i in range(40)))
        card = training.train(texts, tmp_path / "out", encoder=model, config=settings())
        assert card["steps"] > 0
        with pytest.raises(ConfigError, match="simcse"):
            training.train(
                texts, tmp_path / "b", encoder=model, config=settings(train__loss="graded")
            )

    def test_a_beir_folder_with_grades(self, model, tmp_path) -> None:
        folder = tmp_path / "set"
        (folder / "qrels").mkdir(parents=True)
        write_rows(
            folder / "corpus.jsonl",
            (
                {"_id": f"d{i}", "title": f"w{i}", "text": f"w{i} w{i + 1} w{i + 5}"}
                for i in range(40)
            ),
        )
        write_rows(
            folder / "queries.jsonl",
            ({"_id": f"q{i}", "text": f"w{i} w{i + 1}"} for i in range(40)),
        )
        lines = [f"q{i}\td{i}\t{1 + i % 3}" for i in range(40)]
        (folder / "qrels" / "train.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *lines])
        )
        card = training.train(
            folder, tmp_path / "out", encoder=model, config=settings(train__loss="graded")
        )
        assert card["trained_on"].startswith("set/train: ")
        with pytest.raises(LoadError, match="there: train"):
            training.train(folder, tmp_path / "b", encoder=model, which="dev", config=settings())

    def test_negatives_and_vectors_come_from_an_index(self, model, pairs, tmp_path) -> None:
        import foveate
        from foveate.encoders.minilm import MiniLM

        docs = tmp_path / "docs"
        docs.mkdir()
        for i, line in enumerate(pairs.read_text().splitlines()):
            (docs / f"{i}.txt").write_text(json.loads(line)["positive"])
        place, encoder = tmp_path / "a.fov", MiniLM(model, dtype="fp32")
        config = configuration.load(
            overrides={
                "encoders.text.path": str(model),
                "encoders.text.dtype": "fp32",
                "encoders.image.use": "none",
            }
        )
        with foveate.open(place, create=True, config=config) as engine:
            engine.add(docs)
        texts, vectors = training._indexed(place, encoder)
        assert len(texts) == 48
        np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-5)
        config = settings(train__tower__sides="query")
        training.train(pairs, tmp_path / "out", encoder=model, index=place, config=config)
        assert MiniLM(tmp_path / "out").tower == MiniLM(model).tower

    @pytest.mark.parametrize("kind", ["slr", "llr", "clr"])
    def test_a_bridge_of_each_kind(self, model, pairs, tmp_path, kind) -> None:
        from foveate.encoders.minilm import MiniLM

        config = settings(train__tower__fit="bridge", train__tower__bridge=kind, train__rate=0.5)
        card = training.train(pairs, tmp_path / "out", encoder=model, config=config)
        assert MiniLM(tmp_path / "out").tower == MiniLM(model).tower
        assert f"kind={kind}" in card["start"]

    def test_edited_queries_are_told_apart(self, model, tmp_path) -> None:
        rows = [
            {"query": f"w{i} is w{i + 1} in {1900 + i}", "positive": f"w{i}"} for i in range(30)
        ]
        data = write_rows(tmp_path / "pairs.jsonl", rows)
        config = settings(train__query_side=0.5)
        card = training.train(data, tmp_path / "out", encoder=model, edits=True, config=config)
        assert card["finished"]

    @pytest.mark.parametrize("row", [{"query": ""}, {"query": "a", "positive": 3}, {"q": "a"}])
    def test_a_row_that_lacks_something_is_named(self, model, tmp_path, row) -> None:
        data = write_rows(tmp_path / "pairs.jsonl", [{"query": "a", "positive": "b"}, row])
        with pytest.raises(LoadError, match="row 2"):
            training.train(data, tmp_path / "out", encoder=model, config=settings())

    def test_what_cannot_be_trained_on_says_what_can(self, model, tmp_path) -> None:
        (tmp_path / "data.bin").write_bytes(b"x")
        with pytest.raises(LoadError, match="BEIR folder"):
            training.train(tmp_path / "data.bin", tmp_path / "out", encoder=model)


@pytest.mark.slow
def test_a_killed_command_resumed_writes_the_same_file(model, pairs, tmp_path) -> None:
    def command(out: str, *more: str) -> list[str]:
        changes = [f"--set={k}={json.dumps(v)}" for k, v in PLAIN.items() if k != "train.epochs"]
        return [
            sys.executable, "-m", "foveate.cli", "train", str(pairs), "--out", str(tmp_path / out),
            "--encoder", str(model), "--epochs", "60", "--set=train.checkpoints=40", *changes,
            *more,
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
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    subprocess.run(
        command("cut", "--resume"), env=env, check=True, capture_output=True, timeout=600
    )
    files = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("whole", "cut")]
    assert files[0] == files[1]


class Parrot:
    """A generator that answers by rule: what it is asked for decides what comes."""

    name, window_tokens = "parrot", 1000

    def __init__(self, same: str, other: str) -> None:
        self.answers = (same, other)

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def generate(self, messages, **options):
        asked = messages[0]["content"]
        yield self.answers["opposite" in asked or "false" in asked]


class TestSynthesis:
    gate = HashedWords()

    def test_the_gate_refuses_swapped_pairs_and_copies(self) -> None:
        sentence = "the wing limits the aspect ratio of the plane"
        near, far = "the wing limits aspect ratio", "cats sleep all day in warm places"
        assert accept(sentence, near, far, self.gate).negatives == (far,)
        assert accept(sentence, far, near, self.gate) is None
        assert (
            accept(sentence, "The wing limits the aspect ratio of the plane!", far, self.gate)
            is None
        )
        assert accept(sentence, near, "", self.gate) is None

    def test_pairs_are_marked_as_synthetic(self) -> None:
        texts = ["The wing limits the aspect ratio of planes. Weight grows with the span of it."]
        writer = Parrot("the aspect ratio of planes: weight and span", "cats sleep in warm places")
        made = write_pairs(
            texts, 2, configuration.load(), lambda *a: None, generator=writer, encoder=self.gate
        )
        assert made
        assert all(example.synthetic and example.negatives for example in made)

    def test_sentences_are_spread_over_the_texts(self) -> None:
        texts = [f"This is sentence number {i} of the long list." for i in range(100)]
        assert [int(s.split()[4]) for s in pick(texts, 4)] == [0, 25, 50, 75]
