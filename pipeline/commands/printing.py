"""What a person reads of a report, a status, the models and the settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.types import AddReport


def report_record(report: AddReport) -> dict[str, Any]:
    from foveate.pipeline import records

    found = report.as_dict()
    found["problems"] = records.files(report.problems)
    return found


def print_report(report: AddReport, place: str, *, dry_run: bool) -> None:
    """Print counts, then one line for each file that a person should know about."""
    from foveate.pipeline import terminal

    for file in report.problems:
        print(terminal.note_line(file.path, file.notes, file.state))
    names = ("added", "changed", "unchanged", "moved", "removed", "empty", "skipped", "failed")
    counts = [(getattr(report, f"n_{name}"), name) for name in names]
    told = ", ".join(f"{n} {name}" for n, name in counts if n) or "nothing to do"
    seen = terminal.number(report.n_seen, "file")
    print(f"{'would be: ' if dry_run else ''}{seen} seen: {told}")
    if not dry_run:
        sources = terminal.number(report.n_sources, "source")
        passages = terminal.number(report.n_passages, "passage")
        print(
            f"{sources} and {passages} written, "
            f"{report.n_encoded} encoded, in {report.seconds:.1f} s"
        )
        for sentence in report.warnings:
            print(f"warning: {sentence}")
        print(f"index: {terminal.short_path(place)}")


def print_status(found: dict[str, Any]) -> None:
    """Print what an index holds as a person reads it; `--json` has the rest."""
    from foveate.pipeline import terminal

    def counts(table: dict[str, int]) -> str:
        return ", ".join(f"{n} {terminal.printable(str(name))}" for name, n in table.items())

    parts = found["bytes"]
    sizes = ", ".join(
        f"{k} {terminal.size_text(n)}" for k, n in parts.items() if n and k != "total"
    )
    print(f"index: {terminal.short_path(found['index'])}")
    print(f"size: {terminal.size_text(parts['total'])} ({sizes})")
    print(f"files: {counts(found['states']) or 'none'}")
    if found["partial_files"]:
        print(f"not finished: {found['partial_files']}; `foveate index` goes on with them")
    if found["removed_not_erased"]:
        print(f"removed, still on disk: {found['removed_not_erased']}; see `foveate compact`")
    print(f"sources: {found['sources']}")
    print(f"passages: {found['passages']}", end="")
    print(f" ({counts(found['modalities'])})" if found["modalities"] else "")
    for name in ("types", "languages"):
        if found[name]:
            print(f"{name}: {counts(found[name])}")
    for name, tower in found["towers"].items():
        print(f"{name} tower: {terminal.printable(str(tower['tower']))}")
        recall = tower.get("recall_at_10")
        told = "" if recall is None else f", recall {recall:.3f} of exact search's first 10"
        vectors = terminal.number(tower["vectors"], "vector")
        print(f"  {vectors} of {tower['dim']}, {tower['kind']}{told}")
        if tower.get("note"):
            print(f"  {terminal.printable(str(tower['note']))}")


def print_table(values: dict[str, Any], indent: int = 0) -> None:
    """Print nested settings, one value a line."""
    from foveate.pipeline.terminal import printable

    for key, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{' ' * indent}{printable(str(key))}:")
            print_table(value, indent + 2)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            shown = "none" if shown in (None, "", {}) else shown
            shown = ("no", "yes")[shown] if isinstance(shown, bool) else shown
            print(f"{' ' * indent}{printable(str(key))}: {printable(str(shown))}")


def print_models(found: Sequence[dict[str, Any]]) -> None:
    from foveate.pipeline.terminal import printable, size_text

    for model in found:
        where = "not installed: foveate models install " + model["name"]
        if model["path"]:
            where = f"{model['version']}, {size_text(model['size'])}, {printable(model['path'])}"
        print(f"{model['name']:<8} {model['role']} ({model['licence']}): {where}")


def folder_bytes(path: str) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )
