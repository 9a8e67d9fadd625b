"""Made-up facts that directions are learned from, once a model, and where those are kept."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

FORMAT = 1
PLACES = ("mill", "lighthouse", "bridge", "school", "museum", "harbour", "library", "station")
TOWNS = ("Norwood", "Dalby", "Karsten", "Ulverton", "Maresfield", "Hollin", "Brackley", "Ostrava")
RELATIONS = (
    ("keeper", "Who is the keeper of {thing}?", "The keeper of {thing} is {value}."),
    ("height", "How tall is {thing}?", "{Thing} is {value} metres tall."),
    ("colour", "What colour is {thing}?", "The walls of {thing} are painted {value}."),
    ("year", "When was {thing} built?", "{Thing} was built in {value}."),
    ("river", "Which river runs past {thing}?", "Past {thing} runs the river {value}."),
)
VALUES: Mapping[str, Sequence[str]] = {
    "keeper": ("Mary Ellen Carter", "Anton Reuss", "Lucia Ferro", "Tom Hale", "Ines Duarte"),
    "height": ("41", "17", "63", "28", "95"),
    "colour": ("dark green", "pale yellow", "brick red", "white", "deep blue"),
    "year": ("1887", "1932", "1604", "1751", "1978"),
    "river": ("Senn", "Aldra", "Tey", "Morava", "Kell"),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence, the question that it answers, and [start, end) of the answer in it."""

    text: str
    question: str
    answer: str
    span: tuple[int, int]


def facts(n: int, seed: int = 0) -> list[Fact]:
    """Make n facts; the same seed gives the same ones."""
    draw = random.Random(seed)
    made = []
    for _ in range(n):
        relation, question, statement = draw.choice(RELATIONS)
        thing = f"the {draw.choice(TOWNS)} {draw.choice(PLACES)}"
        value = draw.choice(VALUES[relation])
        text = statement.format(thing=thing, Thing=f"The{thing[3:]}", value=value)
        start = text.index(value)
        asked = question.format(thing=thing)
        made.append(Fact(text, asked, value, (start, start + len(value))))
    return made


def kept(
    model: PreTrainedModel, kind: str, learn: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return what was learned of a model, from the user's cache or learned now."""
    from safetensors.torch import load_file, save_file

    file = folder() / f"{kind}-{fingerprint(model)}-{FORMAT}.safetensors"
    if file.is_file():
        return dict(load_file(file))
    log.info("learning directions for decoding %r, once", kind)
    learned = {name: tensor.detach().cpu().contiguous() for name, tensor in learn().items()}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=".making-", dir=file.parent)
        os.close(handle)
        save_file(learned, aside)
        os.replace(aside, file)
    except OSError as error:
        log.warning("cannot keep directions for decoding %r: %s", kind, error)
    return learned


def folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("foveate")) / "decoding"


def fingerprint(model: PreTrainedModel) -> str:
    """Return 16 hex digits of a model's shape and of some of its weights."""
    digest = hashlib.sha256(type(model).__name__.encode())
    config: Any = model.config
    digest.update(str(sorted((k, str(v)) for k, v in shape_of(config).items())).encode())
    for tensor in list(model.parameters())[:: max(1, len(list(model.parameters())) // 16)]:
        digest.update(tensor.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def shape_of(config: Any) -> dict[str, Any]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {name: getattr(config, name, None) for name in names}
