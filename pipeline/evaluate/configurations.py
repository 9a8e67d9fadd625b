"""What is put side by side: a preset with settings, a TOML file, or a baseline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.evaluate.baselines import BASELINES

if TYPE_CHECKING:
    from foveate.pipeline.config import Config

MODES = ("hybrid", "dense", "words")
BUILD_TABLES = ("encoders.text", "encoders.image", "ingest", "index")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One column of a report.

    mode: which lists a search takes; a setting of the run, not of the engine. baseline: a method
    of the harness itself, which uses no engine.
    """

    name: str
    preset: str | None = None
    path: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    mode: str = "hybrid"
    baseline: str | None = None

    def config(self) -> Config:
        """Load the engine's configuration.

        Raises:
            ConfigError: for a key or value that cannot be used.
        """
        from foveate.pipeline import config

        return config.load(self.preset, self.path, self.settings)

    def in_force(self) -> dict[str, Any]:
        """Return {dotted key: value} of all that decides a result."""
        if self.baseline:
            return {"baseline": self.baseline}
        values = {setting.key: setting.value for setting in self.config()}
        return {**values, "mode": self.mode}


def gather(
    *,
    preset: str | None = None,
    sets: Sequence[str] = (),
    files: Sequence[str] = (),
    baselines: Sequence[str] = (),
) -> list[Configuration]:
    """Return the configurations that a command names, the base first.

    sets: each is one more run with these changes; `a=1;b=2` changes two things in one run.
    `mode=dense` sets the search mode. files: TOML files, each a run in the place of the base.

    Raises:
        ConfigError: for a setting that cannot be read, or an unknown baseline.
    """
    base = Configuration(preset or "default", preset=preset)
    base = replace(base, name=str(base.config().get("preset")))
    found = [] if files else [base]
    for file in files:
        found.append(Configuration(Path(file).stem, preset=preset, path=file))
    found.extend(changed(found[0], text) for text in sets)
    for name in baselines:
        if name not in BASELINES:
            raise ConfigError(f"unknown baseline {name!r} (known: {', '.join(BASELINES)})")
        found.append(Configuration(name, baseline=name))
    if len({c.name for c in found}) != len(found):
        raise ConfigError(f"two runs have the same name: {', '.join(c.name for c in found)}")
    return found


def changed(base: Configuration, text: str) -> Configuration:
    """Return a configuration with the changes that a text names."""
    from foveate.pipeline.config import parse_assignment

    settings, mode = dict(base.settings), base.mode
    for part in filter(None, (p.strip() for p in text.split(";"))):
        key, value = parse_assignment(part)
        if key == "mode":
            if value not in MODES:
                raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {value!r}")
            mode = value
        else:
            settings[key] = value
    made = replace(base, name=text.strip(), settings=settings, mode=mode)
    made.config()
    return made


def build_key(config: Config, towers: Sequence[str]) -> str:
    """Return a hash of all that decides what an index holds."""
    tables = {name: config.table(name) for name in BUILD_TABLES}
    text = json.dumps([tables, list(towers)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
