"""What became of files since they were indexed, told without opening them."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import FoveateError
from foveate.pipeline.ingest import walk
from foveate.pipeline.types import AddReport, FileRecord, Note

if TYPE_CHECKING:
    from foveate.pipeline.ingest.options import IngestOptions

NOTEWORTHY = frozenset({"skipped", "failed", "empty", "truncated", "guessed"})
# a file of these kinds of state is read again only when it has changed
DONE = ("indexed", "empty")
_SETTING = re.compile(r"ingest\.(\w+) = ('[^']*'|[\w.]+)")


def is_noteworthy(record: FileRecord) -> bool:
    """Tell whether a file was not indexed whole and as it said it was."""
    return record.state != "indexed" or any(note.kind in NOTEWORTHY for note in record.notes)


def existing(paths: Sequence[str | os.PathLike[str]], *, allow_missing: bool = False) -> list[str]:
    """Return absolute paths.

    Raises:
        FoveateError: if one is not there.
    """
    if not paths:
        raise FoveateError("nothing to index: name a file or a folder")
    roots = []
    for path in paths:
        name = os.path.abspath(os.path.expanduser(os.fsdecode(path)))
        if not allow_missing and not os.path.lexists(name):
            raise FoveateError(f"no file or folder {os.fsdecode(path)!r}")
        roots.append(name)
    return roots


def is_gone(path: str) -> bool:
    """Tell whether there is no file at a path: surely nothing, or a folder.

    A path that may not be looked at, as below an unreadable folder, is not gone.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        # a broken link is there, though nothing is behind it
        return not os.path.islink(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode)


def is_respelled(path: str, now: str | None) -> bool:
    """Tell whether a file goes by another spelling now, on a disk that takes both for one name."""
    if now is None or now == path:
        return False
    try:
        same = os.path.samefile(path, now)
        return same and os.path.basename(path) not in os.listdir(os.path.dirname(path))
    except OSError:
        return False


def folded(path: str) -> str:
    """Return what two spellings of a name share: case and accents' forms set aside."""
    return unicodedata.normalize("NFC", path).casefold()


def vanished(records: Iterable[FileRecord], seen: Collection[str]) -> Iterator[FileRecord]:
    """Yield the records of files that are there no more. seen: paths that are."""
    spelled = {folded(path): path for path in seen}
    for record in records:
        path = record.path
        if path not in seen and (is_gone(path) or is_respelled(path, spelled.get(folded(path)))):
            yield record


def folders_of(paths: Iterable[str], roots: Sequence[str]) -> set[str]:
    """Return every folder between the paths and the roots they were found below, roots too."""
    folders: set[str] = set()
    tops = {os.path.dirname(root) for root in roots}
    for path in paths:
        folder = os.path.dirname(path)
        while folder not in folders and folder not in tops and folder != os.path.dirname(folder):
            folders.add(folder)
            folder = os.path.dirname(folder)
    return folders


def is_limited(notes: Iterable[Note], ingest: IngestOptions) -> bool:
    """Tell whether a note names a setting that cut a file short and has another value now."""
    for note in notes:
        for name, value in _SETTING.findall(note.message):
            now = getattr(ingest, name, None)
            if now is not None and value not in (str(now), repr(now)):
                return True
    return False


def plan(
    index: Any,
    paths: Sequence[str | os.PathLike[str]],
    ingest: IngestOptions,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    prune: bool = False,
    refresh: bool = False,
) -> AddReport:
    """Say what `add` would do, from names, sizes and times alone; nothing is opened or written.

    A file that is to be read counts as added or changed, whatever its reading will bring.
    """
    report = AddReport()
    known = {record.path: record for record in index.files()}
    roots = existing(paths, allow_missing=prune)
    seen = set()
    for item in walk.walk(
        [r for r in roots if os.path.lexists(r)], include=include, exclude=exclude
    ):
        report.n_seen += 1
        seen.add(item.path)
        _foresee(report, item, known.get(item.path), ingest, refresh=refresh)
    gone = {f for f in folders_of(seen, roots) if f in known and f not in seen}
    if prune:
        below = tuple(os.path.join(root, "") for root in roots)
        inside = [r for p, r in known.items() if p in roots or p.startswith(below)]
        gone |= {record.path for record in vanished(inside, seen)}
    report.n_removed = len(gone)
    return report


def _foresee(
    report: AddReport,
    item: walk.Found,
    record: FileRecord | None,
    ingest: IngestOptions,
    *,
    refresh: bool,
) -> None:
    """Count one file as what it would become."""
    same = record is not None and (record.size, record.mtime_ns) == (item.size, item.mtime_ns)
    if item.note is not None:
        report.n_skipped += 1
        new = FileRecord(item.path, item.size, item.mtime_ns, None, "skipped", (item.note,))
        report.problems.append(new)
    elif record is not None and same and record.state == "failed":
        # it is tried again, and most fail again
        report.n_failed += 1
        report.problems.append(record)
    elif (
        record is not None
        and same
        and record.state in DONE
        and not refresh
        and not is_limited(record.notes, ingest)
    ):
        report.n_unchanged += 1
        if is_noteworthy(record):
            report.problems.append(record)
    elif not item.size:
        report.n_empty += 1
        note = Note("empty", "the file is empty")
        new = FileRecord(item.path, item.size, item.mtime_ns, None, "empty", (note,))
        report.problems.append(new)
    elif record is not None and record.state == "indexed":
        report.n_changed += 1
    else:
        report.n_added += 1
