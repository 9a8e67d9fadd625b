"""The command `foveate heads`: which attention heads of a reader look at what answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foveate.pipeline.commands.common import JsonOption, PresetOption, SetOption, assignments, emit


def heads(
    sets: Annotated[list[str], typer.Argument(help="Question sets.", metavar="SET...")],
    n: Annotated[int, typer.Option(help="Heads to keep.", min=1, metavar="N")] = 16,
    questions: Annotated[
        int, typer.Option(help="Questions of each set that are asked.", min=1, metavar="N")
    ] = 40,
    criterion: Annotated[
        str, typer.Option(help="rank, mass or contrast.", metavar="NAME")
    ] = "rank",
    layers: Annotated[
        int | None,
        typer.Option(help="Only heads of the first N layers: later ones never run.", metavar="N"),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="The file; your own data folder by default.", metavar="FILE")
    ] = None,
    preset: PresetOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find and save the reader's retrieval heads, for the reranker 'attention'."""
    from foveate.pipeline import config as configuration
    from foveate.pipeline.reader import Reader
    from foveate.pipeline.terminal import progress_bars
    from foveate.rerank import heads as found
    from foveate.rerank.probe import shape

    config = configuration.load(preset, overrides=assignments(settings))
    reader = Reader(**config.table("reader"))
    labelled = _labelled(sets, questions)
    with progress_bars() as report:

        def tell(done: int) -> None:
            if report is not None:
                report("look", done, len(labelled))

        scores = found.observe(reader, labelled, progress=tell)
    ratings = found.rate(scores, [q.gold for q in labelled], criterion)
    pairs = found.choose_best(ratings, shape(reader.model), n, layers=layers)
    place = Path(out).expanduser() if out else found.saved_place(reader.name)
    facts: dict[str, Any] = {
        "criterion": criterion,
        "sets": list(sets),
        "n_questions": len(labelled),
    }
    found.save_heads(place, reader, pairs, facts)
    if as_json:
        emit({"file": str(place), "heads": pairs, **facts})
        return
    for layer, head in pairs:
        rating = ratings[layer * shape(reader.model)[1] + head]
        typer.echo(f"layer {layer} head {head}: {rating:.3f}")
    typer.echo(f"written: {place}")


def _labelled(sets: list[str], n: int) -> list[Any]:
    from foveate.pipeline.errors import FoveateError
    from foveate.pipeline.evaluate import datasets
    from foveate.pipeline.evaluate.sets import Questions, sample
    from foveate.rerank.heads import Labelled

    found = []
    for name in sets:
        for dataset in datasets.load(name):
            some = sample(dataset, n)
            if not isinstance(some, Questions):
                raise FoveateError(f"{name!r} is not a question set: heads need marked passages")
            for question in some.questions:
                texts = tuple(doc.joined for doc in question.docs)
                gold = tuple(doc.is_gold for doc in question.docs)
                found.append(Labelled(question.text, texts, gold))
    return found
