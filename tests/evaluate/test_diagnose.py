"""A planted defect turns the right diagnosis red, and leaves the others as they were."""

from __future__ import annotations

import json
import random
import sqlite3

import numpy as np
import pytest

import foveate
from foveate.pipeline.evaluate import (
    configurations,
    contrast,
    datasets,
    diagnose,
    geometry,
    position,
    stereotypes,
)
from foveate.pipeline.evaluate.diagnosis import at_least, at_most
from foveate.pipeline.evaluate.searching import Plan
from foveate.pipeline.evaluate.view import look
from foveate.pipeline.testing import HashedWords

N_DOCS = 120


class First64(HashedWords):
    """An encoder with a defect: it sees only the first 64 tokens of what is stored."""

    def encode(self, inputs, *, progress=None):
        cut = []
        for text in inputs:
            spans = self.token_spans(text)
            cut.append(text[: spans[63][1]] if len(spans) > 64 else text)
        return super().encode(cut, progress=progress)


def write_set(folder, *, shuffled=False):
    """Documents of made-up words; a query holds three words of its document."""
    rng = random.Random(5)
    words = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in "aeiou" for c in ("ka", "lo", "mi", "ru")]
    folder.mkdir()
    corpus, queries, pairs = [], [], []
    for i in range(N_DOCS):
        own = [rng.choice(words) + str(i % 7) for _ in range(6)]
        sentences = [" ".join(["The", *rng.sample(own + words, 9)]).strip() + "." for _ in range(5)]
        corpus.append({"_id": f"d{i}", "title": "", "text": " ".join([*sentences, *own])})
        queries.append({"_id": f"q{i}", "text": " ".join(rng.sample(own, 3))})
        pairs.append((f"q{i}", f"d{i}"))
    if shuffled:
        docs = [d for _, d in pairs]
        rng.shuffle(docs)
        pairs = [(q, d) for (q, _), d in zip(pairs, docs, strict=True)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "qrels").mkdir()
    lines = [f"{q}\t{d}\t1" for q, d in pairs]
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n"
    )
    return folder


@pytest.fixture(scope="module")
def encoder():
    return HashedWords(dim=512)


def states(dataset, encoder, cache):
    plan = Plan(cache, encoders={"text": encoder})
    (base,) = configurations.gather()
    return {d["name"]: d["state"] for d in diagnose.diagnose(dataset, base, plan)}


def test_a_sound_set_has_no_red_where_defects_are_planted(tmp_path, encoder):
    (dataset,) = datasets.load(write_set(tmp_path / "set"))
    found = states(dataset, encoder, tmp_path / "cache")
    assert set(found) == set(diagnose.PROBES)
    for name in ("judgments", "vectors present", "position in a passage", "ANN recall"):
        assert found[name] == "green", name


def test_shuffled_judgments_turn_the_judgments_red(tmp_path, encoder):
    (dataset,) = datasets.load(write_set(tmp_path / "set", shuffled=True))
    found = states(dataset, encoder, tmp_path / "cache")
    assert found["judgments"] == "red"
    assert found["vectors present"] == found["position in a passage"] == "green"


def test_an_encoder_that_sees_64_tokens_turns_the_position_red(tmp_path):
    (dataset,) = datasets.load(write_set(tmp_path / "set"))
    found = states(dataset, First64(dim=512), tmp_path / "cache")
    assert found["position in a passage"] == "red"
    assert found["judgments"] == found["vectors present"] == "green"


def test_a_diagnosis_is_kept(tmp_path, encoder):
    (dataset,) = datasets.load(write_set(tmp_path / "set"))
    lines = []
    plan = Plan(tmp_path / "cache", encoders={"text": encoder}, announce=lines.append)
    (base,) = configurations.gather()
    first = diagnose.diagnose_once(dataset, base, plan)
    lines.clear()
    assert diagnose.diagnose_once(dataset, base, plan) == json.loads(json.dumps(first))
    assert lines == ["  set: diagnosis kept from before"]


def lossy(folder, place, encoder):
    """Index a set in two parts, and lose the second part's vectors: 6 of 120."""
    lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
    parts = folder.with_name("parts")
    parts.mkdir()
    with foveate.open(place, create=True, encoders={"text": encoder}) as engine:
        for name, some in (("most", lines[:114]), ("last", lines[114:])):
            (parts / f"{name}.jsonl").write_text("".join(some))
            engine.add(parts / f"{name}.jsonl")
    with sqlite3.connect(place / "catalog.sqlite") as db:
        lost = db.execute("SELECT n FROM segments WHERE role = 'text' AND position > 0").fetchall()
        assert lost == [(6,)]
        db.execute("DELETE FROM segments WHERE role = 'text' AND position > 0")
    db.close()


def test_lost_vectors_turn_their_presence_red(tmp_path, encoder):
    folder = write_set(tmp_path / "set")
    lossy(folder, tmp_path / "x.fov", encoder)
    (dataset,) = datasets.load(folder)
    with foveate.open(tmp_path / "x.fov", encoders={"text": encoder}) as engine:
        found = {d.name: d for d in diagnose.probe_all(look(engine, dataset), lambda text: None)}
    present = found["vectors present"]
    assert (present.state, present.value) == ("red", pytest.approx(0.05))
    assert present.says == "6 of 120 passages (5.0%) have no vector"
    assert found["judgments"].state == found["position in a passage"].state == "green"


@pytest.mark.models
def test_minilm_cut_to_64_tokens_is_told_from_minilm(shared_data):
    from foveate.pipeline import registry

    whole = registry.find("encoder", "minilm")()

    class Cut:
        window_tokens = whole.window_tokens
        token_spans = staticmethod(whole.token_spans)
        encode_queries = staticmethod(whole.encode_queries)

        @staticmethod
        def encode(texts):
            ends = [whole.token_spans(t) for t in texts]
            cut = [t[: e[63][1]] if len(e) > 64 else t for t, e in zip(texts, ends, strict=True)]
            return whole.encode(cut)

    (dataset,) = datasets.load(shared_data / "scifact")
    texts = [r.text for r in dataset.corpus[:60]]
    seen = position.position_in_passage(whole, texts, n=24)
    blind = position.position_in_passage(Cut(), texts, n=24)
    assert seen.state != "red"
    assert blind.state == "red"


def test_psi():
    assert position.psi({"a": 0.5, "b": 0.5}) == 0.0
    assert position.psi({"a": 0.5, "b": 0.0}) == 1.0
    assert position.psi({"a": 0.8, "b": 0.6}) == pytest.approx(0.25)
    assert position.psi({"a": 0.0}) == 0.0


def test_position_in_document_needs_enough_queries():
    few = position.position_in_document({"start": [1.0] * 5, "end": [0.0] * 5})
    assert few.state == "grey"
    enough = position.position_in_document({"start": [1.0] * 40, "end": [0.5] * 40})
    assert (enough.state, enough.value) == ("red", 0.5)


def test_uniformity_and_alignment_of_known_vectors():
    same = np.tile(np.array([[1.0, 0.0]], dtype=np.float32), (4, 1))
    assert geometry.uniformity(same) == pytest.approx(0.0)
    assert geometry.alignment(same, same) == 0.0
    pair = np.array([[1.0, 0.0], [-1.0, 0.0]], dtype=np.float32)
    assert geometry.uniformity(pair) == pytest.approx(-8.0)
    assert geometry.alignment(pair[:1], pair[1:]) == pytest.approx(4.0)


def test_a_hub_is_skewed_and_a_ring_is_not():
    angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert abs(geometry.skewness(geometry.occurrences(ring, 4))) < 1
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(100, 1000)).astype(np.float32)
    cloud[0] = cloud[1:].mean(axis=0)
    cloud /= np.linalg.norm(cloud, axis=1, keepdims=True)
    counts = geometry.occurrences(cloud, 10)
    assert counts.argmax() == 0
    assert geometry.skewness(counts) > 6


@pytest.mark.parametrize(
    ("edit", "text", "twin"),
    [
        (contrast.negate, "The wing is heavy.", "The wing is not heavy."),
        (contrast.negate, "The wing is not heavy.", "The wing is heavy."),
        (contrast.negate, "A heavy wing.", None),
        (contrast.renumber, "It took 128 days.", "It took 451 days."),
        (contrast.renumber, "It took days.", None),
    ],
)
def test_minimal_edits(edit, text, twin):
    assert edit(text) == twin


def test_contrast_tells_an_encoder_of_words_from_a_deaf_one(encoder):
    sentences = [f"The engine {i} in Norwich was built in {1700 + i} by hand." for i in range(30)]
    sentences += [f"The boat {i} in Antwerp was sold in {1800 + i} by law." for i in range(30)]
    found = contrast.contrast_consistency(encoder, sentences)
    assert found.state == "green", found.says

    class Deaf(HashedWords):
        def encode_queries(self, queries):
            return super().encode_queries(["same"] * len(queries))

    assert contrast.contrast_consistency(Deaf(), sentences).state == "red"


def test_effect_size_has_a_sign_and_none_for_equal_groups():
    a, b = np.eye(2, dtype=np.float32)[:1], np.eye(2, dtype=np.float32)[1:]
    assert stereotypes.effect_size(a, b, a, b) > 1
    assert stereotypes.effect_size(b, a, a, b) < -1
    assert stereotypes.effect_size(a, a, a, b) == 0.0


def test_grades():
    assert [at_least(v, 0.8, 0.6) for v in (0.8, 0.7, 0.5)] == ["green", "amber", "red"]
    assert [at_most(v, 0.1, 0.2) for v in (0.1, 0.2, 0.3)] == ["green", "amber", "red"]
