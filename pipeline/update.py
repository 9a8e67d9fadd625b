"""Bring an index up to date with files: walk, read, chunk, encode, write.

Files go through in groups; each group is one commit, so that a run that is killed loses at most
the group in hand and the next run goes on from there. Nothing that is unchanged is read, and
nothing whose vector is known is encoded.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import FoveateError, LoadError
from foveate.pipeline.ingest import chunk, options, read, walk
from foveate.pipeline.types import AddReport, Document, Draft, FileRecord, Note

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Encoder, Progress
    from foveate.pipeline.types import FileState

LABEL = re.compile(r"[0-9a-f]{12}:\d+|\d+")
GROUP_PASSAGES = 1024
GROUP_BYTES = 64 << 20
GROUP_SECONDS = 20.0


@dataclass(slots=True)
class Group:
    """What is read but not yet written."""

    entries: list[tuple[str, Document, list[Draft]]] = field(default_factory=list)
    ends: list[tuple[str, FileState, tuple[Note, ...]]] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    n_passages: int = 0
    n_bytes: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def full(self) -> bool:
        return (
            self.n_passages >= GROUP_PASSAGES
            or self.n_bytes >= GROUP_BYTES
            or (bool(self.entries) and time.monotonic() - self.started >= GROUP_SECONDS)
        )


class Update:
    """One run of `add` over some paths."""

    def __init__(
        self,
        writer: Any,
        encoders: Mapping[str, Encoder],
        ingest: options.IngestOptions,
        *,
        progress: Progress | None = None,
        refresh: bool = False,
    ) -> None:
        self._writer = writer
        self._encoders = encoders
        self._ingest = ingest
        self._progress = progress or (lambda stage, done, total: None)
        self._refresh = refresh
        self._group = Group()
        self.report = AddReport()

    def run(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        prune: bool = False,
    ) -> AddReport:
        """Index what is new or changed below some paths.

        Raises:
            FoveateError: for a path that is not there.
        """
        started = time.monotonic()
        roots = existing(paths, allow_missing=prune)
        found = []
        for item in walk.walk(
            [r for r in roots if os.path.lexists(r)], include=include, exclude=exclude
        ):
            found.append(item)
            self._progress("scan", len(found), None)
        seen = {item.path for item in found}
        for n_done, item in enumerate(found):
            self._progress("read", n_done, len(found))
            self._take(item)
            if self._group.full:
                self._flush()
        self._flush()
        self._progress("read", len(found), len(found))
        if prune:
            self._prune(roots, seen)
        self._writer.commit()
        self.report.seconds = time.monotonic() - started
        return self.report

    def _take(self, item: walk.Found) -> None:
        self.report.n_seen += 1
        known = self._writer.file(item.path)
        if item.note is not None:
            self._refuse(item, (item.note,), "skipped")
            return
        done = known is not None and known.state in ("indexed", "empty")
        unchanged = done and (known.size, known.mtime_ns) == (item.size, item.mtime_ns)
        if unchanged and not self._refresh:
            self.report.n_unchanged += 1
            return
        try:
            digest = digest_of(item.path)
        except LoadError as error:
            self._refuse(item, (Note("failed", str(error)),), "failed")
            return
        if done and known.digest == digest and not self._refresh:
            self._writer.touch(item.path, item.size, item.mtime_ns)
            self.report.n_unchanged += 1
            return
        if not self._refresh and self._copy(item, digest):
            return
        self._read(item, digest, known)

    def _copy(self, item: walk.Found, digest: str) -> bool:
        """Link a file whose bytes are already indexed under another path."""
        twins = [path for path in self._writer.by_digest(digest) if path != item.path]
        if not twins:
            return False
        gone = [path for path in twins if not os.path.lexists(path)]
        self._writer.copy_file(item.path, item.size, item.mtime_ns, twins[0])
        if gone:
            self._writer.remove(gone[0])
            self.report.n_moved += 1
        else:
            self.report.n_added += 1
        return True

    def _read(self, item: walk.Found, digest: str, known: FileRecord | None) -> None:
        self._writer.begin(item.path, item.size, item.mtime_ns, digest)
        notes: list[Note] = []
        state: FileState = "indexed"
        n_passages = 0
        try:
            for document in read.read(item.path, self._ingest):
                n_passages += self._hold(item.path, document)
                notes += document.notes
                if self._group.full:
                    self._flush()
        except (LoadError, OSError, MemoryError) as error:
            state, why = "failed", str(error) or type(error).__name__
            notes.append(Note("failed", why))
        except FoveateError:
            raise
        except Exception as error:  # one bad file never stops the rest; it is reported
            state = "failed"
            notes.append(Note("failed", f"{type(error).__name__}: {error}"))
        if state == "indexed" and n_passages == 0:
            state = "empty"
            if not notes:
                notes.append(Note("empty", "there is no text and no picture in it"))
        self._group.ends.append((item.path, state, tuple(notes)))
        self._count(item, state, known, tuple(notes), digest)

    def _hold(self, path: str, document: Document) -> int:
        """Put one document into the group; return its number of passages."""
        if document.source_id in self._group.sources:
            self._flush()
        if not self._refresh and self._writer.has_source(document.source_id):
            self._writer.link(path, document.source_id, document.row)
            return 1
        text = self._encoders["text"]
        drafts = chunk.chunk(
            document,
            text.token_spans,
            chunk_tokens=self._ingest.chunk_tokens,
            overlap_tokens=self._ingest.overlap_tokens,
            context_tokens=self._ingest.context_tokens,
        )
        if not drafts:
            return 0
        group = self._group
        if not group.entries:
            group.started = time.monotonic()
        group.entries.append((path, document, drafts))
        group.sources.add(document.source_id)
        group.n_passages += len(drafts)
        group.n_bytes += 4 * len(document.text) + sum(
            3 * d.image.width * d.image.height for d in drafts if d.image is not None
        )
        return len(drafts)

    def _flush(self) -> None:
        """Encode and write the group, then commit it."""
        group, self._group = self._group, Group()
        if not group.entries and not group.ends:
            return
        drafts = [draft for _, _, some in group.entries for draft in some]
        keys = [key_of(draft) for draft in drafts]
        vectors = {role: self._vectors(role, drafts, keys) for role in self._encoders}
        start = 0
        for path, document, some in group.entries:
            end = start + len(some)
            self._writer.add(
                path,
                document,
                some,
                {role: _slice(rows, array, start, end) for role, (rows, array) in vectors.items()},
                keys[start:end],
            )
            self.report.n_sources += 1
            self.report.n_passages += len(some)
            start = end
        for path, state, notes in group.ends:
            self._writer.finish(path, state, notes)
        self._progress("write", self.report.n_passages, None)
        self._writer.commit()

    def _vectors(
        self, role: str, drafts: Sequence[Draft], keys: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return (rows into drafts, their vectors): known ones reused, the rest encoded."""
        import numpy as np

        encoder = self._encoders[role]
        wanted = [i for i, d in enumerate(drafts) if (d.image is not None) == (role == "image")]
        known = self._writer.vectors_for([keys[i] for i in wanted], role)
        fresh: dict[str, int] = {}
        for i in wanted:
            if keys[i] not in known:
                fresh.setdefault(keys[i], i)
        inputs: list[Any] = [
            drafts[i].image if role == "image" else drafts[i].encoded for i in fresh.values()
        ]
        if inputs:
            made = encoder.encode(
                inputs, progress=lambda n: self._progress("encode", n, len(inputs))
            )
            known = {**known, **dict(zip(fresh, made, strict=True))}
            self.report.n_encoded += len(inputs)
        array = np.empty((len(wanted), encoder.dim), dtype=np.float32)
        for row, i in enumerate(wanted):
            array[row] = known[keys[i]]
        return np.asarray(wanted, dtype=np.int64), array

    def _refuse(self, item: walk.Found, notes: tuple[Note, ...], state: FileState) -> None:
        self._writer.skip(item.path, item.size, item.mtime_ns, notes, state)
        self._count(item, state, None, notes, None)

    def _count(
        self,
        item: walk.Found,
        state: FileState,
        known: FileRecord | None,
        notes: tuple[Note, ...],
        digest: str | None,
    ) -> None:
        report = self.report
        if state == "indexed":
            if known is not None and known.state == "indexed":
                report.n_changed += 1
            else:
                report.n_added += 1
        else:
            name = f"n_{state}"
            setattr(report, name, getattr(report, name) + 1)
        if state != "indexed" or any(n.kind not in ("info", "ocr") for n in notes):
            report.problems.append(
                FileRecord(item.path, item.size, item.mtime_ns, digest, state, notes)
            )

    def _prune(self, roots: Sequence[str], seen: set[str]) -> None:
        """Remove files that are gone from below the roots."""
        for root in roots:
            for record in list(self._writer.files_under(root)):
                if record.path not in seen and not os.path.lexists(record.path):
                    self._writer.remove(record.path)
                    self.report.n_removed += 1


def plan(
    index: Any,
    paths: Sequence[str | os.PathLike[str]],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    prune: bool = False,
) -> AddReport:
    """Say what `add` would do, from names, sizes and times alone; nothing is opened or written."""
    report = AddReport()
    known = {record.path: record for record in index.files()}
    roots = existing(paths, allow_missing=prune)
    seen = set()
    for item in walk.walk(
        [r for r in roots if os.path.lexists(r)], include=include, exclude=exclude
    ):
        report.n_seen += 1
        seen.add(item.path)
        record = known.get(item.path)
        if item.note is not None:
            report.n_skipped += 1
            report.problems.append(
                FileRecord(item.path, item.size, item.mtime_ns, None, "skipped", (item.note,))
            )
        elif record is None:
            report.n_added += 1
        elif (record.size, record.mtime_ns) == (item.size, item.mtime_ns):
            report.n_unchanged += 1
        else:
            report.n_changed += 1
    if prune:
        below = tuple(os.path.join(r, "") for r in roots)
        report.n_removed = sum(
            1
            for path in known
            if path not in seen
            and (path in roots or path.startswith(below))
            and not os.path.lexists(path)
        )
    return report


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


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file's bytes, 64 hex digits.

    Raises:
        LoadError: if it cannot be read.
    """
    digest = hashlib.sha256()
    with options.open_regular(path) as handle:
        try:
            while piece := handle.read(1 << 20):
                digest.update(piece)
        except OSError as error:
            raise LoadError(f"cannot read the file: {error.strerror}") from error
    return digest.hexdigest()


def key_of(draft: Draft) -> str:
    """Return the SHA-256 of what an encoder reads: equal inputs share a vector."""
    if draft.image is None:
        return hashlib.sha256(draft.encoded.encode("utf-8", "surrogatepass")).hexdigest()
    size = f"{draft.image.mode} {draft.image.width} {draft.image.height} "
    return hashlib.sha256(size.encode() + draft.image.tobytes()).hexdigest()


def _slice(
    rows: NDArray[np.int64], array: NDArray[np.float32], start: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    import numpy as np

    low, high = np.searchsorted(rows, [start, end])
    return rows[low:high] - start, array[low:high]


def remove(writer: Any, index: Any, target: str | os.PathLike[str]) -> int:
    """Take a file, everything below a folder, or the files of a labelled source out of the index.

    Returns:
        The number of files removed.

    Raises:
        FoveateError: if the target is not in the index, or is one record of a larger file.
    """
    name = os.fsdecode(target)
    place = os.path.abspath(os.path.expanduser(name))
    paths = [record.path for record in writer.files_under(place)]
    if not paths and LABEL.fullmatch(name):
        passage = index.find(name)
        if passage.locator.row is not None:
            raise FoveateError(
                f"{name!r} is a record of {passage.source.uri!r}: remove it from that file and "
                "index the file again"
            )
        paths = list(passage.source.uris)
    if not paths:
        raise FoveateError(f"{name!r} is not in the index: see `foveate status --files`")
    for path in paths:
        writer.remove(path)
    return len(paths)
