"""What the commands share: options, how an index is opened, how a result is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.pipeline import registry

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine

IndexOption = Annotated[
    str | None, typer.Option("--index", help="The index's folder.", metavar="FOLDER")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where", help="A filter, e.g. \"type = 'pdf' and year >= 2020\".", metavar="FILTER"
    ),
]
RERANKERS = ", ".join(registry.names("reranker"))
RerankOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"A reranker, or several one after another: {RERANKERS}; or none.",
        metavar="NAME",
    ),
]
TypeOption = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only this file type, e.g. pdf; may repeat.", metavar="TYPE"),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, e.g. ingest.max_pages=50.", metavar="KEY=VALUE"),
]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", help="offline, standard, gpu or a TOML file.", metavar="NAME"),
]

# what people call a file type by its ending
ENDINGS = {
    "jpg": "jpeg",
    "tif": "tiff",
    "heif": "heic",
    "md": "markdown",
    "txt": "text",
    "htm": "html",
    "py": "python",
}


@contextmanager
def opened(
    at: str | None,
    *,
    create: bool = False,
    preset: str | None = None,
    options: dict[str, Any] | None = None,
    dry: bool = False,
) -> Iterator[Engine]:
    """Open the index that is meant; a dry run without one gets an empty one that vanishes."""
    import foveate
    from foveate.pipeline import config as configuration
    from foveate.pipeline.opening import locate

    settings = configuration.load(preset, overrides=options)
    if dry and not locate(at, create=True).exists():
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "dry.fov")
            with foveate.open(place, create=True, config=settings) as engine:
                yield engine
        return
    with foveate.open(at, create=create, config=settings) as engine:
        yield engine


def require(paths: Sequence[str]) -> None:
    """Refuse a path that is not there.

    Raises:
        FoveateError: for the first such path.
    """
    from foveate.pipeline.errors import FoveateError

    for path in paths:
        if not os.path.lexists(os.path.expanduser(path)):
            raise FoveateError(f"no file or folder {path!r}")


def assignments(settings: Sequence[str] | None) -> dict[str, Any]:
    """Turn --set KEY=VALUE options into {dotted key: value}."""
    from foveate.pipeline.config import parse_assignment

    return dict(parse_assignment(text) for text in settings or ())


def with_types(where: str | None, types: Sequence[str] | None) -> str | None:
    """Add --type to a filter."""
    if not types:
        return where
    names = ", ".join(_quoted(name) for name in types)
    return f"({where}) and type in ({names})" if where else f"type in ({names})"


def tell_unknown_fields(engine: Engine, where: str | None) -> None:
    """Say which fields of a filter no source has: what is found is then for another reason."""
    from foveate.pipeline import query

    unknown = query.unknown_fields(engine.index, where)
    if unknown:
        complain(f"--where: {unknown}")


def _quoted(name: str) -> str:
    from foveate.pipeline.errors import QueryError

    if not name.replace("-", "").replace("+", "").isalnum():
        raise QueryError(f"--type takes a file type such as pdf or jpeg, got {name!r}")
    name = name.lower()
    return f"'{ENDINGS.get(name, name)}'"


def emit(record: dict[str, Any]) -> None:
    from foveate.pipeline import records

    print(records.dump(record))


def complain(sentence: str) -> None:
    """Say one line on standard error."""
    from foveate.pipeline.terminal import printable

    print(f"foveate: {printable(sentence)}", file=sys.stderr)
