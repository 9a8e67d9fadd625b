"""Run data sets under configurations and keep every finished result on disk."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foveate import __version__
from foveate.pipeline.evaluate import asking, baselines, metrics
from foveate.pipeline.evaluate.compare import bootstrap_interval
from foveate.pipeline.evaluate.configurations import Configuration
from foveate.pipeline.evaluate.corpora import Built, caption_id, indexed, safe
from foveate.pipeline.evaluate.journal import Journal
from foveate.pipeline.evaluate.searching import PICTURES, TEXTS, Plan, Ran, ask_all
from foveate.pipeline.evaluate.sets import (
    Dataset,
    Pictures,
    Questions,
    Retrieval,
    own_golds,
    pool,
)
from foveate.pipeline.evaluate.timing import hardware, versions

FORM = 1  # of the saved results; another number is measured anew
KEPT = 20  # documents of each run that a result keeps


def evaluate(
    datasets: Sequence[Dataset], configurations: Sequence[Configuration], plan: Plan
) -> list[dict[str, Any]]:
    """Return a result for each task, data set and configuration; finished ones come from disk."""
    results: list[dict[str, Any]] = []
    total = len(datasets) * len(configurations)
    for i, dataset in enumerate(datasets):
        for j, configuration in enumerate(configurations):
            step = f"[{i * len(configurations) + j + 1}/{total}] {dataset.name}, "
            place = result_file(dataset, configuration, plan)
            if place.is_file() and not plan.fresh:
                plan.announce(f"{step}{configuration.name}: kept from before")
                kept = json.loads(place.read_text())
                results.extend(kept)
                tell_if_none(kept, dataset, plan)
                continue
            plan.announce(f"{step}{configuration.name}")
            started, cpu = time.perf_counter(), time.process_time()
            rans = run_one(dataset, configuration, plan, place)
            spent = {
                "total_s": time.perf_counter() - started,
                "cpu_s": time.process_time() - cpu,
            }
            found = [summarise(ran, dataset, configuration, spent) for ran in rans]
            place.parent.mkdir(parents=True, exist_ok=True)
            aside = place.with_suffix(".part")
            aside.write_text(json.dumps(found))
            aside.replace(place)
            results.extend(found)
            tell_if_none(found, dataset, plan)
    return results


def tell_if_none(found: Sequence[Mapping[str, Any]], dataset: Dataset, plan: Plan) -> None:
    """Say that a run and a data set do not go together, where it has no result."""
    if not found:
        plan.announce(f"  left out: it does not apply to {dataset.name} ({dataset.kind})")


def result_file(dataset: Dataset, configuration: Configuration, plan: Plan) -> Path:
    """Return where a result is kept; its name changes with all that could change the result."""
    parts: list[Any] = [FORM, __version__, dataset.digest, configuration.in_force(), plan.k]
    if isinstance(dataset, Questions):
        parts.append(plan.n_answers)
    if plan.encoders is not None:
        parts.append(sorted((role, e.tower) for role, e in plan.encoders.items()))
    text = json.dumps(parts, sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = f"{safe(dataset.name)}-{safe(configuration.name)}-{key}.json"
    return plan.cache / "results" / name


def run_one(dataset: Dataset, configuration: Configuration, plan: Plan, place: Path) -> list[Ran]:
    """Measure one data set under one configuration; none where they do not go together.

    place: of the result; what is done of it stands beside it meanwhile.
    """
    if configuration.baseline:
        return run_baseline(dataset, configuration, plan)
    if isinstance(dataset, Pictures) and configuration.mode != "hybrid":
        return []  # pictures are found by their vectors alone, whatever the mode
    if not isinstance(dataset, Questions) and configuration.documents != "own":
        return []
    pooled = pool(dataset) if isinstance(dataset, Questions) else None
    corpus = pooled if pooled is not None and configuration.documents == "pooled" else dataset
    with indexed(
        corpus, configuration, plan.cache, tell=plan.tell, encoders=plan.encoders
    ) as built:
        if isinstance(dataset, Retrieval):
            return [run_retrieval(built, dataset, configuration, plan, place)]
        if isinstance(dataset, Pictures):
            return run_pictures(built, dataset, configuration, plan)
        if isinstance(corpus, Retrieval):
            scopes = asking.pooled_scopes(dataset, corpus)
        else:
            scopes = asking.own_scopes(dataset)
        return [asking.run_questions(built, dataset, scopes, configuration, plan, place)]


def run_baseline(dataset: Dataset, configuration: Configuration, plan: Plan) -> list[Ran]:
    """Measure BM25, which ranks texts only."""
    started = time.perf_counter()
    pooled = configuration.documents == "pooled"
    if isinstance(dataset, Retrieval) and not pooled:
        run = baselines.bm25_run(dataset, plan.k)
        found = metrics.ranking(dataset.qrels, run)
        times = {"baseline_s": time.perf_counter() - started}
        return [
            Ran(
                "retrieval",
                found,
                run,
                dataset.queries,
                times,
                list(dataset.notes),
                dataset.buckets,
            )
        ]
    if isinstance(dataset, Questions):
        if pooled:
            corpus = pool(dataset)
            orders = baselines.bm25_run(corpus, plan.k)
            golds = {q: set(judged) for q, judged in corpus.qrels.items()}
        else:
            orders, golds = baselines.bm25_orders(dataset), own_golds(dataset)
        found = asking.gold_measures(golds, orders)
        times = {"baseline_s": time.perf_counter() - started}
        queries = {q.id: q.text for q in dataset.questions}
        return [Ran("questions", found, orders, queries, times, list(dataset.notes))]
    return []


def run_retrieval(
    built: Built, dataset: Retrieval, configuration: Configuration, plan: Plan, place: Path
) -> Ran:
    """Ask every query; a document is found when a passage of it is."""
    run, times = ask_all(
        built,
        plan,
        {q: {"text": text} for q, text in dataset.queries.items()},
        lambda hit: str(hit.passage.metadata.get("_id", "")),
        journal=Journal(place.with_suffix(".search.jsonl"), fresh=plan.fresh),
        mode=configuration.mode,
        modality=TEXTS,
    )
    found = metrics.ranking(dataset.qrels, run)
    return Ran(
        "retrieval", found, run, dataset.queries, times, list(dataset.notes), dataset.buckets
    )


def run_pictures(
    built: Built, dataset: Pictures, configuration: Configuration, plan: Plan
) -> list[Ran]:
    """Ask for pictures by their captions, and for captions by their pictures."""
    captions = {
        caption_id(name, i): caption
        for name, some in dataset.captions.items()
        for i, caption in enumerate(some)
    }
    run, times = ask_all(
        built,
        plan,
        {key: {"text": text} for key, text in captions.items()},
        lambda hit: hit.passage.source.name,
        mode="dense",
        modality=PICTURES,
    )
    qrels = {key: {key.rpartition("#")[0]: 1} for key in captions}
    notes = list(dataset.notes)
    to_images = Ran("text to image", metrics.ranking(qrels, run), run, captions, times, notes)
    run, times = ask_all(
        built,
        plan,
        {name: {"image": path} for name, path in dataset.images.items()},
        lambda hit: str(hit.passage.metadata.get("_id", "")),
        mode="dense",
        modality=TEXTS,
    )
    qrels = {
        name: {caption_id(name, i): 1 for i in range(len(some))}
        for name, some in dataset.captions.items()
    }
    names = {name: name for name in dataset.images}
    to_text = Ran("image to text", metrics.ranking(qrels, run), run, names, times, notes)
    return [to_images, to_text]


def summarise(
    ran: Ran, dataset: Dataset, configuration: Configuration, spent: Mapping[str, float]
) -> dict[str, Any]:
    """Make the record that is saved, printed and drawn."""
    name = dataset.name if ran.task in ("retrieval", "questions") else f"{dataset.name} {ran.task}"
    intervals = {
        measure: bootstrap_interval(list(values.values()), n_draws=2000)
        for measure, values in ran.per_query.items()
    }
    return {
        "form": FORM,
        "dataset": name,
        "task": ran.task,
        "configuration": configuration.name,
        "settings": configuration.in_force(),
        "n_queries": len(ran.queries),
        "measures": metrics.means(ran.per_query),
        "intervals": intervals,
        "per_query": {
            m: {q: round(v, 6) for q, v in values.items()} for m, values in ran.per_query.items()
        },
        "queries": dict(ran.queries),
        "buckets": dict(ran.buckets),
        "run": {q: list(docs)[:KEPT] for q, docs in ran.run.items()},
        "times": {**ran.times, **spent},
        "notes": ran.notes,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(),
    }
