"""`foveate train` on pictures and their captions: a head, or a CLIP-class model of two towers."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import config as configuration
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.terminal import number
from foveate.pipeline.training import WORK, card, changed, finish

if TYPE_CHECKING:
    from foveate.encoders.train.data import TrainingSet
    from foveate.pipeline.config import Config
    from foveate.pipeline.training import Tell


@dataclasses.dataclass(frozen=True, slots=True)
class ClipOptions:
    """What is fitted of a CLIP-class model, the table [train.tower].

    As `encoders.train.clip_tower.ClipTower` says.
    """

    fit: str = "layers"
    sides: str = "both"
    rank: int = 16
    augment: bool = True


def train_pictures(
    found: TrainingSet,
    place: Path,
    settings: Config,
    start: str | os.PathLike[str] | None,
    *,
    resume: bool,
    say: Tell,
) -> dict[str, Any]:
    """Train the configured image tower, or the CLIP-class model of a folder; return its card.

    start: the folder, as open_clip lays one out; None takes [encoders.image].

    Raises:
        ConfigError: if the image tower is of a kind that is not trained.
    """
    from foveate.pipeline.opening import make_encoders

    if start is not None:
        given = {"encoders.image.use": "open-clip", "encoders.image.model": os.fspath(start)}
        # 'none' first: it drops the options of the tower that is configured
        settings = settings.override({"encoders.image.use": "none"}, "option")
        settings = settings.override(given, "option")
    use = settings.get("encoders.image.use")
    if use not in ("efficientnet-lite", "open-clip"):
        raise ConfigError(
            "pictures and captions train 'efficientnet-lite' (a head) or 'open-clip', got "
            f"[encoders.image] use = {use!r}"
        )
    encoder: Any = make_encoders(settings)["image"]
    if use == "open-clip":
        return _train_clip(found, place, settings, encoder, resume=resume, say=say)
    from foveate.encoders.train.images import train_image_head

    return train_image_head(encoder, found, place, say)


def _train_clip(
    found: TrainingSet, place: Path, settings: Config, encoder: Any, *, resume: bool, say: Tell
) -> dict[str, Any]:
    from foveate.encoders.train.clip_tower import ClipTower
    from foveate.encoders.train.data import Relevance, split
    from foveate.encoders.train.judge import Judge, picture_recalls
    from foveate.encoders.train.options import TrainOptions
    from foveate.encoders.train.trainer import Trainer

    shape = configuration.make(ClipOptions, settings.table("train.tower"), "train.tower")
    table = settings.table("train")
    tower = ClipTower(encoder, seed=int(table.get("seed", 0)), **dataclasses.asdict(shape))
    # what nobody set is the model's own
    own = {"loss": "symmetric", "temperature": tower.temperature, "bias": tower.bias}
    options = configuration.make(TrainOptions, own | table, "train")
    # a picture that is trained on with one caption is no test of another
    kept, held = split(found.examples, options.held_out, seed=options.seed, by="positive")
    known = Relevance.of(found.examples)
    judge = Judge(held, known, found.corpus, size=300, micro=options.micro) if held else None
    before = picture_recalls(tower, held, micro=options.micro) if held else {}
    trainer = Trainer(tower, kept, options, place / WORK, known=known, judge=judge, tell=say)
    outcome = trainer.run(resume=resume)
    facts = card(found, outcome, tower.fingerprint(), base=tower.space.rpartition("/")[0])
    facts |= {"use": tower.use, "role": "image", "option": "model"}
    n_pictures = len({str(e.positive) for e in held})
    facts["held_out"] = f"{number(n_pictures, 'picture')}, {number(len(held), 'caption')}"
    if held:
        facts["untrained"] = before
        facts["trained"] = picture_recalls(tower, held, micro=options.micro)
    facts["options"] = changed(options, shape)
    return finish(tower, outcome, facts, place)
