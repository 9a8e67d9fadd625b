"""Give an index another text encoder: only what its tower changes is encoded again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.pipeline import config as configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foveate.pipeline.config import Config
    from foveate.pipeline.protocols import Progress
    from foveate.pipeline.types import Floats, Passage


def options_of(encoder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings by which a trained folder becomes the text encoder."""
    place = os.path.abspath(os.path.expanduser(os.fspath(encoder)))
    return {"encoders.text.use": "minilm", "encoders.text.path": place}


def reencode(
    path: str | os.PathLike[str],
    encoder: str | os.PathLike[str],
    *,
    config: Config | None = None,
    timeout_s: float = 0.0,
    progress: Progress | None = None,
) -> int:
    """Make a trained folder the text encoder of an index that is there.

    Passages, words, pictures and ids stay. A folder that only changes queries
    (`foveate train --queries-only`, `--fit bridge`) leaves the vectors too.

    Returns:
        How many passages were encoded again.

    Raises:
        IndexNotFound: if there is no index. ModelError: if the folder holds no encoder.
    """
    import foveate
    from foveate.index.retower import replace_tower
    from foveate.pipeline.opening import make_encoders, towers

    place = Path(path)
    settings = config if config is not None else configuration.load()
    with foveate.open(place, config=settings) as engine:
        kept = {k: v for k, v in engine.index.settings.items() if not k.startswith("encoders.text")}
        chosen = options_of(encoder)
        made = make_encoders(settings.override(chosen, "option"))["text"]
        new = towers({"text": made})["text"]
        total, done = engine.index.count(), 0

        def encode(passages: Sequence[Passage]) -> Floats:
            nonlocal done
            texts = [f"{p.context}\n{p.text}" if p.context else p.text for p in passages]
            vectors = made.encode(texts)
            done += len(texts)
            if progress is not None:
                progress("encode", done, total)
            return vectors

        return replace_tower(engine.index, new, encode, {**kept, **chosen}, timeout_s=timeout_s)
