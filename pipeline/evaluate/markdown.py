"""A --json report as Markdown tables, printed or put between two marks of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.pipeline.errors import FoveateError
from foveate.pipeline.evaluate.report import UNBOUNDED, Result

START, END = "<!-- eval:start -->", "<!-- eval:end -->"


REPORT = "expected what `foveate eval SET --json > report.json` writes"


def read_report(path: Path) -> dict[str, Any]:
    """Read a --json report.

    Raises:
        FoveateError: for a file that cannot be read, or holds no such report.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FoveateError(
            f"cannot read {str(path)!r} ({str(error.strerror).lower()}): {REPORT}"
        ) from error
    except ValueError as error:
        raise FoveateError(f"{str(path)!r} is not JSON ({error}): {REPORT}") from error
    if not isinstance(record, dict) or not isinstance(record.get("results"), list):
        raise FoveateError(f"{str(path)!r} holds no list 'results': {REPORT}")
    for number, result in enumerate(record["results"], start=1):
        if lacking := _lacking(result):
            raise FoveateError(f"{str(path)!r} result {number} has no usable {lacking!r}: {REPORT}")
    return record


def _lacking(result: Any) -> str | None:
    """Return the first field of a result that the tables need and cannot use."""
    if not isinstance(result, dict):
        return "task"
    kinds = {
        "task": str,
        "dataset": str,
        "configuration": str,
        "n_queries": int,
        "measures": dict,
        "intervals": dict,
    }
    return next(
        (name for name, kind in kinds.items() if not isinstance(result.get(name), kind)), None
    )


def write_between(path: Path, table: str) -> None:
    """Put a table in the place of what stands between the two marks of a file.

    Raises:
        FoveateError: if the file cannot be read, or the marks are not there once each, in order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FoveateError(f"cannot read {str(path)!r}: {error.strerror}") from error
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end or START in rest or END in before + after:
        raise FoveateError(
            f"{str(path)!r} needs the lines {START} and {END}, once each and in this order"
        )
    path.write_text(f"{before}{START}\n\n{table}\n{END}{after}", encoding="utf-8")


def readme_table(report: Mapping[str, Any]) -> str:
    """Return Markdown tables of a --json report: retrieval and pictures, then questions."""
    results = report["results"]
    found = []
    short = {
        "retrieval": ("nDCG@10", "R@1", "R@10", "R@100", "RR@10"),
        "questions": (
            "gold R@2",
            "gold R@5",
            "contains",
            "words",
            "citation precision",
            "citation recall",
            "refused without evidence",
        ),
    }
    for kind, measures in short.items():
        some = [r for r in results if (r["task"] == "questions") == (kind == "questions")]
        shown = [m for m in measures if any(m in r["measures"] for r in some)]
        if not some:
            continue
        found.append("| " + " | ".join(["data set", "run", "queries", *shown]) + " |")
        found.append("| --- | --- |" + " ---: |" * (len(shown) + 1))
        for r in some:
            cells = [interval_cell(r, m) for m in shown]
            names = [_piped(r["dataset"]), _piped(r["configuration"]), str(r["n_queries"])]
            found.append("| " + " | ".join([*names, *cells]) + " |")
        found.append("")
    return "\n".join(found).rstrip() + "\n"


def interval_cell(result: Result, measure: str) -> str:
    """Return a value with half its interval's width where there is one."""
    value = result["measures"].get(measure)
    if value is None or value != value:
        return "-"
    if measure in UNBOUNDED:
        return f"{value:.0f}"
    low, high = result["intervals"].get(measure, (value, value))
    return f"{value:.3f} \u00b1 {(high - low) / 2:.3f}" if high > low else f"{value:.3f}"


def _piped(text: str) -> str:
    return text.replace("|", "\\|")
