"""Results for people: tables for a terminal and for Markdown, comparisons, differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foveate.pipeline.evaluate import compare, plots
from foveate.pipeline.terminal import number as counted

Result = Mapping[str, Any]

RANKED = ("nDCG@10", "R@1", "R@5", "R@10", "R@100", "AP", "RR@10")
# a table: its heading, the kind of task, the measures, the times
SECTIONS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "retrieval": ("retrieval", RANKED, ("ms/query",)),
    "text to image": ("text to image", RANKED, ("ms/query",)),
    "image to text": ("image to text", RANKED, ("ms/query",)),
    "questions: what is found": (
        "questions",
        (
            *("gold R@1", "gold R@2", "gold R@5", "gold R@10"),
            *("tokens kept", "answer kept", "gold kept", "gold place", "over budget"),
        ),
        ("ms/query", "ms/compress"),
    ),
    "questions: what is answered": (
        "questions",
        (
            *("contains", "token F1", "words", "tokens", "yes/no right", "repeats a falsehood"),
            *("tells of a conflict",),
            *("answered", "citation precision", "citation recall"),
            *("refused without evidence", "refused unanswerable"),
        ),
        ("s/answer",),
    ),
}
MAIN = {"questions": "gold R@2"}
COMPARED = {"questions": ("gold R@2", "contains")}
UNBOUNDED = ("words", "tokens")


def main_measure(result: Result) -> str:
    return MAIN.get(str(result["task"]), "nDCG@10")


def groups(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return {data set: its results}, in the order in which they came."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(str(result["dataset"]), []).append(result)
    return found


def comparisons(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Compare each configuration with the first one of its data set, on the measures that count.

    p values are corrected within a data set (Holm).
    """
    found = []
    for name, some in groups(results).items():
        base = some[0]
        rows = [
            (
                other,
                measure,
                compare.compare(base["per_query"][measure], other["per_query"][measure]),
            )
            for other in some[1:]
            for measure in COMPARED.get(str(base["task"]), ("nDCG@10",))
            if measure in other["per_query"] and measure in base["per_query"]
        ]
        corrected = compare.holm([c.p for _, _, c in rows])
        for (other, measure, made), p in zip(rows, corrected, strict=True):
            found.append(
                {
                    "dataset": name,
                    "measure": measure,
                    "base": base["configuration"],
                    "other": other["configuration"],
                    "difference": made.difference,
                    "interval": list(made.interval),
                    "p": made.p,
                    "p_holm": p,
                    "n": made.n,
                    "n_better": made.n_better,
                    "n_worse": made.n_worse,
                    **per_query_differences(base, other, measure),
                }
            )
    return found


def per_query_differences(
    base: Result, other: Result, measure: str, n: int = 5
) -> dict[str, list[Any]]:
    """Return the n queries that lost and won most: [(query, difference), ...] of each."""
    found = compare.differences(base["per_query"][measure], other["per_query"][measure])
    texts = base.get("queries", {})
    named = [(str(texts.get(q, q)), round(d, 4)) for q, d in found if abs(d) > 1e-9]
    return {
        "lost": [pair for pair in named[:n] if pair[1] < 0],
        "won": [pair for pair in reversed(named[-n:]) if pair[1] > 0],
    }


def summary(results: Sequence[Result], diagnoses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what --json prints: the results as saved, comparisons and diagnoses."""
    return {
        "results": list(results),
        "comparisons": comparisons(results),
        "diagnoses": list(diagnoses),
    }


def table_rows(results: Sequence[Result], section: str) -> tuple[list[str], list[list[str]]]:
    """Return (headings, rows) of one table; measures that nobody has are left out."""
    task, measures, times = SECTIONS[section]
    shown = [m for m in measures if any(m in r["measures"] for r in results if r["task"] == task)]
    some = [r for r in results if r["task"] == task and any(m in r["measures"] for m in shown)]
    told = [t for t in times if any(TIMES[t](r) != "-" for r in some)]
    rows = [
        [
            result["dataset"],
            result["configuration"],
            str(result["n_queries"]),
            *(cell(result["measures"].get(m), m) for m in shown),
            *(TIMES[t](result) for t in told),
        ]
        for result in some
    ]
    return ["data set", "configuration", "queries", *shown, *told], rows


def cell(value: float | None, measure: str) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.1f}" if measure in UNBOUNDED else f"{value:.4f}"


def query_ms(result: Result) -> str:
    total = result["times"].get("search", {}).get("total")
    return plots.plain(total["median_ms"]) if total else "-"


def compress_ms(result: Result) -> str:
    seconds = result["times"].get("compress_median_s")
    return "-" if seconds is None else f"{1000 * seconds:.0f}"


def answer_s(result: Result) -> str:
    seconds = result["times"].get("answer_median_s")
    return "-" if seconds is None else f"{seconds:.2f}"


TIMES = {"ms/query": query_ms, "ms/compress": compress_ms, "s/answer": answer_s}


def spent(results: Sequence[Result]) -> str:
    """Say what all results took, those kept from before as they took then."""
    # both directions of a picture set share one run
    pairs = {(r["times"]["total_s"], r["times"].get("cpu_s", 0.0)) for r in results}
    wall, cpu = (sum(pair[i] for pair in pairs) / 60 for i in (0, 1))
    made = counted(len(results), "result")
    return f"{made} took {wall:.1f} min when made, {cpu:.1f} min of processor time"


def print_tables(results: Sequence[Result], diagnoses: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables to standard output; in a pipe they are as wide as they need to be."""
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 220)
    for section in SECTIONS:
        headings, rows = table_rows(results, section)
        if not rows:
            continue
        table = Table(title=section, title_justify="left", box=None)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    for made in comparisons(results):
        console.print(sentence(made), highlight=False, markup=False)
    colours = {"green": "green", "amber": "yellow", "red": "red", "grey": "dim"}
    for diagnosis in diagnoses:
        state = diagnosis["state"]
        console.print(f"[{colours[state]}]{state:>5}[/] ", end="")
        console.print(
            f"{diagnosis['name']}: {diagnosis['says']} ({diagnosis['threshold']})",
            highlight=False,
            markup=False,
        )


def sentence(made: Mapping[str, Any]) -> str:
    """Say one comparison in words."""
    low, high = made["interval"]
    sure = "significant" if made["p_holm"] < 0.05 else "not significant"
    return (
        f"{made['dataset']}: {made['other']} against {made['base']}, {made['measure']} "
        f"{made['difference']:+.4f} [{low:+.4f}, {high:+.4f}], p {made['p_holm']:.4f} ({sure}), "
        f"{made['n_better']} better and {made['n_worse']} worse of {made['n']}"
    )
