"""A data set as files that the engine indexes, in a cache that a second run finds again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.evaluate import configurations
from foveate.pipeline.evaluate.clocks import Stages, Tell
from foveate.pipeline.evaluate.remembered import Remembered
from foveate.pipeline.evaluate.sets import Dataset, Pictures, Questions, Retrieval, own_name
from foveate.pipeline.evaluate.timing import resident_bytes

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.protocols import Encoder

CACHE_VARIABLE = "FOVEATE_EVAL_CACHE"


@dataclass(frozen=True, slots=True)
class Built:
    """An index of a data set, and what it cost when it was built."""

    engine: Engine
    cost: dict[str, Any]
    resumed: bool


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return where indexes and results are kept: given, FOVEATE_EVAL_CACHE, or the user's cache.

    Raises:
        ConfigError: for what is a file, or below one.
    """
    named = given or os.environ.get(CACHE_VARIABLE)
    if named:
        place = Path(named).expanduser().resolve()
        there = next(p for p in (place, *place.parents) if p.exists())
        if not there.is_dir():
            raise ConfigError(
                f"cannot keep indexes and results in {os.fspath(named)!r}: {str(there)!r} is a "
                f"file; name a folder by --cache or {CACHE_VARIABLE}"
            )
        return place
    import platformdirs

    return Path(platformdirs.user_cache_dir("foveate")) / "eval"


@contextmanager
def indexed(
    dataset: Dataset,
    configuration: configurations.Configuration,
    cache: Path,
    *,
    tell: Tell | None = None,
    encoders: Mapping[str, Encoder] | None = None,
) -> Iterator[Built]:
    """Open the index of a data set, built first where it is missing or unfinished.

    encoders: objects in the place of the configured ones, by role.
    """
    import foveate
    from foveate.pipeline.opening import make_encoders

    config = configuration.config()
    if isinstance(dataset, Pictures):
        # captions are judged, not the words in a photo
        config = config.override({"ingest.ocr": "never"}, "evaluation")
    made: dict[str, Any] = dict(encoders) if encoders is not None else make_encoders(config)
    if encoders is None:
        # only what the settings describe: another object may share a tower's name
        made = {role: Remembered(e, cache / "vectors") for role, e in made.items()}
    key = configurations.build_key(config, [e.tower for e in made.values()])
    content = corpus_digest(dataset)
    folder = cache / "corpora" / f"{safe(dataset.name)}-{content}"
    paths = write_corpus(dataset, folder)
    place = cache / "indexes" / f"{safe(dataset.name)}-{content}-{key}.fov"
    cost_file = place.with_suffix(".cost.json")
    place.parent.mkdir(parents=True, exist_ok=True)
    with foveate.open(place, create=True, config=config, encoders=made) as engine:
        stages, before = Stages(tell), resident_bytes()
        started = time.perf_counter()
        report = engine.add(*paths, progress=stages)
        resumed = report.n_passages == 0 and cost_file.is_file()
        if not resumed:
            cost = {
                "seconds": time.perf_counter() - started,
                "stages": dict(stages.seconds),
                "n_passages": report.n_passages,
                "n_encoded": report.n_encoded,
                "n_remembered": sum(getattr(e, "n_found", 0) for e in made.values()),
                "memory_before": before,
                "memory_after": resident_bytes(),
                "problems": [f"{r.path}: {r.notes}" for r in report.problems[:5]],
            }
            cost_file.write_text(json.dumps(cost))
        cost = json.loads(cost_file.read_text())
        cost["bytes_on_disk"] = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
        yield Built(engine, cost, resumed)


def corpus_digest(dataset: Dataset) -> str:
    """Return a hash of what is indexed, whatever is asked of it."""
    if isinstance(dataset, Retrieval):
        return Retrieval("", dataset.corpus, {}, {}).digest
    return dataset.digest


def write_corpus(dataset: Dataset, folder: Path) -> list[Path]:
    """Write what the engine is to index, unless it is there; return the paths to add."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(dataset, Retrieval):
        rows = ({"_id": r.id, "title": r.title, "text": r.text} for r in dataset.corpus)
        return [write_rows(folder / "corpus.jsonl", rows)]
    if isinstance(dataset, Questions):
        return [write_rows(folder / "docs.jsonl", question_rows(dataset))]
    captions = (
        {"_id": caption_id(name, i), "text": caption}
        for name, some in dataset.captions.items()
        for i, caption in enumerate(some)
    )
    return [write_rows(folder / "captions.jsonl", captions), *dataset.images.values()]


def question_rows(dataset: Questions) -> Iterator[dict[str, str]]:
    """Yield each question's documents, marked with the question so that a filter can tell them."""
    for i, question in enumerate(dataset.questions):
        for j, doc in enumerate(question.docs):
            yield {
                "_id": own_name(i, j),
                "eval_question": f"q{i}",
                "eval_gold": "yes" if doc.is_gold else "no",
                "title": doc.title,
                "text": doc.text,
            }


def caption_id(image: str, number: int) -> str:
    return f"{image}#{number}"


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON lines through a file aside, so that a stop leaves no half of it."""
    if not path.exists():
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        with aside.open("w", encoding="utf-8") as handle:
            handle.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        aside.replace(path)
    return path


def safe(name: str) -> str:
    """Turn a data set's or a configuration's name into a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
