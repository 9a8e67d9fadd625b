"""Question sets: is the gold found, the answer right and cited, and does it know its limits."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.evaluate import compressing, metrics
from foveate.pipeline.evaluate.journal import Journal
from foveate.pipeline.evaluate.searching import TEXTS, Plan, Ran, ask_all
from foveate.pipeline.evaluate.sets import Question, Questions, Retrieval, own_golds
from foveate.pipeline.terminal import number

if TYPE_CHECKING:
    from foveate.pipeline.evaluate.configurations import Configuration
    from foveate.pipeline.evaluate.corpora import Built
    from foveate.pipeline.types import Answer

MOST_NAMED = 400  # documents that a filter names; the filter language takes 500


@dataclass(frozen=True, slots=True)
class Scope:
    """What a question is asked of.

    where: a filter, None for all. gold: the names of its gold documents. without: a filter that
    leaves out every document with the answer; None where that is not possible.
    """

    where: str | None
    gold: frozenset[str]
    without: str | None


def own_scopes(dataset: Questions) -> dict[str, Scope]:
    """Ask each question of its own documents."""
    golds = own_golds(dataset)
    found = {}
    for i, question in enumerate(dataset.questions):
        where = f"eval_question = 'q{i}'"
        without = f"{where} and eval_gold = 'no'" if can_be_made_unanswerable(question) else None
        found[question.id] = Scope(where, frozenset(golds[question.id]), without)
    return found


def pooled_scopes(dataset: Questions, pooled: Retrieval) -> dict[str, Scope]:
    """Ask each question of all questions' documents; without the gold, nor any with the answer."""
    words = {r.id: f" {' '.join(metrics.normalise(r.joined))} " for r in pooled.corpus}
    found = {}
    for question in dataset.questions:
        gold = frozenset(pooled.qrels[question.id])
        wanted = [f" {' '.join(w)} " for a in question.answers if (w := metrics.normalise(a))]
        held = gold | {name for name, text in words.items() if any(w in text for w in wanted)}
        without = None
        if gold and wanted and not question.yes_no and len(held) <= MOST_NAMED:
            without = f"not (_id in ({', '.join(map(repr, sorted(held)))}))"
        found[question.id] = Scope(None, gold, without)
    return found


def gold_measures(
    golds: Mapping[str, Set[str]], orders: Mapping[str, Sequence[str]]
) -> metrics.PerQuery:
    """Return gold recall@k of each question, {measure: {question id: value}}."""
    return {
        f"gold R@{k}": {
            key: metrics.gold_recall(orders.get(key, ()), gold, k)
            for key, gold in golds.items()
            if gold
        }
        for k in metrics.GOLD_CUTS
    }


def run_questions(
    built: Built,
    dataset: Questions,
    scopes: Mapping[str, Scope],
    configuration: Configuration,
    plan: Plan,
    place: Path,
) -> Ran:
    """Rank the documents of each question, and compress for and answer a sample of them."""
    asked = {q.id: {"text": q.text, "where": scopes[q.id].where} for q in dataset.questions}
    run, times = ask_all(
        built,
        plan,
        asked,
        lambda hit: str(hit.passage.metadata["_id"]),
        use="ask",
        journal=Journal(place.with_suffix(".search.jsonl"), fresh=plan.fresh),
        mode=configuration.mode,
        modality=TEXTS,
    )
    found = gold_measures({key: scope.gold for key, scope in scopes.items()}, run)
    notes = list(dataset.notes)
    sample = [dataset.questions[i] for i in sampled(list(scopes), plan.n_answers)]
    if sample and built.engine.refinery.compressor() is not None:
        journal = Journal(place.with_suffix(".compress.jsonl"), fresh=plan.fresh)
        values, seconds = compressing.compress_sample(
            built.engine, sample, scopes, configuration, plan, journal
        )
        found.update(values)
        times["compress_median_s"] = seconds
    if sample:
        journal = Journal(place.with_suffix(".answers.jsonl"), fresh=plan.fresh)
        answers, seconds = answer_sample(built, sample, scopes, plan, journal)
        found.update(answers)
        times["answer_median_s"] = seconds
        notes.append(f"answers: a sample of {len(sample)} of {number(len(scopes), 'question')}")
    return Ran("questions", found, run, {q.id: q.text for q in dataset.questions}, times, notes)


def answer_sample(
    built: Built,
    sample: Sequence[Question],
    scopes: Mapping[str, Scope],
    plan: Plan,
    journal: Journal,
) -> tuple[metrics.PerQuery, float]:
    """Answer questions from their documents, and again without those that hold the answer."""
    found: metrics.PerQuery = {}
    seconds = []
    for done, question in enumerate(sample, start=1):
        if question.id not in journal.values:
            scope = scopes[question.id]
            started = time.perf_counter()
            answer = built.engine.ask(question.text, where=scope.where)
            took = time.perf_counter() - started
            values = judge(question, answer, scope.gold)
            if scope.without is not None:
                without = built.engine.ask(question.text, where=scope.without)
                values["refused without evidence"] = float(not without.answered)
            journal.put(question.id, {"values": values, "seconds": took})
        kept = journal.values[question.id]
        seconds.append(float(kept["seconds"]))
        for measure, value in kept["values"].items():
            found.setdefault(measure, {})[question.id] = value
        if plan.tell is not None:
            plan.tell("answer", done, len(sample))
    journal.end()
    return found, statistics.median(seconds) if seconds else 0.0


def judge(question: Question, answer: Answer, gold: Set[str]) -> dict[str, float]:
    """Measure one answer. Containment and F1 are of questions that yes or no does not answer.

    citation precision: share of cited documents that are gold. citation recall: share of gold
    documents that are cited. tokens: read by the generator, 0 when sentences are quoted.
    """
    text = metrics.strip_markers(answer.text) if answer.answered else ""
    values = {
        "answered": float(answer.answered),
        "words": float(len(text.split())),
        "tokens": float(dict(answer.trace.get("prompt") or {}).get("tokens", 0)),
    }
    if question.falsehoods:
        values["repeats a falsehood"] = metrics.containment(text, question.falsehoods)
        values["tells of a conflict"] = float(bool(answer.conflicts))
    if not question.answerable:
        return {**values, "refused unanswerable": float(not answer.answered)}
    if question.yes_no:
        values["yes/no right"] = float(metrics.says(text) == question.answers[0].strip().lower())
    else:
        values["contains"] = metrics.containment(text, question.answers, question.required)
        values["token F1"] = metrics.token_f1(text, question.answers)
    if gold:
        cited = [cited_name(c.passage.metadata) for c in answer.citations]
        precision, recall = metrics.citations(cited, gold)
        if answer.answered:
            values["citation precision"] = precision
        values["citation recall"] = recall
    return values


def cited_name(metadata: Mapping[str, Any]) -> str:
    return str(metadata["_id"])


def can_be_made_unanswerable(question: Question) -> bool:
    """Say whether taking the gold away takes the answer away: no other document holds it."""
    others = [d.joined for d in question.docs if not d.is_gold]
    if not others or len(others) == len(question.docs) or question.yes_no:
        return False
    return not any(metrics.contains(text, a) for text in others for a in question.answers)


def sampled(ids: Sequence[str], n: int) -> list[int]:
    """Return the numbers of n ids, chosen by their hash, in order."""
    order = sorted(range(len(ids)), key=lambda i: hashlib.sha1(ids[i].encode()).hexdigest())
    return sorted(order[:n])
