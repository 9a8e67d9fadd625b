"""`foveate serve`: the index over HTTP, or as tools for one assistant."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foveate.pipeline.commands.common import IndexOption, PresetOption, SetOption, assignments

Names = list[str] | None


def serve(
    at: IndexOption = None,
    host: Annotated[str | None, typer.Option(help="Where to listen.", metavar="HOST")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.", metavar="PORT")] = None,
    token_file: Annotated[
        str | None,
        typer.Option(help="A file with the token; else FOVEATE_TOKEN.", metavar="FILE"),
    ] = None,
    roots: Annotated[
        Names, typer.Option("--root", help="Files below may be indexed.", metavar="FOLDER")
    ] = None,
    allow_host: Annotated[
        Names, typer.Option(help="A further name it is called by.", metavar="HOST")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nothing can change.")] = False,
    mcp: Annotated[bool, typer.Option("--mcp", help="Tools over stdin and stdout.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the index if needed.")] = False,
    preset: PresetOption = None,
    settings: SetOption = None,
) -> None:
    """Serve the index: a page to search it, an API, and tools for assistants."""
    import logging

    import foveate
    from foveate.pipeline import config as configuration
    from foveate.pipeline.serve import options as limits

    given = {"host": host, "port": port, "roots": roots, "allow_hosts": allow_host}
    chosen: dict[str, Any] = {f"serve.{k}": v for k, v in given.items() if v is not None}
    if read_only:
        chosen["serve.read_only"] = True
    config = configuration.load(preset, overrides=assignments(settings) | chosen)
    options = configuration.make(limits.ServeOptions, config.table("serve"), "serve")
    token = limits.read_token(token_file)
    if not mcp:
        limits.check(options, token)

    logging.basicConfig(level=logging.WARNING, format="foveate: %(message)s")
    from foveate.pipeline.serve import run

    with foveate.open(at, create=create, config=config) as engine:
        if mcp:
            run.speak(engine, options)
            return
        listener = run.Listener(engine, options, token=token)
        locked = " (with the token)" if token else ""
        listener.run(lambda url: typer.echo(f"foveate: listening on {url}{locked}", err=True))
