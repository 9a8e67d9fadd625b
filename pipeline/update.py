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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foveate.pipeline import changes
from foveate.pipeline.errors import FoveateError, LoadError
from foveate.pipeline.ingest import chunk, options, read, sniff, walk
from foveate.pipeline.types import (
    AddReport,
    Document,
    Draft,
    FileRecord,
    MultiVectors,
    Note,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Encoder, Progress
    from foveate.pipeline.types import FileState, NoteKind

LABEL = re.compile(r"[0-9a-f]{12}:\d+|\d+")
GROUP_PASSAGES = 1024
GROUP_LINKS = 20_000
GROUP_BYTES = 64 << 20
GROUP_SECONDS = 20.0
# a copy of a file this large waits for the first to be written rather than be read too
COPY_BYTES = 1 << 20
MAX_NOTES = 50


@dataclass(slots=True)
class Group:
    """What is read but not yet written. links: (path, source id, row) of records seen before."""

    entries: list[tuple[str, Document, list[Draft]]] = field(default_factory=list)
    links: list[tuple[str, str, int | None]] = field(default_factory=list)
    ends: list[tuple[str, FileState, tuple[Note, ...]]] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)
    n_passages: int = 0
    n_bytes: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def full(self) -> bool:
        return (
            self.n_passages >= GROUP_PASSAGES
            or len(self.links) >= GROUP_LINKS
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
        roots = changes.existing(paths, allow_missing=prune)
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
        self._clear(roots, seen, prune=prune)
        self._writer.commit()
        self.report.seconds = time.monotonic() - started
        return self.report

    def _take(self, item: walk.Found) -> None:
        self.report.n_seen += 1
        known = self._writer.file(item.path)
        if item.note is not None:
            self._refuse(item, known, item.note, "skipped")
            return
        done = known is not None and known.state in changes.DONE
        again = self._refresh or (done and changes.is_limited(known.notes, self._ingest))
        if done and not again and (known.size, known.mtime_ns) == (item.size, item.mtime_ns):
            self._keep(known)
            return
        try:
            if item.size > self._ingest.max_file_bytes:
                # refused before it is read through, unless its kind is streamed
                read.open_file(item.path, self._ingest)
            digest = digest_of(item.path)
        except LoadError as error:
            self._refuse(item, known, Note("failed", str(error)), "failed")
            return
        if done and not again and known.digest == digest:
            self._writer.touch(item.path, item.size, item.mtime_ns)
            self._keep(known)
            return
        if not again:
            if digest in self._group.digests and item.size > COPY_BYTES:
                self._flush()
            if self._copy(item, digest, known):
                return
        self._read(item, digest, known, again=again)

    def _keep(self, known: FileRecord) -> None:
        """Count a file that is as it was; what was wrong with it still is."""
        self.report.n_unchanged += 1
        if changes.is_noteworthy(known):
            self.report.problems.append(known)

    def _copy(self, item: walk.Found, digest: str, known: FileRecord | None) -> bool:
        """Link a file whose bytes are already indexed under another path."""
        twins = [path for path in self._writer.by_digest(digest) if self._is_twin(path, item.path)]
        if not twins:
            return False
        twin = self._writer.file(twins[0])
        gone = [p for p in twins if changes.is_gone(p) or changes.is_respelled(p, item.path)]
        self._writer.copy_file(item.path, item.size, item.mtime_ns, twins[0])
        if gone:
            self._writer.remove(gone[0])
        self._count(item, twin.state, known, twin.notes, digest, moved=bool(gone))
        return True

    def _is_twin(self, path: str, of: str) -> bool:
        """Tell whether what is known of another file with the same bytes holds for this one."""
        if path == of or self._writer.file(path).state not in changes.DONE:
            return False
        if os.path.splitext(path)[1] == os.path.splitext(of)[1]:
            return True
        # the same bytes under another kind of name may be read in another way
        try:
            kinds = []
            for name in (path, of):
                with options.open_regular(of) as handle:
                    kinds.append(sniff.sniff(name, handle, encoding=self._ingest.encoding))
        except (LoadError, OSError):
            return False
        return kinds[0] == kinds[1]

    def _read(
        self, item: walk.Found, digest: str, known: FileRecord | None, *, again: bool
    ) -> None:
        self._writer.begin(item.path, item.size, item.mtime_ns, digest)
        before = stamp(item.path)
        notes = Notes()
        failures: list[Note] = []
        n_passages = 0
        for document, drafts in self._documents(item.path, failures, again=again):
            notes.add(document)
            n_passages += self._hold(item.path, document, drafts)
            if self._group.full:
                self._flush()
        state: FileState = "failed" if failures else "indexed"
        found = [*notes.all(), *failures]
        if stamp(item.path) != before:
            found.append(Note("guessed", "it changed while it was read: index it again"))
        if state == "indexed" and n_passages == 0:
            state = "empty"
            if not any(note.kind in changes.NOTEWORTHY for note in found):
                found.append(Note("empty", "there is no text and no picture in it"))
        self._group.ends.append((item.path, state, tuple(found)))
        self._group.digests.add(digest)
        self._count(item, state, known, tuple(found), digest)

    def _documents(
        self, path: str, failures: list[Note], *, again: bool
    ) -> Iterator[tuple[Document, list[Draft] | None]]:
        """Yield each document of a file with its passages, None where the index has them.

        What goes wrong in reading it ends the file alone, and is put into `failures`; what goes
        wrong in writing is raised where that is done.
        """
        try:
            for document in read.read(path, self._ingest):
                is_known = document.source_id in self._group.sources or (
                    not again and self._writer.has_source(document.source_id)
                )
                yield document, None if is_known else self._chunk(document)
        except (LoadError, OSError, MemoryError) as error:
            failures.append(Note("failed", str(error) or type(error).__name__))
        except FoveateError:
            raise
        except Exception as error:  # one bad file never stops the rest; it is reported
            failures.append(Note("failed", f"{type(error).__name__}: {error}"))

    def _chunk(self, document: Document) -> list[Draft]:
        return chunk.chunk(
            document,
            self._encoders["text"].token_spans,
            chunk_tokens=self._ingest.chunk_tokens,
            overlap_tokens=self._ingest.overlap_tokens,
            context_tokens=self._ingest.context_tokens,
        )

    def _hold(self, path: str, document: Document, drafts: list[Draft] | None) -> int:
        """Put one document into the group; return its number of passages, 1 if they are known."""
        group = self._group
        if drafts is None:
            group.links.append((path, document.source_id, document.row))
            return 1
        if not drafts:
            return 0
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
        if not group.entries and not group.links and not group.ends:
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
                {
                    role: _slice(rows, array, self._encoders[role].dim, start, end)
                    for role, (rows, array) in vectors.items()
                },
                keys[start:end],
            )
            self.report.n_sources += 1
            self.report.n_passages += len(some)
            start = end
        for path, source_id, row in group.links:
            self._writer.link(path, source_id, row)
        for path, state, notes in group.ends:
            self._writer.finish(path, state, notes)
        self._progress("write", self.report.n_passages, None)
        self._writer.commit()

    def _vectors(
        self, role: str, drafts: Sequence[Draft], keys: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32] | list[NDArray[np.float32]]]:
        """Return (rows into drafts, their vectors): known ones reused, the rest encoded.

        The vectors are (n, d), or of "tokens" (t, d) for each of n.
        """
        import numpy as np

        encoder = self._encoders[role]
        takes = encoder.reads if role == "tokens" else {"image"} if role == "image" else {"text"}
        wanted = [
            i for i, d in enumerate(drafts) if ("text" if d.image is None else "image") in takes
        ]
        known = self._writer.vectors_for([keys[i] for i in wanted], role)
        fresh: dict[str, int] = {}
        for i in wanted:
            if keys[i] not in known:
                fresh.setdefault(keys[i], i)
        inputs: list[Any] = [
            drafts[i].encoded if drafts[i].image is None else drafts[i].image
            for i in fresh.values()
        ]
        if inputs:
            made = encoder.encode(
                inputs, progress=lambda n: self._progress("encode", n, len(inputs))
            )
            known = {**known, **{key: made[row] for row, key in enumerate(fresh)}}
            # one count for all roles that read the same input
            self.report.n_encoded += len(inputs) if role != "tokens" else 0
        if role == "tokens":
            return np.asarray(wanted, dtype=np.int64), [known[keys[i]] for i in wanted]
        array = np.empty((len(wanted), encoder.dim), dtype=np.float32)
        for row, i in enumerate(wanted):
            array[row] = known[keys[i]]
        return np.asarray(wanted, dtype=np.int64), array

    def _refuse(
        self, item: walk.Found, known: FileRecord | None, note: Note, state: FileState
    ) -> None:
        told = (item.size, item.mtime_ns, state, (note,))
        if known is None or (known.size, known.mtime_ns, known.state, known.notes) != told:
            self._writer.skip(item.path, item.size, item.mtime_ns, (note,), state)
        self._count(item, state, None, (note,), None)

    def _count(
        self,
        item: walk.Found,
        state: FileState,
        known: FileRecord | None,
        notes: tuple[Note, ...],
        digest: str | None,
        *,
        moved: bool = False,
    ) -> None:
        report = self.report
        name = f"n_{state}"
        if moved:
            name = "n_moved"
        elif state == "indexed":
            name = "n_changed" if known is not None and known.state == "indexed" else "n_added"
        setattr(report, name, getattr(report, name) + 1)
        record = FileRecord(item.path, item.size, item.mtime_ns, digest, state, notes)
        if changes.is_noteworthy(record):
            report.problems.append(record)

    def _clear(self, roots: Sequence[str], seen: set[str], *, prune: bool) -> None:
        """Remove files in whose place a folder is now; with prune also those that are gone."""
        gone = [f for f in changes.folders_of(seen, roots) if f not in seen]
        gone = [folder for folder in gone if self._writer.file(folder) is not None]
        if prune:
            below = (record for root in roots for record in self._writer.files_under(root))
            gone += [record.path for record in changes.vanished(below, seen)]
        for path in dict.fromkeys(gone):
            self._writer.remove(path)
            self.report.n_removed += 1


class Notes:
    """The notes of a file's documents: of each kind the first few, and how many more."""

    def __init__(self) -> None:
        self._kept: list[Note] = []
        self._counts: Counter[NoteKind] = Counter()

    def add(self, document: Document) -> None:
        for note in document.notes:
            self._counts[note.kind] += 1
            if self._counts[note.kind] > MAX_NOTES:
                continue
            if document.row is not None and note.kind == "empty":
                note = Note("empty", f"row {document.row}: {note.message}")
            self._kept.append(note)

    def all(self) -> list[Note]:
        more = {kind: n - MAX_NOTES for kind, n in self._counts.items() if n > MAX_NOTES}
        return [*self._kept, *(Note(kind, f"{n} more such notes") for kind, n in more.items())]


def stamp(path: str) -> tuple[int, int] | None:
    """Return a file's size and time of change, None if it cannot be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


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
    rows: NDArray[np.int64],
    array: NDArray[np.float32] | list[NDArray[np.float32]],
    dim: int,
    start: int,
    end: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32] | MultiVectors]:
    """Return what of a group's vectors belongs to the drafts from start to end."""
    import numpy as np

    low, high = np.searchsorted(rows, [start, end])
    some = array[low:high]
    if not isinstance(some, list):
        return rows[low:high] - start, some
    offsets = np.concatenate([[0], np.cumsum([len(item) for item in some], dtype=np.int64)])
    flat = np.concatenate([np.empty((0, dim), dtype=np.float32), *some])
    return rows[low:high] - start, MultiVectors(flat, offsets)


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
