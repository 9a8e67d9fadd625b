"""What opening an index needs: which folder is meant, its encoders, the settings it keeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import registry
from foveate.pipeline.errors import ConfigError, IndexNotFound, SpaceMismatch

if TYPE_CHECKING:
    from foveate.pipeline.config import Config
    from foveate.pipeline.protocols import Encoder

DEFAULT_NAME = ".foveate"
ROLES = ("text", "image", "tokens")
BUILD_TABLES = ("encoders.text", "encoders.image", "encoders.tokens", "index", "ingest")
SECRETS = ("ingest.pdf_passwords",)
PATHS = ("path", "head", "weights", "model")  # settings that may name a file or a folder


def locate(path: str | os.PathLike[str] | None, *, create: bool = False) -> Path:
    """Return the absolute path of the index that is meant.

    Raises:
        IndexNotFound: if none is named and no folder from here upwards holds one.
    """
    named = path if path is not None else os.environ.get("FOVEATE_INDEX")
    if named:
        return Path(os.path.abspath(os.path.expanduser(os.fspath(named))))
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / DEFAULT_NAME).is_dir():
            return folder / DEFAULT_NAME
    if create:
        return here / DEFAULT_NAME
    raise IndexNotFound(
        f"no {DEFAULT_NAME} in {str(here)!r} or a parent: make one with `foveate index PATH...`, "
        "or name one with --index or FOVEATE_INDEX"
    )


def make_encoders(settings: Config) -> dict[str, Encoder]:
    """Build each role's encoder; no weights are read yet."""
    encoders: dict[str, Encoder] = {}
    for role in ROLES:
        table = f"encoders.{role}"
        if settings.get(f"{table}.use") in (None, "none"):
            continue
        name, options = settings.component(table)
        make = registry.find("encoder", name)
        try:
            encoders[role] = make(**options)
        except TypeError as error:
            raise ConfigError(f"[{table}] {error}") from error
    if "text" not in encoders:
        raise ConfigError('[encoders.text] needs use = "<registered name>"')
    return encoders


def towers(encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """Return what the index must remember of each encoder."""
    from foveate.index.towers import Tower

    return {
        role: Tower(role, e.tower, e.space, e.dim, getattr(e, "code", ""))
        for role, e in encoders.items()
    }


def built_with(settings: Config) -> dict[str, Any]:
    """Return the settings that an index keeps for life; paths hold from any folder."""
    return {
        f"{table}.{key}": lasting(value) if key in PATHS else value
        for table in BUILD_TABLES
        for key, value in settings.table(table).items()
        if f"{table}.{key}" not in SECRETS
    }


def lasting(value: Any) -> Any:
    """Make the relative path of something that is there absolute; leave the rest as it is."""
    if not isinstance(value, str):
        return value
    place = os.path.abspath(os.path.expanduser(value))
    return place if os.path.exists(place) else value


def keep_build(settings: Config, stored: Mapping[str, Any]) -> Config:
    """Put an index's own encoders in force.

    Raises:
        SpaceMismatch: if a file, variable or option asks for others.
    """
    for role in ROLES:
        key = f"encoders.{role}.use"
        asked, origin, built = settings.get(key), settings.origin(key), stored.get(key)
        chosen = origin is not None and not origin.startswith("preset ")
        if chosen and asked != built:
            raise SpaceMismatch(
                f"the index was built with {role} encoder {built!r}, but {origin} asks for "
                f"{asked!r}: drop that setting, or build a new index with it"
            )
    kept = {f"encoders.{role}.use": "none" for role in ROLES}
    kept |= {k: v for k, v in stored.items() if k.startswith("encoders.")}
    return settings.override(kept, "index")
