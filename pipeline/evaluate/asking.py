"""Question sets: is the gold found, the answer right and cited, and does it know its limits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.evaluate import metrics
from foveate.pipeline.evaluate.searching import TEXTS, Plan, Ran, ask_all
from foveate.pipeline.evaluate.sets import Question, Questions

if TYPE_CHECKING:
    from foveate.pipeline.evaluate.configurations import Configuration
    from foveate.pipeline.evaluate.corpora import Built
    from foveate.pipeline.types import Answer


def gold_measures(dataset: Questions, orders: Mapping[str, Sequence[int]]) -> metrics.PerQuery:
    """Return gold recall@k of each question, {measure: {question id: value}}."""
    found: metrics.PerQuery = {f"gold R@{k}": {} for k in metrics.GOLD_CUTS}
    for question in dataset.questions:
        gold = gold_of(question)
        if not gold:
            continue
        for k in metrics.GOLD_CUTS:
            value = metrics.gold_recall(orders.get(question.id, ()), gold, k)
            found[f"gold R@{k}"][question.id] = value
    return found


def gold_of(question: Question) -> set[int]:
    return {i for i, doc in enumerate(question.docs) if doc.is_gold}


def run_questions(
    built: Built, dataset: Questions, configuration: Configuration, plan: Plan
) -> Ran:
    """Rank each question's own documents, and answer a sample of the questions."""
    asked = {
        question.id: {
            "text": question.text,
            "where": f"eval_question = 'q{i}'",
        }
        for i, question in enumerate(dataset.questions)
    }
    run, times = ask_all(
        built,
        plan,
        asked,
        lambda hit: str(hit.passage.metadata["_id"]),
        mode=configuration.mode,
        modality=TEXTS,
    )
    orders = {key: [int(doc.rpartition("-")[2]) for doc in docs] for key, docs in run.items()}
    found = gold_measures(dataset, orders)
    notes = list(dataset.notes)
    if plan.n_answers:
        answers, seconds = answer_sample(built, dataset, plan)
        found.update(answers)
        times["answer_median_s"] = seconds
        notes.append(f"answers: {min(plan.n_answers, len(dataset.questions))} questions")
    return Ran("questions", found, run, {q.id: q.text for q in dataset.questions}, times, notes)


def answer_sample(built: Built, dataset: Questions, plan: Plan) -> tuple[metrics.PerQuery, float]:
    """Answer the sampled questions from their documents, and again without the gold ones."""
    import statistics

    numbers = sampled([q.id for q in dataset.questions], plan.n_answers)
    found: metrics.PerQuery = {}
    seconds = []
    for done, i in enumerate(numbers, start=1):
        question = dataset.questions[i]
        started = time.perf_counter()
        answer = built.engine.ask(question.text, where=f"eval_question = 'q{i}'")
        seconds.append(time.perf_counter() - started)
        values = judge(question, answer)
        if can_be_made_unanswerable(question):
            where = f"eval_question = 'q{i}' and eval_gold = 'no'"
            without = built.engine.ask(question.text, where=where)
            values["refused without evidence"] = float(not without.answered)
        for measure, value in values.items():
            found.setdefault(measure, {})[question.id] = value
        if plan.tell is not None:
            plan.tell("answer", done, len(numbers))
    return found, statistics.median(seconds) if seconds else 0.0


def judge(question: Question, answer: Answer) -> dict[str, float]:
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
    if not question.answerable:
        return {**values, "refused unanswerable": float(not answer.answered)}
    if question.yes_no:
        values["yes/no right"] = float(metrics.says(text) == question.answers[0].strip().lower())
    else:
        values["contains"] = metrics.containment(text, question.answers, question.required)
        values["token F1"] = metrics.token_f1(text, question.answers)
    gold = gold_of(question)
    if gold:
        cited = [cited_number(c.passage.metadata) for c in answer.citations]
        precision, recall = metrics.citations(cited, gold)
        if answer.answered:
            values["citation precision"] = precision
        values["citation recall"] = recall
    return values


def cited_number(metadata: Mapping[str, Any]) -> int:
    return int(str(metadata["_id"]).rpartition("-")[2])


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
