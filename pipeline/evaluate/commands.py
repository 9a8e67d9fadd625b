"""The commands `foveate eval` and `foveate bench`, thin; imported at start-up, so light."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from foveate.pipeline.evaluate.searching import Plan
    from foveate.pipeline.evaluate.sets import Dataset

LARGE = ("per_query", "run", "queries", "buckets")


def evaluate(
    context: typer.Context,
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATASET]...",
            help="Folders, or names below FOVEATE_EVAL_DATA; name:train takes that split. "
            "None: all that is there.",
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="offline, standard, gpu or a file.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One more run with this change; 'a=1;b=2' changes two things. mode=dense, "
            "mode=words set the search mode.",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(metavar="TOML...", help="Runs by configuration file.")
    ] = None,
    baseline: Annotated[list[str] | None, typer.Option(help="bm25.")] = None,
    split: Annotated[str | None, typer.Option(help="Judgments to take: test, dev, train.")] = None,
    sample: Annotated[int | None, typer.Option(help="Queries a set, at most.", min=1)] = None,
    answers: Annotated[int, typer.Option(help="Questions a set that are answered.", min=0)] = 40,
    k: Annotated[int, typer.Option("-k", "--k", help="Documents a query.", min=10)] = 100,
    diagnose: Annotated[bool, typer.Option("--diagnose", help="Probe corpus and model.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what is kept.")] = False,
    cache: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Of indexes, results.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write the report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    per_query: Annotated[
        bool, typer.Option("--per-query", help="With --json: every query's values and run.")
    ] = False,
    make: Annotated[
        int | None,
        typer.Option("--make-queries", help="Write a set of N questions from an index.", min=1),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--index", metavar="FOLDER", help="Of --make-queries.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Of --make-queries: a new folder.")
    ] = "synthetic-queries",
    readme: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Print the Markdown tables of a --json report."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Of --readme: write them between <!-- eval:start --> and <!-- eval:end -->.",
        ),
    ] = None,
) -> None:
    """Measure retrieval and answers on evaluation sets, side by side; or diagnose them."""
    from foveate.pipeline.evaluate import configurations, report, usage
    from foveate.pipeline.evaluate.run import evaluate as run_all

    usage.check_eval(usage.given(context))
    if readme is not None:
        write_readme(readme, into)
        return
    if make is not None:
        make_set(make, at, out)
        return
    # an option takes one value: further files behind --compare arrive among the data sets
    names = list(datasets or [])
    files = [*(compare or []), *(n for n in names if compare and n.endswith(".toml"))]
    names = [n for n in names if n not in files]
    chosen = configurations.gather(
        preset=preset, sets=sets or (), files=files, baselines=baseline or ()
    )
    found = load_all(names, split, sample)
    for one in found:
        for note in one.notes:
            typer.echo(f"{one.name}: {note}", err=True)
    if html is not None:
        usage.must_be_writable(html)
    with planned(cache, k=k, n_answers=answers, fresh=fresh) as plan:
        results = run_all(found, chosen, plan)
        typer.echo(report.spent(results), err=True)
        findings: list[dict[str, Any]] = []
        if diagnose:
            from foveate.pipeline.evaluate.diagnose import diagnose_once

            findings = [d for one in found for d in diagnose_once(one, chosen[0], plan)]
    if html is not None:
        from foveate.pipeline.evaluate.page import page

        Path(html).write_text(page(results, findings), encoding="utf-8")
        typer.echo(f"report: {html}", err=True)
    if as_json:
        record = report.summary(results, findings)
        if not per_query:
            kept = [{n: v for n, v in r.items() if n not in LARGE} for r in record["results"]]
            record["results"] = kept
        typer.echo(json.dumps(record, ensure_ascii=False, indent=1))
    else:
        report.print_tables(results, findings)


def bench(
    context: typer.Context,
    operations: Annotated[
        list[str] | None, typer.Argument(metavar="[OPERATION]...", help="None: all there are.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Timed rounds.", min=1)] = 7,
    n: Annotated[
        int, typer.Option("-n", "--n", help="Texts or passages; not of kernels, size.", min=10)
    ] = 500,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Of `size`: e.g. 1000,10000,100000.")
    ] = None,
    of: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of rerank, compress, kernels: only these; may repeat."),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Time named peers that are installed.")] = True,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Append the rows.")] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write the plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time each stage and each kernel against named peers, in interleaved rounds.

    Operations: encode, index, search, rerank, compress, kernels, size.
    """
    from foveate.pipeline.evaluate import bench as benchmarks
    from foveate.pipeline.evaluate import usage
    from foveate.pipeline.evaluate.timing import append_csv

    names = benchmarks.choose(operations or (), of or ())
    usage.check_bench(usage.given(context), names, benchmarks.TAKERS)
    if html is not None:
        usage.must_be_writable(html)
    if csv is not None:
        usage.must_be_writable(csv, makes_folders=True)

    def keep(rows: list[dict[str, Any]]) -> None:
        if csv is not None:
            append_csv(csv, rows)
        if not as_json:
            benchmarks.print_rows(rows)

    options = benchmarks.Options(
        rounds=rounds,
        n=n,
        sizes=tuple(usage.counts(sizes)),
        peers=peers,
        of=tuple(of or ()),
        announce=lambda text: typer.echo(text, err=True),
        each=keep,
    )
    rows = benchmarks.run(names, options)
    if html is not None:
        Path(html).write_text(benchmarks.page(rows), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(rows, indent=1))


def write_readme(file: str, into: str | None) -> None:
    """Print a report's tables, or put them into a file."""
    from foveate.pipeline.evaluate import markdown

    table = markdown.readme_table(markdown.read_report(Path(file)))
    if into is None:
        typer.echo(table, nl=False)
    else:
        markdown.write_between(Path(into), table)
        typer.echo(f"wrote {into}", err=True)


def make_set(n: int, at: str | None, out: str) -> None:
    """Write a synthetic data set from an index; exit 1 if no question came of it."""
    import foveate
    from foveate.pipeline.evaluate.synthetic import make_queries
    from foveate.pipeline.terminal import number, progress_bars

    with foveate.open(at) as engine, progress_bars() as tell:
        tally = make_queries(engine, n, Path(out), tell=tell)
    drafts = tally.told()
    if not tally.kept:
        typer.echo(f"no question was kept: {drafts}; a larger reader writes better ones", err=True)
        raise typer.Exit(1)
    typer.echo(f"{out}: {number(tally.kept, 'synthetic question')}; {drafts}")


def load_all(names: list[str], split: str | None, sample: int | None) -> list[Dataset]:
    """Load what is named, or everything below FOVEATE_EVAL_DATA.

    Raises:
        DatasetError: if nothing is named and the variable is not set, or what is named cannot be
            loaded.
    """
    from foveate.pipeline.evaluate import datasets as sets

    root = os.environ.get(sets.DATA_VARIABLE)
    if not names and not root:
        raise sets.DatasetError(
            f"name a data set, or set {sets.DATA_VARIABLE} to a folder of data sets"
        )
    # one that is named twice, by whatever paths, is measured once
    once = {(os.path.realpath(n) if os.path.exists(n) else n): n for n in names or [str(root)]}
    found = [d for name in once.values() for d in sets.load(name, split=split)]
    if split is not None and not any(map(sets.has_splits, found)):
        named = ", ".join(once.values())
        raise sets.DatasetError(f"--split is of sets with qrels/*.tsv: {named} has none")
    called = Counter(d.name for d in found)
    if twice := next((name for name, n in called.items() if n > 1), None):
        raise sets.DatasetError(
            f"two sets are called {twice!r}: rename a folder, their figures could not be told apart"
        )
    return [sets.sample(d, sample) for d in found]


@contextmanager
def planned(cache: str | None, **options: Any) -> Iterator[Plan]:
    """Give a plan whose progress is drawn on a terminal and told line by line in a pipe."""
    from foveate.pipeline.evaluate.corpora import cache_folder
    from foveate.pipeline.evaluate.searching import Plan
    from foveate.pipeline.terminal import progress_bars

    with progress_bars() as tell:
        yield Plan(
            cache_folder(cache),
            tell=tell,
            announce=lambda text: typer.echo(text, err=True),
            **options,
        )
