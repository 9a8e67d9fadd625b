"""What `foveate bench` times. An operation is checked before it is timed, and says against whom."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from foveate.pipeline.errors import ConfigError, FoveateError, UnknownComponent
from foveate.pipeline.evaluate import peers, plots
from foveate.pipeline.evaluate.timing import Timing, hardware, ratio, versions

# a new operation is one line here and one function: (Options) -> list of rows
OPERATIONS = {
    "encode": "foveate.pipeline.evaluate.benches:encode",
    "index": "foveate.pipeline.evaluate.benches:index",
    "search": "foveate.pipeline.evaluate.benches:search",
    "rerank": "foveate.pipeline.evaluate.stage_benches:rerank",
    "compress": "foveate.pipeline.evaluate.stage_benches:compress",
    "kernels": "foveate.pipeline.evaluate.stage_benches:kernels",
    "size": "foveate.pipeline.evaluate.sizes:size",
}
# what each operation that takes names by `of` calls them
NAMED = {"rerank": "reranker", "compress": "compressor", "kernels": "kernel"}
# which operations take an option of the command line
TAKERS = {
    "n": ("encode", "index", "search", "rerank", "compress"),
    "sizes": ("size",),
}
SHOWN = ("operation", "contender", "n", "median_ms", "spread_ms", "per_s", "ratio", "check")

Row = dict[str, Any]


class BenchError(FoveateError):
    """Two contenders that should agree do not; nothing was timed."""


@dataclass(frozen=True, slots=True)
class Options:
    """n: texts or passages of an operation. sizes: passages of `size`. peers: time them too.

    of: which rerankers, compressors or kernels; none means all that are registered.
    each: is given an operation's rows as soon as it is done, so that a stop keeps them.
    absent: the peers that `has` was asked for and that are not installed.
    """

    rounds: int = 7
    n: int = 500
    sizes: tuple[int, ...] = (1000, 10_000)
    peers: bool = True
    of: tuple[str, ...] = ()
    announce: Callable[[str], None] = field(default=lambda text: None)
    each: Callable[[list[Row]], None] = field(default=lambda rows: None)
    absent: list[str] = field(default_factory=list)

    def has(self, peer: str) -> bool:
        """Say whether a peer is to be timed; one that is wanted and not installed is noted."""
        if not self.peers:
            return False
        there = peers.installed(peer)
        if not there and peer not in self.absent:
            self.absent.append(peer)
        return there


def choose(names: Sequence[str], of: Sequence[str] = ()) -> list[str]:
    """Return the operations to run: those that are named, or all there are.

    of: names of rerankers, compressors or kernels; where no operation is named, those that know
    one of them are run.

    Raises:
        UnknownComponent: for a name that no operation has, or that none of them knows.
        ConfigError: if an operation that is named takes no such names, or none of these.
    """
    for name in names:
        if name not in OPERATIONS:
            raise UnknownComponent("operation", name, OPERATIONS)
    if not of:
        return list(names or OPERATIONS)
    for name in names:
        if name not in NAMED:
            raise ConfigError(f"--of is of {', '.join(NAMED)}: {name} would not look at it")
    known = {name: known_names(name) for name in names or NAMED}
    every = {n for some in known.values() for n in some}
    for name in of:
        if name not in every:
            raise UnknownComponent(" or ".join(NAMED[o] for o in known), name, every)
    chosen = [operation for operation, some in known.items() if set(of) & set(some)]
    for name in names:
        if name not in chosen:
            there = ", ".join(sorted(known[name]))
            raise ConfigError(f"{name} knows no {', '.join(of)}: leave it out (known: {there})")
    return chosen


def known_names(operation: str) -> list[str]:
    """Return the names that an operation takes."""
    from foveate.pipeline import registry

    if operation == "kernels":
        from foveate.pipeline.evaluate.kernel_cases import CASES

        return list(CASES)
    return list(registry.names(NAMED[operation]))


def run(names: Sequence[str], options: Options) -> list[Row]:
    """Run operations by name, all of them for no name; return rows with machine and versions.

    Raises:
        UnknownComponent, ConfigError: for names that `choose` refuses.
        BenchError: if contenders disagree on the answer.
    """
    chosen = choose(names, options.of)
    about = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        **hardware(),
        **versions(),
    }
    rows: list[Row] = []
    for name in chosen:
        options.announce(f"{name} ...")
        module, _, function = OPERATIONS[name].partition(":")
        found = getattr(importlib.import_module(module), function)(options)
        found = [{**row, **about} for row in found]
        options.each(found)
        rows.extend(found)
    if options.absent:
        left_out = ", ".join(options.absent)
        how = peers.install_line(options.absent)
        options.announce(f"peers left out, not installed: {left_out}: {how}")
    return rows


def rows_of(
    operation: str,
    timings: Mapping[str, Timing],
    *,
    n: int,
    check: str,
    items: int = 1,
) -> list[Row]:
    """Make a row of each contender; the first is ours, and ratios say how much longer others take.

    items: what one call handles, for the rate.
    """
    names = list(timings)
    ours = timings[names[0]]
    rows = []
    for name in names:
        timing = timings[name]
        low, high = timing.spread
        row: Row = {
            "operation": operation,
            "contender": name,
            "n": n,
            "rounds": len(timing.seconds),
            "median_ms": 1e3 * timing.median,
            "p20_ms": 1e3 * low,
            "p80_ms": 1e3 * high,
            "per_s": items / timing.median,
            "check": check,
        }
        if name != names[0]:
            middle, low, high = ratio(timing, ours)
            row |= {"ratio": middle, "ratio_p20": low, "ratio_p80": high}
        rows.append(row)
    return rows


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows as a table to standard output."""
    import sys

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for name in SHOWN:
        table.add_column(name.replace("_ms", " ms"), justify="left" if name in
                         ("operation", "contender", "check") else "right")  # fmt: skip
    for row in rows:
        spread = f"{row['p20_ms']:.3g}..{row['p80_ms']:.3g}"
        times = f"{row['ratio']:.2f}x" if "ratio" in row else ""
        table.add_row(
            row["operation"],
            row["contender"],
            str(row["n"]),
            f"{row['median_ms']:.3g}",
            spread,
            f"{row['per_s']:.3g}",
            times,
            row["check"],
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def page(rows: Sequence[Row]) -> str:
    """Return one HTML page: a plot an operation, and cost against size."""
    style = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    parts = ["<h1>foveate benchmark</h1>"]
    for operation in dict.fromkeys(str(r["operation"]) for r in rows):
        some = [r for r in rows if r["operation"] == operation]
        if operation.startswith("size"):
            continue
        bars = [(str(r["contender"]), {"median": float(r["median_ms"])}) for r in some]
        parts.append(f"<h2>{escape(operation)}</h2><p class=quiet>{escape(some[0]['check'])}</p>")
        parts.append(f"<figure>{plots.bars(bars, label=operation, unit='ms')}</figure>")
    parts.extend(_size_plots([r for r in rows if str(r["operation"]).startswith("size")]))
    if rows:
        known = hardware() | versions()
        items = ", ".join(f"{escape(k)} {escape(v)}" for k, v in known.items())
        parts.append(f"<footer><p>{items}</p></footer>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>foveate benchmark</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _size_plots(rows: Sequence[Row]) -> list[str]:
    measures = (
        ("size, dense", "median_ms", "Dense search, 20 queries, median", "ms"),
        ("size, hybrid", "median_ms", "Both lists fused, 20 queries, median", "ms"),
        ("size, words", "median_ms", "Search by words, 20 queries, median", "ms"),
        ("size, dense", "build_s", "Building", "s"),
        ("size, dense", "disk_mib", "On disk", "MiB"),
        ("size, dense", "memory_mib", "Memory of the process", "MiB"),
    )
    parts = ["<h2>Cost against size</h2>"] if rows else []
    for operation, key, title, unit in measures:
        series: dict[str, list[tuple[str, float]]] = {}
        for row in rows:
            if row["operation"] == operation and key in row:
                points = series.setdefault(str(row["contender"]), [])
                points.append((f"{int(row['n']):,}", float(row[key])))
        if series:
            top = max(v for points in series.values() for _, v in points)
            plot = plots.lines(series, label=title, top=top, unit=unit)
            parts.append(f"<figure><figcaption>{title}, {unit}</figcaption>{plot}</figure>")
    return parts
