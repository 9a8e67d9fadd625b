"""The HTML report: one file with its style and plots inside, no script and no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from foveate.pipeline.evaluate import compare, plots
from foveate.pipeline.evaluate.report import (
    SECTIONS,
    Result,
    comparisons,
    groups,
    main_measure,
    per_query_differences,
    sentence,
    table_rows,
)
from foveate.pipeline.terminal import number

MANY = 12  # columns that need smaller letters


def page(results: Sequence[Result], diagnoses: Sequence[Mapping[str, Any]]) -> str:
    """Return the HTML report: one file, style and plots inside, no script and no network."""
    style = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    parts = [_headline(results)]
    for section in SECTIONS:
        headings, rows = table_rows(results, section)
        if rows:
            parts.append(
                f"<h2>{escape(section.capitalize())}</h2>{_table(section, headings, rows)}"
            )
    made = comparisons(results)
    if made:
        items = "".join(f"<li>{escape(sentence(c))}</li>" for c in made)
        parts.append(
            "<h2>Is it luck?</h2><p>Paired randomisation test, 10,000 draws, Holm-corrected "
            f"within a data set; bootstrap intervals of 95%.</p><ul>{items}</ul>"
        )
    if diagnoses:
        parts.append(_diagnoses(diagnoses))
    parts.extend(_section(name, some) for name, some in groups(results).items())
    parts.append(_footer(results))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>foveate evaluation</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _headline(results: Sequence[Result]) -> str:
    n = len(groups(results))
    names = list(dict.fromkeys(str(r["configuration"]) for r in results))
    shown = ", ".join(f"<b>{escape(name)}</b>" for name in names)
    return (
        "<h1>foveate evaluation</h1>"
        f"<p>{number(n, 'task')} under {shown or 'no configuration'}.</p>"
    )


def _diagnoses(diagnoses: Sequence[Mapping[str, Any]]) -> str:
    """Return the findings by data set; one that is the same for all stands once."""
    by_set: dict[str, list[Mapping[str, Any]]] = {}
    for d in diagnoses:
        by_set.setdefault(str(d["dataset"]), []).append(d)
    told = Counter((d["name"], d["says"]) for d in diagnoses)
    shared = {key for key, n in told.items() if n == len(by_set) > 1}
    parts = ["<h2>Diagnosis</h2>"]
    for name, found in by_set.items():
        own = [d for d in found if (d["name"], d["says"]) not in shared]
        parts.append(f"<h3>{escape(name)}</h3>{_cards(own)}")
    if shared:
        some = next(iter(by_set.values()))
        same = [d for d in some if (d["name"], d["says"]) in shared]
        parts.append(f"<h3>the same for every data set</h3>{_cards(same)}")
    return "".join(parts)


def _cards(diagnoses: Sequence[Mapping[str, Any]]) -> str:
    cards = []
    for d in sorted(diagnoses, key=lambda d: bool(d.get("series"))):  # the tall ones last
        points = d.get("series") or {}
        plot = plots.lines(points, label=d["name"]) if points else ""
        cards.append(
            f'<article class="card {escape(d["state"])}"><h4>{escape(d["name"])}'
            f"<em>{escape(d['state'])}</em></h4><p>{escape(d['says'])}</p>"
            f"<p class=quiet>{escape(d['threshold'])}</p>{plot}</article>"
        )
    return f"<div class=cards>{''.join(cards)}</div>"


def _section(name: str, some: Sequence[Result]) -> str:
    measure = main_measure(some[0])
    rows = [
        (
            str(r["configuration"]),
            float(r["measures"][measure]),
            (float(r["intervals"][measure][0]), float(r["intervals"][measure][1])),
        )
        for r in some
        if measure in r["measures"]
    ]
    parts = [f"<h2>{escape(name)}</h2>"]
    notes = list(dict.fromkeys(n for r in some for n in r["notes"]))
    if notes:
        parts.append(f"<p class=quiet>{escape('; '.join(notes))}</p>")
    parts.append(_figure(f"{measure}, with its 95% interval", plots.dots(rows, label=measure)))
    searched = [(str(r["configuration"]), _stage_ms(r)) for r in some if r["times"].get("search")]
    if searched:
        plot = plots.bars(searched, label="milliseconds a query", unit="ms")
        told = "Median time of a query (ms/query in the table), shared out by its stages' medians"
        parts.append(_figure(told, plot))
    built = [(str(r["configuration"]), _index_seconds(r)) for r in some if r["times"].get("index")]
    if built:
        plot = plots.bars(built, label="seconds of indexing", unit="s")
        parts.append(_figure(f"Indexing by stage{_memory(some)}", plot))
    for other in some[1:]:
        parts.append(_differences(some[0], other))
    return f"<section>{''.join(parts)}</section>"


def _differences(base: Result, other: Result) -> str:
    measure = main_measure(base)
    if measure not in other["per_query"]:
        return ""
    values = compare.differences(base["per_query"][measure], other["per_query"][measure])
    moved = [d for _, d in values if abs(d) > 1e-9]
    if not moved:
        return f"<p>{escape(other['configuration'])}: no query differs.</p>"
    which = "query that differs" if len(moved) == 1 else f"{len(moved)} queries that differ"
    title = (
        f"{other['configuration']} against {base['configuration']}: {measure} of the {which}, "
        f"of {len(values)}"
    )
    named = per_query_differences(base, other, measure)
    columns = "".join(
        f"<div><h4>{word}</h4><ul>"
        + "".join(f"<li><b>{d:+.2f}</b> {escape(_cut(q))}</li>" for q, d in named[key])
        + "</ul></div>"
        for word, key in (("Lost most", "lost"), ("Won most", "won"))
        if named[key]
    )
    plot = plots.differences(moved, label=title)
    return f"{_figure(title, plot)}<div class=columns>{columns}</div>"


def _figure(caption: str, body: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{body}</figure>"


def _table(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    kind = " class=many" if len(headings) > MANY else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    # a region that scrolls is reached by the keyboard too
    around = f'class=wide tabindex=0 role=region aria-label="{escape(label)}"'
    return f"<div {around}><table{kind}>{inside}</table></div>"


def _stage_ms(result: Result) -> dict[str, float]:
    """Return {stage: ms}: the stages' medians, scaled so that they add up to the whole's median."""
    medians = {s: float(v["median_ms"]) for s, v in result["times"]["search"].items()}
    total = medians.pop("total", None)
    known = sum(medians.values())
    # medians do not add up, and the number beside a bar must be the table's
    scale = total / known if total is not None and known else 1.0
    return {stage: scale * ms for stage, ms in medians.items()}


def _index_seconds(result: Result) -> dict[str, float]:
    return {k: float(v) for k, v in result["times"]["index"]["stages"].items()}


def _memory(some: Sequence[Result]) -> str:
    found = [r["times"]["memory_peak"] for r in some if r["times"].get("memory_peak")]
    if not found:
        return ""
    disk = next(r["times"]["index"]["bytes_on_disk"] for r in some if r["times"].get("index"))
    return f"; at most {max(found) / 2**20:.0f} MiB of memory, {disk / 2**20:.1f} MiB on disk"


def _footer(results: Sequence[Result]) -> str:
    if not results:
        return ""
    last = results[-1]
    known = {**last["hardware"], **last["versions"]}
    items = ", ".join(f"{escape(k)} {escape(str(v))}" for k, v in known.items())
    return f"<footer><p>Made {escape(last['made'])} on {items}.</p></footer>"


def _cut(text: str, n_chars: int = 120) -> str:
    return text if len(text) <= n_chars else text[: n_chars - 1] + "\u2026"
