from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

import foveate
from foveate.pipeline import config, refine, registry
from foveate.pipeline.errors import ConfigError, UnknownComponent
from foveate.pipeline.testing import HashedWords
from foveate.pipeline.types import Hit, Locator, Modality, Passage, Source

SOURCE = Source("0" * 32, ("/a.txt",), "text/plain", "text", 1, 0.0)


def hit(number: int, score: float, modality: Modality = "text") -> Hit:
    passage = Passage(number, number, SOURCE, modality, f"text {number}", Locator((0, 6)))
    return Hit(passage, score, {"dense": score})


class Backwards:
    """Turn the hits that it is given round."""

    def __init__(self, resources: object, *, reads: Sequence[str] = ("text",)) -> None:
        self.reads = frozenset(reads)
        self.seen: list[int] = []

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        self.seen.append(len(hits))
        return [
            dataclasses.replace(h, score=1 / rank, scores={**h.scores, "backwards": 1 / rank})
            for rank, h in enumerate(reversed(hits), start=1)
        ][:k]


def ids(hits: Sequence[Hit]) -> list[int]:
    return [h.passage.id for h in hits]


def step(depth: int = 50) -> refine.Step:
    return refine.Step("backwards", depth, "both", {})


def test_a_reranker_changes_order_scores_and_ranks() -> None:
    hits = [hit(i, 1 - i / 10) for i in range(4)]
    found = refine.rerank("q", hits, [(step(), Backwards(None))], 3)
    assert ids(found) == [3, 2, 1]
    assert [h.score for h in found] == [1, 1 / 2, 1 / 3]
    assert [h.ranks["backwards"] for h in found] == [1, 2, 3]
    assert found[0].scores == {"dense": pytest.approx(0.7), "backwards": 1.0}


def test_what_a_reranker_cannot_read_keeps_its_place() -> None:
    kinds: list[Modality] = ["text", "image", "text", "image", "table"]
    hits = [hit(i, 1 - i / 10, kind) for i, kind in enumerate(kinds)]
    found = refine.rerank("q", hits, [(step(), Backwards(None, reads=("text", "table")))], 5)
    assert ids(found) == [4, 1, 2, 3, 0]
    assert [h.score for h in found] == [h.score for h in hits]


def test_hits_below_the_depth_follow_in_their_old_order() -> None:
    hits = [hit(i, 1 - i / 10) for i in range(6)]
    found = refine.rerank("q", hits, [(step(3), Backwards(None))], 6)
    assert ids(found) == [2, 1, 0, 3, 4, 5]
    scores = [h.score for h in found]
    assert scores == sorted(scores, reverse=True)
    assert scores[2:] == pytest.approx([1 / 3, 1 / 3, 1 / 3 * 6 / 7, 1 / 3 * 5 / 7])
    assert "backwards" not in found[3].ranks


def test_a_chain_hands_on_as_many_as_the_next_one_reads() -> None:
    hits = [hit(i, 1 - i / 10) for i in range(6)]
    first, second = Backwards(None), Backwards(None)
    found = refine.rerank("q", hits, [(step(6), first), (step(4), second)], 2)
    assert (first.seen, second.seen) == ([6], [4])
    assert ids(found) == [2, 3]


def test_no_hits_pass_through() -> None:
    assert refine.rerank("q", [], [(step(), Backwards(None))], 3) == []


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("a", ["a"]),
        ("none", []),
        (["a", "b"], ["a", "b"]),
        ([{"use": "a", "depth": 5}, "b"], ["a", "b"]),
        ([], []),
    ],
)
def test_a_chain_is_a_name_or_a_list(given: object, names: list[str]) -> None:
    assert [s.name for s in refine.steps(given, "rerank")] == names


@pytest.mark.parametrize(
    "given",
    [3, [3], [{"depth": 3}], [{"use": "a", "depth": 0}], [{"use": "a", "on": "never"}]],
)
def test_a_chain_that_cannot_be_read_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="rerank"):
        refine.steps(given, "rerank")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> foveate.Engine:
    monkeypatch.setattr(registry, "find", found_here(registry.find))
    (tmp_path / "one.txt").write_text("The lighthouse stands on a rock.")
    (tmp_path / "two.txt").write_text("The lighthouse keeper writes a diary.")
    (tmp_path / "three.txt").write_text("Bread is baked in the morning.")
    settings = config.load(overrides={"rerank": [{"use": "backwards", "on": "ask"}]})
    made = foveate.open(
        tmp_path / "ix", create=True, config=settings, encoders={"text": HashedWords()}
    )
    made.add(tmp_path, include=["*.txt"])
    return made


def found_here(find):  # type: ignore[no-untyped-def]
    def found(kind: str, name: str) -> object:
        return Backwards if name == "backwards" else find(kind, name)

    return found


def test_search_reranks_when_asked_and_questions_as_configured(engine: foveate.Engine) -> None:
    plain = ids(engine.search("lighthouse rock"))
    assert ids(engine.search("lighthouse rock", rerank="backwards")) == plain[::-1]
    assert ids(engine.search("lighthouse rock", rerank=False)) == plain
    assert ids(list(engine.ask("Where is the lighthouse?").hits)) == ids(
        engine.search("Where is the lighthouse?", rerank="backwards")
    )


def test_an_unknown_reranker_and_option_are_named(engine: foveate.Engine) -> None:
    with pytest.raises(UnknownComponent, match="'bakwards'"):
        engine.search("lighthouse", rerank="bakwards")
    with pytest.raises(ConfigError, match=r"unknown option backwards.colour \(known: reads\)"):
        engine.search("lighthouse", rerank=[{"use": "backwards", "colour": "red"}])


def test_a_configured_reranker_serves_hybrid_searches_only(engine: foveate.Engine) -> None:
    plain = ids(engine.search("lighthouse rock", mode="words"))
    every = config.load(overrides={"rerank": "backwards"})
    with foveate.open(engine.path, config=every, encoders=engine.encoders) as other:
        assert ids(other.search("lighthouse rock", mode="words")) == plain
        assert ids(other.search("lighthouse rock", mode="words", rerank="backwards")) == plain[::-1]
        assert ids(other.search("lighthouse rock")) == ids(
            engine.search("lighthouse rock", rerank="backwards")
        )


def test_compacting_erases_the_keys_that_a_reader_kept(engine: foveate.Engine) -> None:
    kept = engine.path / "scan" / "keys.sqlite"
    kept.parent.mkdir()
    kept.write_bytes(b"of a passage that was removed")
    engine.compact()
    assert not kept.exists()


def test_an_option_of_another_type_is_refused_before_anything_is_read(
    engine: foveate.Engine,
) -> None:
    with pytest.raises(ConfigError, match=r"backwards\.reads must be .*Sequence.*, got 3"):
        engine.search("lighthouse", rerank=[{"use": "backwards", "reads": 3}])


@pytest.mark.parametrize("kind", ["reranker", "compressor", "order"])
def test_every_stage_refuses_an_unknown_option_by_name(kind: str) -> None:
    for name in registry.names(kind):
        takes = inspect.signature(registry.find(kind, name)).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in takes):
            continue  # hands them to the attention scan, which looks at them on first use
        with pytest.raises(ConfigError, match="nonsense"):
            refine.make(kind, name, None, {"nonsense": 3})  # type: ignore[arg-type]
