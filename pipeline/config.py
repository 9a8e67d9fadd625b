"""Which component serves each stage, with which options, and who said so.

Flags over `FOVEATE_*` over ./foveate.toml over the user's file over the preset. An environment
variable names a table and a key with two underscores: FOVEATE_SEARCH__DEPTH=100,
FOVEATE_ENCODERS__TEXT__USE=minilm.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from foveate.pipeline.errors import ConfigError, UnknownComponent

T = TypeVar("T")

DEFAULT_PRESET = "offline"
TABLES = (
    "encoders.text",
    "encoders.image",
    "encoders.tokens",
    "ingest",
    "index",
    "search",
    "reader",
    "compress",
    "order",
    "generate",
    "serve",
    "train",
    "train.tower",
    "train.mining",
)
CHAIN = "rerank"  # a list of tables, each with its own `use`
SHORT = ("compress", "order", "generate")  # `compress = "x"` is short for `compress.use = "x"`


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One value in force and where it came from."""

    key: str
    value: Any
    origin: str


class Config:
    """Settings by dotted key, each with its origin."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings = dict(settings)

    def __iter__(self) -> Iterator[Setting]:
        return iter(sorted(self._settings.values(), key=lambda s: s.key))

    def table(self, name: str) -> dict[str, Any]:
        """Return {key: value} of one table, without its sub-tables."""
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): setting.value
            for key, setting in self._settings.items()
            if key.startswith(prefix) and "." not in key.removeprefix(prefix)
        }

    def get(self, key: str, default: Any = None) -> Any:
        setting = self._settings.get(key)
        return default if setting is None else setting.value

    def origin(self, key: str) -> str | None:
        """Say where a value came from: 'preset offline', a file, a variable or 'option'."""
        setting = self._settings.get(key)
        return None if setting is None else setting.origin

    def override(self, values: Mapping[str, Any], origin: str) -> Config:
        """Return a copy in which these dotted keys have these values."""
        settings = dict(self._settings)
        values = {f"{key}.use" if key in SHORT else key: value for key, value in values.items()}
        # a new `use` clears its table, so it goes before the table's other keys
        for key, value in sorted(values.items(), key=lambda kv: not kv[0].endswith(".use")):
            _check_key(key, origin)
            _place(settings, Setting(key, value, origin))
        return Config(settings)

    def component(self, table: str) -> tuple[str, dict[str, Any]]:
        """Return the registered name that a table uses, and its options.

        Raises:
            ConfigError: if the table has no `use`.
        """
        options = self.table(table)
        name = options.pop("use", None)
        if not isinstance(name, str):
            raise ConfigError(f'[{table}] needs use = "<registered name>"')
        return name, options


def chain(value: Any, origin: str) -> list[tuple[str, dict[str, Any]]]:
    """Read a chain of components: a name, or a list of names and of tables with `use`.

    'none' stands for no component.

    Raises:
        ConfigError: for anything else.
    """
    entries = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(entries, list | tuple):
        raise ConfigError(f"{origin} must be a name or a list of tables with `use`, got {value!r}")
    found = []
    for entry in entries:
        options = {"use": entry} if isinstance(entry, str) else entry
        if not isinstance(options, Mapping) or not isinstance(options.get("use"), str):
            raise ConfigError(f'each entry of {origin} needs use = "<registered name>": {entry!r}')
        if options["use"] != "none":
            found.append((options["use"], {k: v for k, v in options.items() if k != "use"}))
    return found


def preset_names() -> list[str]:
    """Return the names of the presets that ship."""
    folder = resources.files("foveate.pipeline.presets")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith("toml"))


def load(
    preset: str | None = None,
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Gather the settings that are in force here.

    preset: a preset's name or a TOML file. path: a TOML file that stands in for ./foveate.toml.
    overrides: {dotted key: value} of the caller, which win.

    Raises:
        ConfigError: for a file that is not TOML, an unknown table or a value of a wrong type.
        UnknownComponent: for an unknown preset.
    """
    if path is None:
        path = os.environ.get("FOVEATE_CONFIG")
    local = Path(path) if path is not None else Path("foveate.toml")
    if path is not None and not local.is_file():
        raise ConfigError(f"no configuration file {str(path)!r}")
    files = [p for p in (user_file(), local) if p.exists()]
    tables = [(str(p), _read(p)) for p in files]
    chosen = [(origin, t["preset"]) for origin, t in tables if "preset" in t]
    if "FOVEATE_PRESET" in os.environ:
        chosen.append(("environment", os.environ["FOVEATE_PRESET"]))
    if preset is not None:
        chosen.append(("option", preset))
    named_by, preset = chosen[-1] if chosen else ("default", DEFAULT_PRESET)
    settings: dict[str, Setting] = {}
    for origin, table in [(f"preset {preset}", _read_preset(preset)), *tables]:
        for key, value in _flatten(table):
            key = f"{key}.use" if key in SHORT else key
            if key != "preset":
                _check_key(key, origin)
                _place(settings, Setting(key, value, origin))
    settings["preset"] = Setting("preset", preset, named_by)
    return (
        Config(settings).override(_environment(), "environment").override(overrides or {}, "option")
    )


def user_file() -> Path:
    """Return the path of the user's own configuration file; it need not exist."""
    import platformdirs

    return Path(platformdirs.user_config_dir("foveate")) / "foveate.toml"


def parse_assignment(text: str) -> tuple[str, Any]:
    """Turn 'search.depth=100' into its key and a TOML value (a bare word is a string).

    Raises:
        ConfigError: if there is no '='.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"expected key=value, got {text!r}, e.g. search.depth=100")
    return key.strip(), _value(value.strip())


def make(kind: type[T], values: Mapping[str, Any], table: str) -> T:
    """Build an options dataclass from a table.

    Raises:
        ConfigError: for a key the dataclass lacks or a value of another type.
    """
    hints = typing.get_type_hints(kind)
    _check_options(values, hints, table)
    exact = {
        k: tuple(v) if isinstance(v, list) else float(v) if hints[k] is float else v
        for k, v in values.items()
    }
    try:
        return kind(**exact)
    except ValueError as error:
        raise ConfigError(f"[{table}] {error}") from error


def check_options(factory: Any, values: Mapping[str, Any], table: str) -> None:
    """Compare options with the keyword arguments that a component's class takes.

    An argument whose type is not known at run time takes any value; `**options` takes any name.

    Raises:
        ConfigError: for a name that it lacks or a value of another type.
    """
    parameters = inspect.signature(factory).parameters.values()
    names = vars(sys.modules[factory.__module__])
    hints: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            hints |= {key: Any for key in values if key not in hints}
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is parameter.empty:
            hints[parameter.name] = Any
        elif parameter.kind is parameter.KEYWORD_ONLY:
            told = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
            try:
                hints[parameter.name] = typing.get_type_hints(told, names)["it"]
            except NameError:  # imported for the type checker only
                hints[parameter.name] = Any
    _check_options(values, hints, table)


def _check_options(values: Mapping[str, Any], hints: Mapping[str, Any], table: str) -> None:
    for key, value in values.items():
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            known = ", ".join(sorted(hints)) or "none"
            raise ConfigError(f"unknown option {table}.{key}{hint} (known: {known})")
        if not _fits(value, hints[key]):
            raise ConfigError(f"{table}.{key} must be {_name(hints[key])}, got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arm) for arm in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin is not None:
        hint = origin
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (tuple, list):
        return isinstance(value, list | tuple)
    if hint is type(None):
        return value is None
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(a) for a in typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {str(path)!r}: {error.strerror}"
        ) from error


def _read_preset(preset: str) -> dict[str, Any]:
    if preset in preset_names():
        text = resources.files("foveate.pipeline.presets").joinpath(f"{preset}.toml")
        return tomllib.loads(text.read_text(encoding="utf-8"))
    if preset.endswith(".toml") and Path(preset).is_file():
        return _read(Path(preset))
    raise UnknownComponent("preset", preset, preset_names())


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_key(key: str, origin: str) -> None:
    table = key.rpartition(".")[0]
    if table == CHAIN:
        raise ConfigError(f"{origin} has [{CHAIN}]: it is a list of tables, write [[{CHAIN}]]")
    if not table and key not in ("preset", CHAIN):
        raise ConfigError(f"expected table.key, such as search.depth, got {key!r} in {origin}")
    if table not in TABLES and key not in ("preset", CHAIN):
        close = difflib.get_close_matches(table, TABLES, n=1)
        hint = f"; did you mean [{close[0]}]?" if close else ""
        raise ConfigError(f"unknown table [{table}] for {key!r} in {origin}{hint}")


def _place(settings: dict[str, Setting], setting: Setting) -> None:
    """Set a value; a new `use` drops the options that belonged to the component before it."""
    table, _, name = setting.key.rpartition(".")
    before = settings.get(setting.key)
    if name == "use" and before is not None and before.value != setting.value:
        for key in [k for k in settings if k.startswith(f"{table}.")]:
            del settings[key]
    settings[setting.key] = setting


def _environment() -> dict[str, Any]:
    found = {}
    for name, text in os.environ.items():
        if name == "FOVEATE_RERANK":
            found[CHAIN] = _value(text)
        elif name.startswith("FOVEATE_") and "__" in name:
            key = name.removeprefix("FOVEATE_").lower().replace("__", ".")
            found[key] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
