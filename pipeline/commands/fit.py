"""The command `foveate fit`: what compressors and orders learn beforehand, from question sets."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.pipeline.commands.common import JsonOption, PresetOption, SetOption, assignments, emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foveate.pipeline.config import Config


class What(StrEnum):
    """What can be fitted."""

    CLAUSES = "clauses"
    SENTINEL = "sentinel"
    PROFILE = "profile"


def fit(
    what: Annotated[What, typer.Argument(help="clauses, sentinel or profile.")],
    data: Annotated[
        list[str],
        typer.Option(help="A question set by name or path; may repeat.", metavar="SET"),
    ],
    out: Annotated[str | None, typer.Option(help="The file to write.", metavar="FILE")] = None,
    n: Annotated[int | None, typer.Option(help="Questions of each set at most.", min=1)] = None,
    preset: PresetOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the compressors 'clauses' and 'sentinel', or measure the reader for 'attnrank'."""
    from foveate.pipeline import config as configuration
    from foveate.pipeline.errors import FoveateError
    from foveate.pipeline.terminal import number

    chosen = configuration.load(preset, overrides=assignments(settings))
    place = Path(out).expanduser() if out else Path(f"{what}.json")
    if not place.parent.is_dir():
        raise FoveateError(f"no folder {str(place.parent)!r} to write {place.name!r} into")
    told = _fit(what, data, n, place, chosen)
    if as_json:
        emit({"what": str(what), "file": str(place), **told})
        return
    for name, (share, count) in told.get("kept", {}).items():
        asked = number(count, "question")
        typer.echo(f"{name}: {share:.3f} of the answers kept at 5x, {asked}, by folds")
    for places, shares in told.get("profiles", {}).items():
        typer.echo(f"{number(places, 'place')}: {' '.join(f'{share:.3f}' for share in shares)}")
    typer.echo(f"written: {place}")


def _fit(what: What, data: Sequence[str], n: int | None, place: Path, config: Config) -> Any:
    from foveate.pipeline import fitting
    from foveate.pipeline.terminal import progress_bars

    resources = fitting.lend(config)
    with progress_bars() as report:

        def tell(done: int, total: int) -> None:
            if report is not None:
                report("fit", done, total)

        found = list(fitting.cases(data, resources, n))
        if what is What.PROFILE:
            from foveate.rerank.order import profile

            measured = fitting.fit_profile(found, resources, tell)
            facts = {"reader": resources.reader().name, "questions": len(found)}
            profile.save(place, measured, facts)
            listed = {str(k): [float(x) for x in shares] for k, shares in measured.items()}
            return {"profiles": listed}
        make = fitting.fit_clauses if what is What.CLAUSES else fitting.fit_sentinel
        fitted = make(found, resources, tell)
    place.write_text(json.dumps(fitted.table) + "\n", encoding="utf-8")
    return {"kept": {name: list(kept) for name, kept in fitted.kept.items()}}
