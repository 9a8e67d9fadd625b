"""What is put side by side: a preset with settings, a TOML file, or a baseline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import refine
from foveate.pipeline.config import make
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.evaluate.baselines import BASELINES
from foveate.pipeline.search import SearchOptions

if TYPE_CHECKING:
    from foveate.pipeline.config import Config

MODES = ("hybrid", "dense", "words", "late")
DOCUMENTS = ("own", "pooled")
BUILD_TABLES = ("encoders.text", "encoders.image", "encoders.tokens", "ingest", "index")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One column of a report.

    Settings of the run, not of the engine: mode: which lists a search takes. documents: what a
    question is asked of, its 'own' documents or those of all questions 'pooled'. ratio: how many
    times fewer tokens a compressor may keep. baseline: a method of the harness itself, which uses
    no engine.
    """

    name: str
    preset: str | None = None
    path: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    mode: str = "hybrid"
    documents: str = "own"
    ratio: float = 5.0
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
        values["mode"] = self.mode
        # these decide nothing elsewhere, and what was measured before they were there holds
        if self.documents != "own":
            values["documents"] = self.documents
        if values.get("compress.use", "none") != "none":
            values["ratio"] = self.ratio
        return values


def gather(
    *,
    preset: str | None = None,
    sets: Sequence[str] = (),
    files: Sequence[str] = (),
    baselines: Sequence[str] = (),
) -> list[Configuration]:
    """Return the configurations that a command names, the base first.

    sets: each is one more run with these changes; `a=1;b=2` changes two things in one run.
    `mode=dense` sets the search mode, `documents=pooled` what questions are asked of, `ratio=10`
    what compressors keep. files: TOML files, each a run in the place of the base.

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
        documents = "pooled" if name.endswith("/pooled") else "own"
        found.append(Configuration(name, baseline=name, documents=documents))
    if len({c.name for c in found}) != len(found):
        raise ConfigError(f"two runs have the same name: {', '.join(c.name for c in found)}")
    for one in found:
        if not one.baseline:
            # a run that cannot be made must not wait for the others
            config = one.config()
            refine.check(config)
            make(SearchOptions, config.table("search"), "search")
    return found


def changed(base: Configuration, text: str) -> Configuration:
    """Return a configuration with the changes that a text names."""
    from foveate.pipeline.config import parse_assignment

    settings: dict[str, Any] = dict(base.settings)
    own: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        key, value = parse_assignment(part)
        if key in RUN_SETTINGS:
            RUN_SETTINGS[key](key, value)
            own[key] = value
        else:
            settings[key] = value
    return replace(base, name=text.strip(), settings=settings, **own)


def _one_of(known: Sequence[str]) -> Callable[[str, Any], None]:
    def check(key: str, value: Any) -> None:
        if value not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}, got {value!r}")

    return check


def _above_one(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise ConfigError(f"{key} must be a number of at least 1, got {value!r}")


RUN_SETTINGS: dict[str, Callable[[str, Any], None]] = {
    "mode": _one_of(MODES),
    "documents": _one_of(DOCUMENTS),
    "ratio": _above_one,
}


def build_key(config: Config, towers: Sequence[str]) -> str:
    """Return a hash of all that decides what an index holds."""
    tables = {name: config.table(name) for name in BUILD_TABLES}
    if not tables["encoders.tokens"]:
        del tables["encoders.tokens"]  # indexes built before there were token vectors hold
    text = json.dumps([tables, list(towers)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
