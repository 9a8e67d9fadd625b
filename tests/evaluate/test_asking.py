"""Question sets: own documents or all of them, through stages that are registered by name."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

import foveate.rerank
import foveate.rerank.compress
import foveate.rerank.order
from foveate.pipeline.evaluate import asking, configurations, datasets, report, run, sets
from foveate.pipeline.evaluate.searching import Plan
from foveate.pipeline.testing import HashedWords
from foveate.pipeline.types import Context, Kept


class Reader:
    """A reader that counts words."""

    name = "words"

    def count_tokens(self, text):
        return len(text.split())


class Backwards:
    """A reranker that turns the list around."""

    reads = frozenset({"text", "table"})

    def __init__(self, resources):
        self.calls = 0

    def rerank(self, query, hits, k):
        import dataclasses

        self.calls += 1
        turned = list(reversed(hits))
        return [
            dataclasses.replace(h, score=1 / (i + 1), scores={**h.scores, "backwards": -i})
            for i, h in enumerate(turned)
        ][:k]


class FirstSentences:
    """A compressor that keeps each passage's first words, as many as the budget allows."""

    def __init__(self, resources, *, greedy=False):
        self.greedy = greedy

    def compress(self, query, hits, budget_tokens, *, count_tokens):
        kept, left = [], 10_000 if self.greedy else budget_tokens
        for hit in hits:
            start = hit.passage.locator.span[0]
            words = hit.passage.text.split()[: max(0, left)]
            if words:
                span = (start, start + len(" ".join(words)))
                kept.append(Kept(hit, (span,)))
                left -= len(words)
        return Context(tuple(kept), budget_tokens - left)


class Turned:
    """An order: the last first."""

    def __init__(self, resources):
        pass

    def order(self, query, context):
        return Context(tuple(reversed(context.kept)), context.n_tokens)


@pytest.fixture(autouse=True)
def stages(monkeypatch):
    module = ModuleType("stages_of_a_test")
    module.Backwards, module.FirstSentences, module.Turned = Backwards, FirstSentences, Turned
    monkeypatch.setitem(sys.modules, "stages_of_a_test", module)
    for registry, name, kind in (
        (foveate.rerank.REGISTRY, "backwards", "Backwards"),
        (foveate.rerank.compress.REGISTRY, "first-sentences", "FirstSentences"),
        (foveate.rerank.order.REGISTRY, "turned", "Turned"),
    ):
        monkeypatch.setitem(registry, name, f"stages_of_a_test:{kind}")
    monkeypatch.setattr("foveate.pipeline.engine.Engine._read_with", lambda self: Reader())


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path / "cache", n_answers=9, encoders={"text": HashedWords(dim=512)})


@pytest.fixture
def two_questions(tmp_path):
    """Two questions that share a document, which is gold for one and a distractor of the other."""
    wing = {"title": "Wing", "text": "The wing of the glider spans 18 metres in all."}
    kettle = {"title": "Kettle", "text": "The kettle of the tea house holds 3 litres in all."}
    bread = {"title": "Bread", "text": "The bread rises for two hours in the warm kitchen."}
    rows = [
        {
            "id": "a",
            "question": "How wide is the wing of the glider?",
            "answers": ["18 metres"],
            "fake_answers": ["20 metres"],
            "docs": [{**kettle, "is_gold": False}, {**wing, "is_gold": True}],
        },
        {
            "id": "b",
            "question": "How much does the kettle of the tea house hold?",
            "answers": ["3 litres"],
            "docs": [{**kettle, "is_gold": True}, {**bread, "is_gold": False}],
        },
    ]
    folder = tmp_path / "qa_two"
    folder.mkdir()
    (folder / "qa.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def measured(folder, plan, *changes):
    chosen = configurations.gather(sets=changes)
    return run.evaluate(datasets.load(folder), chosen, plan)


def test_documents_are_pooled_each_once(two_questions):
    (dataset,) = datasets.load(two_questions)
    pooled = sets.pool(dataset)
    assert [r.title for r in pooled.corpus] == ["Kettle", "Wing", "Bread"]
    assert pooled.qrels == {"a": {"p1": 1}, "b": {"p0": 1}}
    scopes = asking.pooled_scopes(dataset, pooled)
    assert scopes["a"] == asking.Scope(None, frozenset({"p1"}), "not (_id in ('p1'))")


def test_without_the_evidence_no_document_with_the_answer_is_left(two_questions):
    (dataset,) = datasets.load(two_questions)
    questions = [
        sets.Question("x", "?", ("in all",), dataset.questions[0].docs),
        sets.Question("y", "?", ("yes",), dataset.questions[0].docs),
    ]
    other = sets.Questions("other", tuple(questions))
    scopes = asking.pooled_scopes(other, sets.pool(other))
    assert scopes["x"].without == "not (_id in ('p0', 'p1'))"
    assert scopes["y"].without is None


def test_pooled_and_own_documents_stand_side_by_side(two_questions, plan):
    own, pooled = measured(two_questions, plan, "documents=pooled")
    assert set(own["run"]["a"]) == {"q0-0", "q0-1"}
    assert set(pooled["run"]["a"]) == {"p0", "p1", "p2"}
    for result in (own, pooled):
        assert result["measures"]["gold R@1"] == 1.0
        assert result["measures"]["contains"] == 1.0
        assert result["measures"]["citation recall"] == 1.0
        assert result["measures"]["repeats a falsehood"] == 0.0
        assert set(result["per_query"]["refused without evidence"]) == {"a", "b"}
    headings, rows = report.table_rows([own, pooled], "questions: what is answered")
    assert headings[3:5] == ["contains", "token F1"]
    assert headings[-1] == "s/answer"
    assert [row[1] for row in rows] == ["offline", "documents=pooled"]


def test_bm25_ranks_pooled_documents_too(two_questions, plan):
    pytest.importorskip("bm25s", reason="needs foveate[peers]")
    chosen = configurations.gather(baselines=["bm25", "bm25/pooled"])[1:]
    own, pooled = run.evaluate(datasets.load(two_questions), chosen, plan)
    assert own["measures"]["gold R@1"] == pooled["measures"]["gold R@1"] == 1.0
    assert pooled["run"]["a"][0] == "p1"


def test_other_sets_have_no_pooled_documents(beir, plan):
    (result,) = measured(beir, plan, "documents=pooled")
    assert result["configuration"] == "offline"


def test_a_reranker_by_name_changes_the_order_and_is_timed(beir, question_set, plan):
    _, base, other = measured(beir, plan, "rerank=none", "rerank=backwards")
    assert base["run"]["q0"][0] == "d0"
    assert list(reversed(base["run"]["q0"])) == other["run"]["q0"]
    assert "rerank backwards" in other["times"]["search"]
    _, base, other = measured(question_set, plan, "rerank=none", "rerank=backwards")
    assert other["run"]["a"] == list(reversed(base["run"]["a"]))


def test_what_a_reranker_does_not_see_follows_behind_it(beir, plan, tmp_path):
    file = tmp_path / "two.toml"
    file.write_text('[[rerank]]\nuse = "backwards"\ndepth = 2\n')
    chosen = configurations.gather(files=[str(file)], sets=["rerank=none"])
    runs = {r["configuration"]: r for r in run.evaluate(datasets.load(beir), chosen, plan)}
    other = next(runs[name] for name in runs if "two" in name)
    base = runs["rerank=none"]
    first, second, *rest = base["run"]["q0"]
    assert other["run"]["q0"] == [second, first, *rest]
    assert rest


def test_a_stopped_run_goes_on_where_it_stopped(beir, plan, monkeypatch):
    asked = []
    rerank = Backwards.rerank

    def stop(self, query, hits, k):
        asked.append(query)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return rerank(self, query, hits, k)

    rows = [{"_id": f"q{i}", "text": t} for i, t in enumerate(("apples", "pears", "plums"))]
    (beir / "queries.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (beir / "qrels" / "test.tsv").write_text("q0\td0\t1\nq1\td1\t1\nq2\td2\t1\n")
    (_, chosen) = configurations.gather(sets=["rerank=backwards"])
    monkeypatch.setattr(Backwards, "rerank", stop)
    with pytest.raises(KeyboardInterrupt):
        run.evaluate(datasets.load(beir), [chosen], plan)
    (result,) = run.evaluate(datasets.load(beir), [chosen], plan)
    assert asked == ["apples", "pears", "pears", "plums"]
    assert set(result["run"]) == {"q0", "q1", "q2"}
    assert not list((plan.cache / "results").glob("*.jsonl"))


def test_answers_that_are_done_are_not_asked_again(two_questions, plan, monkeypatch):
    from foveate.pipeline.engine import Engine

    asked = []
    ask = Engine.ask

    def counted(self, text, **options):
        asked.append(text)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(self, text, **options)

    monkeypatch.setattr(Engine, "ask", counted)
    with pytest.raises(KeyboardInterrupt):
        measured(two_questions, plan)
    assert asked[0] == asked[1] != asked[2]
    (result,) = measured(two_questions, plan)
    assert asked[3:] == [asked[2]] * 2
    assert set(result["per_query"]["contains"]) == {"a", "b"}


def test_a_compressor_is_held_to_the_ratio(two_questions, plan):
    _, half, fifth, greedy = measured(
        two_questions,
        plan,
        "compress=first-sentences;ratio=2",
        "compress=first-sentences",
        "compress=first-sentences;compress.greedy=true",
    )
    assert half["measures"]["tokens kept"] == pytest.approx(0.5, abs=0.06)
    assert half["measures"]["answer kept"] == 1.0
    assert half["measures"]["gold kept"] == 1.0
    assert fifth["measures"]["tokens kept"] <= 0.2
    assert fifth["measures"]["answer kept"] == 0.0
    assert fifth["measures"]["over budget"] == 0.0
    assert greedy["measures"]["over budget"] == 1.0
    assert half["times"]["compress_median_s"] > 0


def test_an_order_moves_the_gold(two_questions, plan):
    _, ranked, turned = measured(
        two_questions,
        plan,
        "compress=first-sentences;ratio=1",
        "compress=first-sentences;ratio=1;order=turned",
    )
    assert ranked["measures"]["gold place"] == 0.0
    assert turned["measures"]["gold place"] == 1.0
