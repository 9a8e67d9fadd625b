"""The command `foveate fuse`: weights of the reranker 'fusion', from judged searches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foveate.pipeline.commands.common import (
    IndexOption,
    JsonOption,
    PresetOption,
    SetOption,
    assignments,
    emit,
    opened,
)


def fuse(
    sets: Annotated[
        list[str] | None, typer.Argument(help="Evaluation sets that teach.", metavar="[SET]...")
    ] = None,
    out: Annotated[str, typer.Option(help="The file to write.", metavar="FILE")] = "fusion.json",
    judgments: Annotated[
        str | None,
        typer.Option(
            help='JSON lines about your index: {"query": ..., "relevant": [label or file]}.',
            metavar="FILE",
        ),
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="Where the sets' indexes are kept.", metavar="FOLDER")
    ] = None,
    index: IndexOption = None,
    preset: PresetOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Teach the reranker 'fusion' from your judgments or from sets."""
    from foveate.pipeline import fusing
    from foveate.pipeline.errors import FoveateError
    from foveate.pipeline.terminal import number

    options = assignments(settings)

    if bool(sets) == bool(judgments):
        raise FoveateError("name evaluation sets, or your own --judgments FILE: one of the two")
    if sets and index:
        raise FoveateError("--index goes with --judgments FILE: sets are indexed by themselves")
    if judgments and cache:
        raise FoveateError("--cache goes with evaluation sets: leave it out with --judgments")
    if judgments:
        rows = fusing.read_rows(Path(judgments).expanduser())
        with opened(index, preset=preset, options=options) as engine:
            weights, counts = fusing.learn_from(engine, rows)
        made_by = "foveate fuse --judgments"
    else:
        from foveate.pipeline.evaluate.corpora import cache_folder

        chosen = list(sets or ())
        weights, counts = fusing.learn(
            chosen,
            cache_folder(cache),
            preset=preset,
            settings=options,
            tell=lambda name: typer.echo(name, err=True),
        )
        made_by = f"foveate fuse {' '.join(chosen)}"
    weights.write(Path(out).expanduser(), {"made_by": made_by, "taught_by": counts})
    if as_json:
        emit({"file": out, "taught_by": counts})
        return
    for name, count in counts.items():
        typer.echo(f"{name}: {number(count, 'list')}")
    typer.echo(f"written: {out}")
