"""The command `foveate quality`: passages that no question would want, and what skipping costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.pipeline.commands.common import IndexOption, JsonOption, complain, emit, opened

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine

N_SHOWN_CHARS = 72
N_QUERY_WORDS = 12


def quality(
    skip: Annotated[
        float | None,
        typer.Option(
            help="Let dense search skip the worst share, e.g. 0.25; 0 takes it back.",
            metavar="SHARE",
        ),
    ] = None,
    show: Annotated[int, typer.Option(help="Print so many of the worst.", min=0)] = 5,
    sample: Annotated[
        int,
        typer.Option(help="Passages that are looked for, to measure what skipping costs.", min=0),
    ] = 100,
    at: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score every passage without labels; skip the worst in dense search, and show the loss.

    Nothing is deleted: search by words finds a skipped passage as before. The loss is measured on
    passages drawn at random: each is asked for with its own words, before and after.
    """
    from foveate.index import quality as scored

    with opened(at) as engine:
        ids, scores = scored.rate(engine.index)
        if not len(ids):
            complain("the index holds no passages: add files with `foveate index PATH...`")
            raise typer.Exit(1)
        record: dict[str, Any] = {"passages": len(ids)}
        if skip is not None:
            drawn = draw(ids.tolist(), sample)
            chosen = scored.worst(ids, scores, skip)
            engine.index.skipped.put(())
            record["found_before"] = found(engine, drawn)
            engine.index.skipped.put(chosen.tolist())
            record["found_after"] = found(engine, drawn)
            record["asked"] = len(drawn)
        record["skipped"] = len(engine.index.skipped.ids())
        order = scores.argsort(kind="stable")[:show]
        worst = engine.index.passages(ids[order])
        record["worst"] = [
            {"label": p.label, "score": round(float(s), 4), "text": p.text}
            for p, s in zip(worst, scores[order], strict=True)
        ]
    if as_json:
        emit(record)
    else:
        tell(record)


def tell(record: dict[str, Any]) -> None:
    from foveate.pipeline.terminal import number, printable

    for one in record["worst"]:
        text = " ".join(one["text"].split())[:N_SHOWN_CHARS]
        typer.echo(f"{one['score']:.3f}  {one['label']}  {printable(text)}")
    held = number(record["passages"], "passage")
    typer.echo(f"dense search skips {record['skipped']} of {held}")
    if record.get("asked"):
        asked = number(record["asked"], "passage")
        for mode, before in record["found_before"].items():
            after = record["found_after"][mode]
            typer.echo(
                f"{mode}: {before:.3f} of {asked} found among the first 10 by their own words, "
                f"{after:.3f} after"
            )


def draw(ids: list[int], n: int) -> list[int]:
    """Return n ids, the same for the same index."""
    import random

    return sorted(random.Random(0).sample(ids, min(n, len(ids))))


def found(engine: Engine, ids: list[int]) -> dict[str, float]:
    """Return {mode: share of passages found among the first ten by words from their middle}."""
    passages = engine.index.passages(ids)
    shares = {}
    for mode in ("dense", "hybrid"):
        n_found = 0
        for passage in passages:
            words = passage.text.split()
            first = max(0, (len(words) - N_QUERY_WORDS) // 2)
            asked = " ".join(words[first : first + N_QUERY_WORDS])
            hits = engine.search(asked, k=10, mode=mode, collapse=False, rerank=False)
            n_found += passage.id in {hit.passage.id for hit in hits}
        shares[mode] = n_found / max(1, len(passages))
    return shares
