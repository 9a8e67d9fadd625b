"""`foveate train`, top to bottom: read pairs, mine negatives, fit, choose weights, write a folder.

read -> (synthesize) -> hold out -> mine -> fit -> choose -> save
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import config as configuration
from foveate.pipeline.errors import ConfigError, FoveateError
from foveate.pipeline.terminal import number as counted

if TYPE_CHECKING:
    from foveate.encoders.train.data import Example, Relevance, TrainingSet
    from foveate.encoders.train.trainable import Trainable
    from foveate.encoders.train.trainer import Outcome
    from foveate.pipeline.config import Config
    from foveate.pipeline.types import Floats

    Tell = Callable[[str, int, int | None], None]

WORK = ".training"


@dataclasses.dataclass(frozen=True, slots=True)
class TowerOptions:
    """What is fitted, the table [train.tower]; as `encoders.train.text_tower.TextTower` says."""

    fit: str = "layers"
    sides: str = "both"
    rank: int = 16
    n_prompts: int = 10
    bridge: str = "slr"
    dropout: float = 0.1
    window_tokens: int | None = None
    query_prompt: str = ""
    passage_prompt: str = ""
    device: str = "auto"
    dtype: str = "auto"


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """Examples ready to train on. vectors: (n, d) of the corpus by the untrained tower."""

    kept: list[Example]
    held: list[Example]
    known: Relevance
    corpus: Sequence[Any]
    vectors: Floats | None
    n_filtered: int = 0

    @property
    def stored(self) -> dict[str, Any]:
        """{key of a document: its untrained vector}, as the trainer takes it."""
        import torch

        from foveate.encoders.train.data import key_of

        if self.vectors is None:
            return {}
        rows = torch.from_numpy(self.vectors)
        return {key_of(text): row for text, row in zip(self.corpus, rows, strict=True)}


def train(
    data: str | os.PathLike[str] | TrainingSet,
    out: str | os.PathLike[str],
    *,
    encoder: str | os.PathLike[str] | None = None,
    index: str | os.PathLike[str] | None = None,
    which: str = "train",
    synthesize: int = 0,
    edits: bool = False,
    config: Config | None = None,
    resume: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Train an encoder and write it as a folder; return its card.

    data: a file or folder that `encoders.train.data.read` takes, or a set. Pictures with captions
    train the image tower: a head of 'efficientnet-lite', or both towers of 'open-clip'; all else
    a text tower. encoder: a model folder to start from; None takes [encoders.text] of the
    configuration, [encoders.image] for pictures. index: where negatives are mined; None takes
    the data's own corpus. which: the split of a BEIR folder. synthesize: how many texts the reader
    writes a paraphrase and a contradiction of; data are then texts. edits: make an edited twin of
    each query that means something else, for the query-side loss. config: [train],
    [train.tower], [train.mining]. resume: go on from the folder's checkpoint.

    Raises:
        FoveateError: if the folder holds a trained encoder, nothing can be read, or there is
            nothing to resume.
    """
    from foveate.encoders.train import checkpoints
    from foveate.encoders.train import data as sets

    settings = config if config is not None else configuration.load()
    place, say = Path(out).expanduser(), tell or (lambda stage, done, total: None)
    if (place / "training.json").is_file():
        raise FoveateError(f"{str(place)!r} holds a trained encoder already: name a new folder")
    if resume and not checkpoints.is_there(place / WORK):
        raise FoveateError(f"{str(place)!r} holds no run to resume: start it without --resume")
    found = data if isinstance(data, sets.TrainingSet) else sets.read(Path(data), which=which)
    if any(isinstance(example.positive, Path) for example in found.examples):
        from foveate.pipeline.picture_training import train_pictures

        return train_pictures(found, place, settings, encoder, resume=resume, say=say)
    if synthesize:
        found = synthetic(found, synthesize, settings, say)
    if edits:
        found = with_edits(found)
    return _train_texts(found, place, settings, encoder, index, resume=resume, say=say)


def _train_texts(
    found: TrainingSet,
    place: Path,
    settings: Config,
    encoder: str | os.PathLike[str] | None,
    index: str | os.PathLike[str] | None,
    *,
    resume: bool,
    say: Tell,
) -> dict[str, Any]:
    from foveate.encoders.minilm import NAME
    from foveate.encoders.train.judge import Judge
    from foveate.encoders.train.options import TrainOptions
    from foveate.encoders.train.text_tower import TextTower
    from foveate.encoders.train.trainer import Trainer

    options = configuration.make(TrainOptions, settings.table("train"), "train")
    shape = configuration.make(TowerOptions, settings.table("train.tower"), "train.tower")
    start = _start(settings, encoder)
    tower = TextTower(start, seed=options.seed, **dataclasses.asdict(shape))
    ready = prepare(found, start, index, settings, place / WORK, say)
    if shape.fit == "head" and ready.vectors is not None:
        tower.remember(list(ready.corpus), ready.vectors, "passage")
    # vectors that only a head changes are cheap: the whole corpus is ranked
    size = len(ready.corpus) if shape.fit == "head" else 1000
    # nothing is known to be relevant in texts without pairs, so nothing can be judged
    judge = None
    if ready.held and not found.is_unlabelled:
        judge = Judge(ready.held, ready.known, ready.corpus, stored=ready.stored, size=size)
    trainer = Trainer(
        tower,
        ready.kept,
        options,
        place / WORK,
        known=ready.known,
        judge=judge,
        stored=ready.stored if tower.frozen_roles else None,
        tell=say,
    )
    outcome = trainer.run(resume=resume)
    base = os.path.basename(os.path.abspath(start)) if start else NAME
    facts = card(found, outcome, tower.fingerprint(), base=base)
    facts["false_negatives_left_out"] = ready.n_filtered
    facts["options"] = changed(options, shape)
    return finish(tower, outcome, facts, place)


def finish(
    tower: Trainable, outcome: Outcome, facts: dict[str, Any], place: Path
) -> dict[str, Any]:
    """Write what a run that came to its end has trained, and remove its checkpoint."""
    from foveate.encoders.train import checkpoints

    if outcome.finished:
        tower.save(place, facts)
        checkpoints.clear(place / WORK)
        (place / WORK / "prepared.json").unlink(missing_ok=True)
        (place / WORK).rmdir()
    return facts | {"finished": outcome.finished, "folder": str(place)}


def _start(settings: Config, encoder: str | os.PathLike[str] | None) -> str | None:
    """Return the folder that training starts from; None is the package's model."""
    if encoder is not None:
        return os.fspath(encoder)
    use = settings.get("encoders.text.use")
    path = settings.get("encoders.text.path") or settings.get("encoders.text.model")
    if use not in ("minilm", "late-minilm") and not (path and os.path.isdir(str(path))):
        raise ConfigError(
            f"cannot train the encoder {use!r}: name a BERT-type model folder with --encoder"
        )
    return str(path) if path else None


def prepare(
    found: TrainingSet,
    start: str | None,
    index: str | os.PathLike[str] | None,
    settings: Config,
    work: Path,
    say: Tell,
) -> Prepared:
    """Hold out queries and mine negatives; kept in `work`, so that a resumed run does not again."""
    from foveate.encoders.minilm import MiniLM
    from foveate.encoders.train.data import Relevance, split
    from foveate.encoders.train.mining import Mining, mine
    from foveate.encoders.train.options import TrainOptions

    options = configuration.make(TrainOptions, settings.table("train"), "train")
    mining = configuration.make(Mining, settings.table("train.mining"), "train.mining")
    known = Relevance.of(found.examples)
    if found.is_unlabelled or not mining.n:
        kept, held = split(found.examples, options.held_out, seed=options.seed)
        return Prepared(kept, held, known, found.corpus, None)
    base = MiniLM(start, dtype=str(settings.get("train.tower.dtype", "auto")))
    corpus, vectors = documents(found, base, index, say)
    mined = _kept_from(work, found, mining)
    if mined is None:
        result = mine(
            found.examples,
            corpus,
            vectors,
            base.encode_queries,
            mining,
            relevance=known,
            seed=options.seed,
        )
        mined = (result.examples, result.n_filtered)
        _keep(work, found, mining, *mined)
    kept, held = split(mined[0], options.held_out, seed=options.seed)
    return Prepared(kept, held, known, corpus, vectors, mined[1])


def documents(
    found: TrainingSet, base: Any, index: str | os.PathLike[str] | None, say: Tell
) -> tuple[list[str], Floats]:
    """Return what negatives are mined from, and its vectors by the untrained encoder.

    Vectors that an index holds of the same tower are taken from it. Positives that the corpus
    lacks are added to it.
    """
    import numpy as np

    texts: list[str] = list(found.corpus)
    vectors: Floats | None = None
    if index is not None:
        texts, vectors = _indexed(index, base)
    there = set(texts)
    positives = [e.positive for e in found.examples if e.positive not in there]
    extra = list(dict.fromkeys(positives))
    if vectors is None:
        texts, extra = texts + extra, []
        vectors = base.encode(texts, progress=lambda n: say("encode", n, len(texts)))
    if extra:
        vectors = np.concatenate([vectors, base.encode(extra)])
    return texts + extra, vectors


def _indexed(index: str | os.PathLike[str], base: Any) -> tuple[list[str], Floats | None]:
    """Return an index's texts as they are encoded, and their vectors where the tower agrees."""
    import numpy as np

    import foveate
    from foveate.pipeline.evaluate.view import TEXTS, all_passages

    with foveate.open(index) as engine:
        passages = [p for p in all_passages(engine) if p.modality in TEXTS]
        texts = [f"{p.context}\n{p.text}" if p.context else p.text for p in passages]
        tower = engine.index.towers.get("text")
        if tower is None or tower.tower != base.tower:
            return texts, None
        vectors = engine.index.vectors([p.id for p in passages], "text")
    present = np.isfinite(vectors).all(axis=1)
    texts = [text for text, is_there in zip(texts, present.tolist(), strict=True) if is_there]
    return texts, np.ascontiguousarray(vectors[present])


def synthetic(found: TrainingSet, n: int, settings: Config, say: Tell) -> TrainingSet:
    """Have the reader write pairs from texts; they are marked as synthetic."""
    from foveate.encoders.train.data import TrainingSet
    from foveate.pipeline.synthesis import write_pairs

    texts = [str(t) for t in found.corpus] or [str(e.query) for e in found.examples]
    examples = write_pairs(texts, n, settings, say)
    if not examples:
        read = counted(min(n, len(texts)), "text")
        raise FoveateError(f"the reader wrote no usable pair from {read}")
    return TrainingSet(tuple(examples), tuple(texts), f"{found.origin}, synthetic")


def with_edits(found: TrainingSet) -> TrainingSet:
    """Give each query that has none an edited twin: negated, renumbered or renamed."""
    from foveate.pipeline.evaluate.contrast import edits

    queries = [str(example.query) for example in found.examples]
    ways = list(edits(queries).values())
    made = []
    for number, example in enumerate(found.examples):
        order = ways[number % len(ways) :] + ways[: number % len(ways)]
        tried = (edit(str(example.query)) for edit in order)
        twin = next((text for text in tried if text and text != example.query), None)
        made.append(dataclasses.replace(example, edited=example.edited or twin or ""))
    kept = tuple(e for e in made if e.edited)
    if not kept:
        raise FoveateError("none of the queries could be edited into one that means another thing")
    return dataclasses.replace(found, examples=kept)


def card(found: TrainingSet, outcome: Outcome, fingerprint: str, *, base: str) -> dict[str, Any]:
    """Return the facts that stand in the trained folder's card. base: what it was trained from."""
    n_synthetic = sum(example.synthetic for example in found.examples)
    facts: dict[str, Any] = {
        "base": base,
        "use": "minilm",
        "role": "text",
        "start": fingerprint,
        "trained_on": f"{found.origin}: {counted(outcome.n_trained, 'example')}"
        + (f", {n_synthetic} of all written by a model" if n_synthetic else ""),
        "data": found.digest,
        "held_out": "1 query" if outcome.n_held_out == 1 else f"{outcome.n_held_out} queries",
        "steps": outcome.n_steps,
        "scores": outcome.scores,
        "part_of_the_way": outcome.part,
        "seconds": round(outcome.seconds, 1),
    }
    if outcome.losses:
        tail = outcome.losses[-20:]
        facts["loss"] = {"first": outcome.losses[0], "last": sum(tail) / len(tail)}
    return facts


def changed(*options: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {
        f.name: getattr(some, f.name)
        for some in options
        for f in dataclasses.fields(some)
        if getattr(some, f.name) != f.default
    }


def _identity(found: TrainingSet, mining: Any) -> dict[str, Any]:
    return {"data": found.digest, "mining": dataclasses.asdict(mining)}


def _keep(
    work: Path, found: TrainingSet, mining: Any, examples: Sequence[Example], n_filtered: int
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    rows = [list(example.negatives) for example in examples]
    made = {**_identity(found, mining), "n_filtered": n_filtered, "negatives": rows}
    aside = work / f"prepared.{os.getpid()}"
    aside.write_text(json.dumps(made), "utf-8")
    aside.replace(work / "prepared.json")


def _kept_from(work: Path, found: TrainingSet, mining: Any) -> tuple[list[Example], int] | None:
    """Return what an earlier run mined from the same data in the same way."""
    place = work / "prepared.json"
    if not place.is_file():
        return None
    made = json.loads(place.read_text("utf-8"))
    if {k: made.get(k) for k in ("data", "mining")} != _identity(found, mining):
        return None
    examples = [
        dataclasses.replace(example, negatives=tuple(negatives))
        for example, negatives in zip(found.examples, made["negatives"], strict=True)
    ]
    return examples, int(made["n_filtered"])
