"""What `foveate eval` and `foveate bench` refuse before they begin: options without an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.pipeline.errors import ConfigError, FoveateError

if TYPE_CHECKING:
    import typer

# what `foveate eval` can be asked for besides measuring, and the options of each
JOBS: dict[str, tuple[str, ...]] = {
    "readme": ("readme", "into"),
    "make": ("make", "at", "out"),
}
WRITTEN = {"readme": "--readme JSON", "make": "--make-queries N"}


def given(context: typer.Context) -> dict[str, str]:
    """Return {parameter: how it is written} of what stands on the command line."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            found[str(parameter.name)] = parameter.opts[-1]
    return found


def check_eval(options: Mapping[str, str]) -> None:
    """Refuse what the job at hand would not look at. options: as `given` returns them.

    Raises:
        ConfigError: for the first such option.
    """
    jobs = {name: job for job, names in JOBS.items() for name in names}
    chosen = next((job for job in JOBS if job in options), None)
    for name, option in options.items():
        shown = "a data set" if name == "datasets" else option
        if jobs.get(name) == chosen:
            continue
        if chosen is not None:
            raise ConfigError(f"{shown} is of no use with {options[chosen]}: leave one of them out")
        raise ConfigError(f"{shown} goes with {WRITTEN[jobs[name]]}: add that, or leave it out")
    if "per_query" in options and "as_json" not in options:
        raise ConfigError(f"{options['per_query']} goes with --json: add that, or leave it out")


def check_bench(
    options: Mapping[str, str], operations: Sequence[str], takers: Mapping[str, Sequence[str]]
) -> None:
    """Refuse an option that no operation takes. takers: {parameter: the operations that take it}.

    Raises:
        ConfigError: for the first such option.
    """
    for name, some in takers.items():
        if name in options and not set(some) & set(operations):
            raise ConfigError(
                f"{options[name]} is of {', '.join(some)}: {', '.join(operations)} would not look "
                "at it"
            )


def must_be_writable(file: str, *, makes_folders: bool = False) -> None:
    """Refuse a report's place before hours go into the report.

    makes_folders: whoever writes the file makes the folders above it.

    Raises:
        FoveateError: for a folder, or a file in a folder that is not there.
    """
    place = Path(file).expanduser()
    if place.is_dir() or not (makes_folders or place.absolute().parent.is_dir()):
        raise FoveateError(f"cannot write the report to {file!r}: name a file in a folder there is")


def counts(sizes: str | None) -> list[int]:
    """Read '1000,10000'.

    Raises:
        ConfigError: for what is no list of whole numbers of at least 30.
    """
    parts = (sizes or "1000,10000").split(",")
    if not all(part.strip().isdigit() and int(part) >= 30 for part in parts):
        raise ConfigError(
            f"--sizes takes whole numbers of at least 30, as 1000,10000; got {sizes!r}"
        )
    return [int(part) for part in parts]
