"""Diagnose a corpus and a model: every probe, each green, amber, red, or grey with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from foveate.pipeline.errors import FoveateError
from foveate.pipeline.evaluate import contrast, datasets, geometry, judgments, position, stereotypes
from foveate.pipeline.evaluate.configurations import Configuration
from foveate.pipeline.evaluate.corpora import indexed
from foveate.pipeline.evaluate.diagnosis import Diagnosis, at_most, unmeasured
from foveate.pipeline.evaluate.metrics import ranking
from foveate.pipeline.evaluate.run import result_file
from foveate.pipeline.evaluate.searching import TEXTS, Plan, ask_all
from foveate.pipeline.evaluate.sets import Dataset, Retrieval, sample_queries
from foveate.pipeline.evaluate.view import View, look

PROBES: dict[str, Callable[[View], Diagnosis]] = {
    "judgments": judgments.judgments_fit,
    "vectors present": geometry.missing_vectors,
    "ANN recall": geometry.recall_of_index,
    "position in a passage": lambda view: position.position_in_passage(
        view.engine.encoders["text"], [p.text for p in view.passages]
    ),
    "contrast consistency": lambda view: contrast.contrast_consistency(
        view.engine.encoders["text"], sentences_of(view)
    ),
    "alignment": geometry.alignment_of_judged,
    "uniformity": geometry.uniformity_of_passages,
    "hubness": geometry.hubness_of_passages,
    "near-duplicates": geometry.near_duplicates,
    "unreached documents": geometry.unreached,
    "stereotypes": lambda view: stereotypes.stereotype_probe(view.engine.encoders["text"]),
}
ROTATIONS = (0, 2, 4)
GAP_RULE = "mean loss of nDCG@10 against English: green up to 0.10, red above 0.30"


def diagnose_once(
    dataset: Dataset, configuration: Configuration, plan: Plan
) -> list[dict[str, Any]]:
    """Return what an earlier run found, or diagnose and keep it."""
    place = result_file(dataset, configuration, plan)
    place = place.with_name(f"{place.stem}.diagnosis.json")
    if place.is_file() and not plan.fresh:
        plan.announce(f"  {dataset.name}: diagnosis kept from before")
        kept: list[dict[str, Any]] = json.loads(place.read_text())
        return kept
    found = diagnose(dataset, configuration, plan)
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_suffix(".part")
    aside.write_text(json.dumps(found))
    aside.replace(place)
    return found


def diagnose(
    dataset: Dataset, configuration: Configuration, plan: Plan, *, n_queries: int = 150
) -> list[dict[str, Any]]:
    """Run every probe that fits a data set under a configuration.

    n_queries: asked by the probes that search; the others take what they need.
    """
    if not isinstance(dataset, Retrieval) or configuration.baseline:
        return []
    found: list[Diagnosis] = []
    with indexed(
        dataset, configuration, plan.cache, tell=plan.tell, encoders=plan.encoders
    ) as built:
        found.extend(probe_all(look(built.engine, dataset), plan.announce))
    if dataset.buckets and dataset.folder is not None:
        plan.announce(f"  {dataset.name}: position in a document")
        found.append(by_position(dataset, configuration, plan, n_queries))
    if dataset.folder is not None and len(datasets.languages(dataset.folder)) > 1:
        found.append(language_gap(dataset, configuration, plan, min(n_queries, 60)))
    extra = {"dataset": dataset.name, "configuration": configuration.name}
    return [{**extra, **made.as_dict()} for made in found]


def probe_all(view: View, announce: Callable[[str], None]) -> Iterator[Diagnosis]:
    """Yield what each probe of an index finds; one that can't be measured says why."""
    for name, probe in PROBES.items():
        announce(f"  {view.dataset.name}: {name}")
        try:
            yield probe(view)
        except FoveateError as error:
            yield unmeasured(name, str(error), "")


def sentences_of(view: View, n: int = 600) -> list[str]:
    """Return sentences of the passages, at most four of each, of ordinary length."""
    found: list[str] = []
    for passage in view.passages:
        found.extend(position.pieces(passage.text)[:4])
        if len(found) >= n:
            break
    return list(dict.fromkeys(found))


def by_position(
    dataset: Retrieval, configuration: Configuration, plan: Plan, n_queries: int
) -> Diagnosis:
    """Search for evidence at each place of a document; documents of segments are rotated."""
    turned = [dataset]
    if dataset.folder is not None and (dataset.folder / "segments.jsonl").is_file():
        turned = [datasets.load_segments(dataset.folder, r) for r in ROTATIONS]
    by_place: dict[str, list[float]] = {}
    for one in turned:
        for query, value in measured(one, configuration, plan, n_queries).items():
            by_place.setdefault(one.buckets.get(query, "?"), []).append(value)
    named = ("start", "middle", "end")
    order = sorted(by_place, key=lambda p: (named.index(p) if p in named else 0, p))
    return position.position_in_document({place: by_place[place] for place in order})


def language_gap(
    dataset: Retrieval, configuration: Configuration, plan: Plan, n_queries: int
) -> Diagnosis:
    """Compare asking and searching in other languages with doing both in English."""
    name = "language gap"
    folder = dataset.folder
    if folder is None:
        return unmeasured(name, "the data set was not loaded from a folder", GAP_RULE)
    own: dict[str, float] = {}
    crossed: dict[str, float] = {}
    for language in datasets.languages(folder):
        plan.announce(f"  {dataset.name}: language gap, {language}")
        one = datasets.load_beir(folder, language=language)
        own[language] = mean(measured(one, configuration, plan, n_queries))
        if language != "en":
            one = datasets.load_beir(folder, language="en", query_language=language)
            crossed[language] = mean(measured(one, configuration, plan, n_queries))
    if not own.get("en"):
        return unmeasured(name, "there is no English corpus to compare with", GAP_RULE)
    losses = [1 - value / own["en"] for value in crossed.values()]
    value = sum(losses) / len(losses)
    worst = min(crossed, key=lambda code: crossed[code])
    says = (
        f"asking the English corpus in another language loses {value:.0%} on average, "
        f"{worst} most ({crossed[worst]:.3f} against {own['en']:.3f}); within a language "
        f"{mean(dict(own)):.3f} on average"
    )
    series = {"own language": list(own.items()), "asked of English": list(crossed.items())}
    return Diagnosis(name, at_most(value, 0.10, 0.30), value, says, GAP_RULE, series)


def measured(
    dataset: Retrieval, configuration: Configuration, plan: Plan, n_queries: int
) -> dict[str, float]:
    """Return {query: nDCG@10} of a sample of the queries."""
    part = sample_queries(dataset, n_queries)
    with indexed(part, configuration, plan.cache, tell=plan.tell, encoders=plan.encoders) as built:
        run, _ = ask_all(
            built,
            plan,
            {q: {"text": text} for q, text in part.queries.items()},
            lambda hit: str(hit.passage.metadata.get("_id", "")),
            mode=configuration.mode,
            modality=TEXTS,
        )
    return ranking(part.qrels, run, ("nDCG@10",))["nDCG@10"]


def mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values) if values else 0.0
