"""`foveate ask`: one question, or a conversation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.pipeline.commands.common import (
    IndexOption,
    JsonOption,
    RerankOption,
    SetOption,
    TypeOption,
    WhereOption,
    assignments,
    complain,
    emit,
    opened,
    tell_unknown_fields,
    with_types,
)

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Answer


def ask(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="A question; with --chat the first one."),
    ] = None,
    at: IndexOption = None,
    k: Annotated[
        int | None, typer.Option("-k", "--k", help="Passages to consider.", metavar="N")
    ] = None,
    where: WhereOption = None,
    types: TypeOption = None,
    extractive: Annotated[
        bool | None,
        typer.Option("--extractive/--generated", help="Quote sentences, or write with the reader."),
    ] = None,
    rerank: RerankOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Go on asking, a question a line, until an empty one.")
    ] = False,
    rewrite: Annotated[
        str | None,
        typer.Option(
            help="With --chat: how questions that lean on others are made whole, 'rules' (unless "
            "told) or 'reader'.",
            metavar="HOW",
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show how the answer was made, as JSON.")
    ] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question; every sentence carries a citation, or it says that it can't."""
    from foveate.pipeline.errors import FoveateError

    question = " ".join(text or ())
    if not question and not chat:
        raise typer.BadParameter("ask something, or begin a conversation with --chat")
    if rewrite is not None and not chat:
        raise FoveateError("--rewrite goes with --chat: add that, or leave it out")
    options: dict[str, Any] = {
        "k": k,
        "where": with_types(where, types),
        "extractive": extractive,
        "rerank": rerank,
    }
    with opened(at, options=assignments(settings)) as engine:
        tell_unknown_fields(engine, where)
        if chat:
            answered = converse(engine, question, rewrite or "rules", options, trace, as_json)
        else:
            answer = engine.ask(question, **options)
            tell(engine, answer, trace=trace, as_json=as_json)
            answered = answer.answered
    if not answered:
        raise typer.Exit(1)


def converse(
    engine: Engine, first: str, rewrite: str, options: dict[str, Any], trace: bool, as_json: bool
) -> bool:
    """Answer question after question. Returns whether any was answered."""
    from foveate.pipeline.errors import QueryError

    talk = engine.chat(rewrite=rewrite, **options)
    answered = False
    for question in questions(first):
        try:
            answer = talk.ask(question)
        except QueryError as error:
            complain(str(error))  # one bad line does not end a conversation
            continue
        told = answer.trace["chat"]
        if told["by"] != "as asked" and not as_json:
            from foveate.pipeline import terminal

            console = terminal.open_console()
            console.print(terminal.printable(f"({told['standalone']})"), style="dim", markup=False)
        tell(engine, answer, trace=trace, as_json=as_json, chat=True)
        answered = answered or answer.answered
    return answered


def questions(first: str) -> Iterator[str]:
    """Yield the first question and then a line each of standard input, up to an empty one."""
    if first:
        yield first
    shown = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        if shown:
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line.strip():
            return
        yield line.strip()


def tell(engine: Engine, answer: Answer, *, trace: bool, as_json: bool, chat: bool = False) -> None:
    """Print one answer. Of a conversation each is one line of JSON with its question."""
    from foveate.pipeline import records, terminal

    if as_json:
        record = {"index": str(engine.path), **records.answer(answer, trace=trace)}
        if chat:
            import json

            sys.stdout.write(
                json.dumps({**record, "chat": answer.trace["chat"]}, ensure_ascii=False) + "\n"
            )
            sys.stdout.flush()
        else:
            emit(record)
        return
    terminal.print_answer(terminal.open_console(), answer)
    if trace:
        sys.stdout.write(f"\n{records.dump(answer.trace)}\n")
