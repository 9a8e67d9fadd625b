"""The command `foveate train`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foveate.pipeline.commands.common import JsonOption, PresetOption, SetOption, assignments, emit


def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A .jsonl of query and positive or of image and caption, a .txt of texts, a BEIR "
            "folder, or a folder of pictures and captions.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", help="The folder to write.", metavar="FOLDER")],
    encoder: Annotated[
        str | None, typer.Option(help="A model folder to start from.", metavar="FOLDER")
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(help="Mine negatives from this index's passages.", metavar="FOLDER"),
    ] = None,
    which: Annotated[
        str, typer.Option("--split", help="Of a BEIR folder.", metavar="NAME")
    ] = "train",
    fit: Annotated[
        str | None,
        typer.Option(help="full, layers, lora, head, prompts or bridge.", metavar="WHAT"),
    ] = None,
    bridge: Annotated[
        str | None, typer.Option(help="Kind of a bridge: slr, llr or clr.", metavar="KIND")
    ] = None,
    queries_only: Annotated[
        bool,
        typer.Option("--queries-only", help="Leave passages as they are: no index changes."),
    ] = False,
    loss: Annotated[
        str | None,
        typer.Option(
            help="infonce, symmetric, hinge, graded, sigmoid, focal or simcse.", metavar="NAME"
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", metavar="N")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate.", metavar="RATE")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop then; --resume goes on.", metavar="N")
    ] = None,
    synthesize: Annotated[
        int, typer.Option(help="Have the reader write N pairs from the texts.", metavar="N")
    ] = 0,
    edits: Annotated[
        bool,
        typer.Option("--edits", help="Also tell queries from edits that mean another thing."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
    preset: PresetOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune an encoder on your own pairs, captions or texts; the result is one folder."""
    from foveate.pipeline import config as configuration
    from foveate.pipeline import training
    from foveate.pipeline.terminal import progress_bars

    options: dict[str, Any] = {
        "train.tower.fit": fit,
        "train.tower.bridge": bridge,
        "train.tower.sides": "query" if queries_only else None,
        "train.loss": loss,
        "train.epochs": epochs,
        "train.rate": rate,
        "train.minutes": minutes,
        "train.query_side": 0.5 if edits else None,
    }
    chosen = {key: value for key, value in options.items() if value is not None}
    config = configuration.load(preset, overrides=chosen | assignments(settings))
    with progress_bars() as tell:
        card = training.train(
            data,
            out,
            encoder=encoder,
            index=index,
            which=which,
            synthesize=synthesize,
            edits=edits,
            config=config,
            resume=resume,
            tell=tell,
        )
    if as_json:
        emit(card)
    else:
        print_card(card, out)


def print_card(card: dict[str, Any], out: str) -> None:
    """Print what a person wants to know of a run."""
    from foveate.pipeline.terminal import number, printable

    for key in ("trained_on", "held_out"):
        if key in card:
            typer.echo(f"{key.replace('_', ' ')}: {printable(str(card[key]))}")
    for tried, score in card.get("scores", {}).items():
        typer.echo(f"  {tried}: nDCG@10 {score:.4f} on the held-out queries")
    if not card.get("finished", True):
        typer.echo(f"stopped after {number(card['steps'], 'step')}: --resume goes on")
        return
    if "part_of_the_way" in card:
        part = card["part_of_the_way"]
        gained = "" if part else ": nothing was gained, so nothing changed"
        typer.echo(f"weights taken: {part:g} of the way from the old to the new{gained}")
        if str(card.get("held_out", "")).startswith("0 "):
            typer.echo("unchecked: there were too few queries to hold any out; give it more")
    use, role = card.get("use", "minilm"), card.get("role", "text")
    option = card.get("option", "path")
    typer.echo(f"written: {printable(out)}")
    place = printable(out)
    typer.echo(
        f"to use it: --set encoders.{role}.use={use} --set encoders.{role}.{option}={place}"
        + (f", or on an index that is there `foveate index --encoder {place}`" * (role == "text"))
    )
