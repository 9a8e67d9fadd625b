"""Which attention heads of a reader look at what answers: found on labelled questions, and saved.

QRHead (arXiv 2506.09944) takes the heads whose scores rank the right passages first, CoRe
(arXiv 2510.02219) those that tell them from the wrong ones by the widest margin.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Passage

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats
    from foveate.rerank.probe import Reader

WEIGHTS = Path(__file__).parent / "weights"
CRITERIA = ("rank", "mass", "contrast")
TEMPERATURE = 0.002  # of the contrast; a head's scores are shares of one row of attention


@dataclass(frozen=True, slots=True)
class Labelled:
    """A question, its candidate passages, and which of them answer it."""

    question: str
    passages: tuple[Passage | str, ...]
    gold: tuple[bool, ...]


def find_heads(
    wanted: str | os.PathLike[str] | Iterable[Sequence[int]] | None, reader: Reader
) -> list[tuple[int, int]] | None:
    """Return (layer, head) pairs, None for all.

    wanted: pairs, a file, 'all', or None: the user's own list for this reader, else the one that
    ships, else all.

    Raises:
        ConfigError: for a file that is no list of heads or is another reader's.
    """
    if wanted == "all":
        return None
    if wanted is None:
        known = [p for p in (saved_place(reader.name), shipped_place(reader.name)) if p.is_file()]
        return read_heads(known[0], reader) if known else None
    if isinstance(wanted, str | os.PathLike):
        return read_heads(Path(wanted).expanduser(), reader)
    return [(int(pair[0]), int(pair[1])) for pair in wanted]


def read_heads(path: Path, reader: Reader) -> list[tuple[int, int]]:
    """Read a file that `save_heads` wrote.

    Raises:
        ConfigError: if it cannot be read or is another reader's.
    """
    from foveate.rerank.probe import shape

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(int(layer), int(head)) for layer, head in found["heads"]]
        size = [int(n) for n in found["shape"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read heads from {str(path)!r}: {error}") from error
    if size != list(shape(reader.model)):
        raise ConfigError(
            f"{str(path)!r} lists heads of {found.get('reader')!r}, which is of another shape than "
            f"{reader.name!r}: find this reader's with `foveate heads`"
        )
    return pairs


def save_heads(
    path: Path, reader: Reader, pairs: Sequence[tuple[int, int]], facts: Mapping[str, Any]
) -> None:
    """Write a list of heads and how it was found."""
    from foveate.rerank.probe import shape

    found = {
        "reader": Path(reader.name).name,
        "shape": list(shape(reader.model)),
        "heads": [list(pair) for pair in pairs],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **facts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(aside, path)


def saved_place(reader: str) -> Path:
    """Return where `foveate heads` keeps a reader's list by default."""
    import platformdirs

    return Path(platformdirs.user_data_dir("foveate")) / "heads" / f"{_safe(reader)}.json"


def shipped_place(reader: str) -> Path:
    return WEIGHTS / f"heads-{_safe(reader)}.json"


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in Path(name).name)


def observe(
    reader: Reader,
    questions: Sequence[Labelled],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[Floats]:
    """Return each question's (n, h) float32: what every head of the reader gives each passage."""
    from foveate.rerank.attention import AttentionScan

    scan = AttentionScan(reader, heads="all", **options)
    found = []
    for number, asked in enumerate(questions):
        found.append(scan.look(asked.question, asked.passages).head_scores)
        if progress is not None:
            progress(number + 1)
    return found


def rate(scores: Sequence[Floats], gold: Sequence[Sequence[bool]], criterion: str) -> Floats:
    """Rate heads on labelled questions: (h,) float32, higher is better.

    scores: (n, h) each. criterion: 'rank' is the mean nDCG@10 of the order that a head gives,
    'mass' its mean score on right passages (both QRHead), 'contrast' CoRe's softmax of a right
    passage against all wrong ones.

    Raises:
        ConfigError: for another criterion, or questions without right and wrong passages.
    """
    if criterion not in CRITERIA:
        raise ConfigError(f"unknown criterion {criterion!r} (known: {', '.join(CRITERIA)})")
    rated = []
    for some, right in zip(scores, gold, strict=True):
        told = np.array(right, dtype=bool)
        if told.any() and not told.all():
            rated.append(_rate_one(some, told, criterion))
    if not rated:
        raise ConfigError("no question has both passages that answer it and some that do not")
    found: Floats = np.stack(rated).astype(np.float64).mean(0).astype(np.float32)
    return found


def _rate_one(scores: Floats, gold: Any, criterion: str) -> Floats:
    if criterion == "mass":
        found: Floats = scores[gold].sum(0)
        return found
    if criterion == "contrast":
        wrong = np.exp((scores[~gold] - scores.max(0)) / TEMPERATURE).sum(0)
        right = np.exp((scores[gold] - scores.max(0)) / TEMPERATURE)
        contrast: Floats = (right / np.maximum(right + wrong, 1e-30)).mean(0)
        return contrast
    discounts = 1 / np.log2(np.arange(2, 12))
    # among equals the earlier passage goes first
    order = np.argsort(-scores, axis=0, kind="stable")[:10]
    gains = gold[order] * discounts[: len(order), None]
    best = discounts[: int(gold.sum())].sum()
    ranked: Floats = gains.sum(0) / best
    return ranked


def choose_best(
    ratings: Floats, shape: tuple[int, int, int], n: int, *, layers: int | None = None
) -> list[tuple[int, int]]:
    """Return the n best heads of the first `layers` as (layer, head), best first.

    Layers behind the last chosen head never run (CoRe).
    """
    order = np.argsort(-ratings[: (layers or shape[0]) * shape[1]], kind="stable")[:n]
    return [(int(i) // shape[1], int(i) % shape[1]) for i in order]
