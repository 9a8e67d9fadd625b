"""The index in a folder: what the engine, and everyone who reads, talks to."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index import filters, quality, reading, report, upkeep
from foveate.index.catalog import (
    FORMAT,
    Catalog,
    create_catalog,
    generation,
    get_meta,
    migrate,
    set_meta,
)
from foveate.index.lexical import Words, WordsWriter
from foveate.index.lock import WriterLock
from foveate.index.neighbours import Plan
from foveate.index.quality import Skipped
from foveate.index.records import unpack_words
from foveate.index.storage import make_folder, sync_folder, writing
from foveate.index.stores import folder_of
from foveate.index.tokens import TokenSnapshot
from foveate.index.towers import Tower
from foveate.index.vectors import Snapshot
from foveate.index.views import Views, parsed
from foveate.index.writer import Writer
from foveate.pipeline.errors import (
    CorruptIndex,
    IndexLocked,
    IndexNotFound,
    IndexWriteError,
    QueryError,
    ShapeError,
    SpaceMismatch,
)
from foveate.pipeline.types import (
    MODALITIES,
    FileRecord,
    MultiVectors,
    Passage,
    Source,
    WordBoxes,
)

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats, Ints

_LOG = logging.getLogger(__name__)
MAX_RESULTS = 100_000

__all__ = ["DiskIndex", "Tower", "Writer"]


class DiskIndex:
    """An index in a folder. Threads may share it; a forked process opens its own handles.

    Every search runs on the newest commit and never waits for a writer.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        self._catalog = Catalog(path / "catalog.sqlite")
        if self._catalog.format < FORMAT:
            with self._locked(0.0), writing(path):
                migrate(self._catalog)
        with self._catalog.reader() as db:
            rows = db.execute("SELECT role, tower, space, dim FROM towers ORDER BY number")
            codes = get_meta(db, "codes", {})
            self.towers: Mapping[str, Tower] = {
                r[0]: Tower(r[0], r[1], r[2], r[3], codes.get(r[0], "")) for r in rows
            }
            self.settings: Mapping[str, Any] = get_meta(db, "settings", {})
            options = {**get_meta(db, "options", {}), **options}
        self.plan = Plan.of(options)
        self._views = Views(path, self._catalog, self.towers, self.plan)
        self.skipped = Skipped(path)
        self._repair()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        towers: Mapping[str, Tower],
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DiskIndex:
        """Make an empty index. It is made aside and renamed, so it is there whole or not at all.

        settings: kept as they are, for whoever opens the index. options: fields of `Plan`.

        Raises:
            IndexWriteError: there is something at the path, or it can't be written.
            ConfigError: an option is unknown or has an unknown value.
        """
        Plan.of(options)
        home = Path(os.path.abspath(os.fspath(path)))
        if home.exists() and not (home.is_dir() and not any(home.iterdir())):
            raise IndexWriteError(f"cannot create an index at {str(home)!r}: something is there")
        aside = home.with_name(f".{home.name[:80]}.{os.getpid()}-{os.urandom(4).hex()}.new")
        try:
            with writing(home):
                home.parent.mkdir(parents=True, exist_ok=True)
                _fill(aside, towers, settings or {}, options)
                os.replace(aside, home)
                sync_folder(home.parent)
        finally:
            if aside.exists():
                shutil.rmtree(aside, ignore_errors=True)
        return cls.open(home)

    @classmethod
    def open(cls, path: str | os.PathLike[str], **options: Any) -> DiskIndex:
        """Open an index. options: fields of `Plan` that differ from those it was made with.

        Raises:
            IndexNotFound: there is none. IndexVersionError: a newer foveate wrote it.
            CorruptIndex: it contradicts itself.
        """
        home = Path(os.path.abspath(os.fspath(path)))
        if not (home / "catalog.sqlite").is_file():
            raise IndexNotFound(f"there is no index at {str(home)!r}: make one with foveate index")
        return cls(home, options)

    @property
    def generation(self) -> int:
        """The number of the newest commit."""
        return self._catalog.generation

    def vectors_folder(self, role: str) -> Path:
        """Return the folder of a tower's segments."""
        return folder_of(self.path, self.towers[role])

    # ---- read

    def passages(self, ids: Sequence[int] | Ints) -> list[Passage]:
        """Return passages in the order of the ids; those that are gone are left out."""
        with self._catalog.snapshot() as db:
            return self._views.reader.passages(db, generation(db), [int(i) for i in ids])

    def source_text(self, source_id: str) -> str:
        """Return the canonical text of a source. Raises QueryError if there is none."""
        with self._catalog.snapshot() as db:
            return reading.source_text(db, source_id)

    def word_boxes(self, source_id: str) -> WordBoxes | None:
        """Return where the words of a source stand, for PDF and OCR text."""
        with self._catalog.snapshot() as db:
            row = reading.source_row(db, source_id)
            (data,) = db.execute("SELECT words FROM sources WHERE row = ?", (row,)).fetchone()
        return unpack_words(data)

    def find(self, label_or_id: str | int) -> Passage:
        """Return the passage that a printed label or an id names. Raises QueryError."""
        with self._catalog.snapshot() as db:
            found = reading.find_passage(db, str(label_or_id))
            return self._views.reader.passages(db, generation(db), [found])[0]

    def first_label(self, path: str) -> str | None:
        """Return the label of a file's first passage, None where the file has none."""
        with self._catalog.snapshot() as db:
            return reading.first_label(db, path)

    def neighbours(self, passage: Passage, before: int, after: int) -> list[Passage]:
        """Return the passages around one in its source, itself among them, in order."""
        with self._catalog.snapshot() as db:
            ids = reading.neighbour_ids(db, passage, before, after)
            return self._views.reader.passages(db, generation(db), ids)

    def vectors(self, ids: Sequence[int] | Ints, role: str) -> Floats:
        """Return (n, dim) float32, stored vectors; rows of NaN where a passage has none."""
        snapshot = self._single(role)
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        rows = snapshot.living(wanted)
        out = np.full((len(wanted), snapshot.tower.dim), np.nan, dtype=np.float32)
        out[rows >= 0] = snapshot.take(rows[rows >= 0])
        return out

    def token_vectors(self, ids: Sequence[int] | Ints, role: str = "tokens") -> MultiVectors:
        """Return the stored token vectors of passages, decoded; none where a passage has none."""
        snapshot = self._many(role)
        rows = snapshot.living(np.asarray(ids, dtype=np.int64).reshape(-1))
        found = snapshot.take(rows[rows >= 0])
        sizes = np.zeros(len(rows), dtype=np.int64)
        sizes[rows >= 0] = np.diff(found.offsets)
        return MultiVectors(found.vectors, np.concatenate([[0], np.cumsum(sizes)]))

    def passage_ids(self, role: str = "text") -> Ints:
        """Return (n,) int64, ascending: the passages that have a vector of this role."""
        snapshot = self._single(role)
        found: Ints = snapshot.ids if snapshot.alive is None else snapshot.ids[snapshot.alive]
        return found

    def count(self, where: str | filters.Filter | None = None) -> int:
        """Return the number of passages, or of those that a filter lets through."""
        with self._catalog.snapshot() as db:
            tree = parsed(where)
            if tree is None:
                return int(db.execute("SELECT count(*) FROM passages").fetchone()[0])
            condition, bound = filters.to_sql(tree)
            sql = "SELECT count(*) FROM passages p JOIN sources s ON s.row = p.source WHERE "
            return int(db.execute(sql + condition, bound).fetchone()[0])

    def unknown_fields(self, where: str | filters.Filter | None) -> list[str]:
        """Return the metadata fields that a filter compares and no source has."""
        tree = parsed(where)
        names = filters.metadata_fields(tree) if tree is not None else []
        if not names:
            return []
        with self._catalog.snapshot() as db:
            return reading.unknown_fields(db, names)

    def field_names(self, most: int = 50) -> list[str]:
        """Return at most so many names of metadata fields that sources have, in order."""
        with self._catalog.snapshot() as db:
            return reading.field_names(db, most)

    def files(self, state: str | None = None) -> Iterator[FileRecord]:
        """Yield files by name; state: as in `FileRecord`, or 'partial'; None = all."""
        with self._catalog.reader() as db:
            yield from reading.all_files(db, state)

    def sources(self) -> Iterator[Source]:
        """Yield every source in the order in which they were indexed."""
        with self._catalog.reader() as db:
            yield from reading.all_sources(db)

    def languages(self) -> dict[str, int]:
        """Return {language: number of sources}, of those whose language is known."""
        with self._catalog.reader() as db:
            return dict(
                db.execute(
                    "SELECT language, count(*) FROM sources "
                    "WHERE language IS NOT NULL GROUP BY language"
                )
            )

    def status(self) -> dict[str, Any]:
        """Return what is in the index and how it is searched, as JSON types."""
        return report.status(self)

    def check(self, n: int = 200) -> dict[str, Any]:
        """Compare all parts with each other; n: passages whose text is cut and looked up again.

        Returns: ok (bool), problems (list of texts), recall by tower, and what was looked at.
        """
        return report.check(self, n)

    # ---- search

    def search_vectors(
        self, role: str, queries: Floats, k: int, *, where: str | filters.Filter | None = None,
        modalities: Collection[str] | None = None,
    ) -> tuple[Floats, Ints]:  # fmt: skip
        """Find the passages whose vectors are nearest, among those that the filter lets through.

        queries: (q, dim) float32, L2-normalised.
        Returns: scores (q, k) float32 descending, -inf where empty; ids (q, k) int64, -1 = empty.

        Raises:
            SpaceMismatch: the index has no vectors of this role.
            ShapeError: the queries are of another shape, or not finite.
            QueryError: k or the filter can't be used.
        """
        k = _checked(k)
        snapshot = self._single(role)
        array: Floats = np.ascontiguousarray(queries, dtype=np.float32)
        if array.ndim != 2 or array.shape[1] != snapshot.tower.dim:
            raise ShapeError(
                f"expected queries (q, {snapshot.tower.dim}) for {role!r}, got {array.shape}"
            )
        if not np.isfinite(array).all():
            raise ShapeError("expected finite query vectors, got NaN or infinity")
        mask = snapshot.mask(_codes(modalities), self._views.allowed(where))
        if role == quality.ROLE:
            mask = self.skipped.apply(snapshot, mask)
        scores, ids = snapshot.search(array, min(k, max(1, snapshot.n)), mask, self.plan)
        if ids.shape[1] < k:
            wide = ((0, 0), (0, k - ids.shape[1]))
            scores = np.pad(scores, wide, constant_values=-np.inf)
            ids = np.pad(ids, wide, constant_values=-1)
        return scores, ids

    def search_words(
        self, text: str, k: int, *, where: str | filters.Filter | None = None,
        modalities: Collection[str] | None = None,
    ) -> tuple[Floats, Ints]:  # fmt: skip
        """Find passages by BM25. Any text is a query; of a very long one the first words count.

        Returns: scores (k',) float32 descending, ids (k',) int64, k' <= k.

        Raises:
            QueryError: k or the filter can't be used.
        """
        k = _checked(k)
        words, now = self._views.words()
        codes = _codes(modalities)
        if codes is not None and codes >= self._views.facts(now)[1]:
            codes = None
        scores, ids = words.search(
            text, k, self._views.facts(now)[0], allowed=self._views.allowed(where), modalities=codes
        )
        if words.generation != now and len(ids):
            # the words are a moment behind: leave out what the catalogue has dropped since
            with self._catalog.reader() as db:
                marks = ",".join("?" * len(ids[:500]))
                sql = f"SELECT id FROM passages WHERE id IN ({marks})"
                real = {r[0] for r in db.execute(sql, ids[:500].tolist())}
            keep = np.array([i in real or n >= 500 for n, i in enumerate(ids.tolist())], dtype=bool)
            scores, ids = scores[keep], ids[keep]
        return scores, ids

    def search_tokens(
        self, queries: MultiVectors, k: int, *, role: str = "tokens", text: str | None = None,
        vectors: Mapping[str, Floats] | None = None, depth: int = 256,
        where: str | filters.Filter | None = None, modalities: Collection[str] | None = None,
    ) -> tuple[Floats, Ints]:  # fmt: skip
        """Find the passages whose tokens match those of one query best, by exact MaxSim.

        Candidates: the `depth` nearest by centroids of tokens, by words when `text` is given, and
        by each of `vectors`, {role: (1, dim)}; all that may be found where they are few.

        queries: one query. Returns: scores (k',) float32 descending, the weighted mean of the
        best similarities; ids (k',) int64; k' <= k.

        Raises:
            SpaceMismatch: the index has no token vectors of this role.
            ShapeError: there is more than one query, or it is of another dimension.
            QueryError: k or the filter can't be used.
        """
        k = _checked(k)
        snapshot = self._many(role)
        asked = queries.vectors
        if len(queries) != 1 or asked.shape[1] != snapshot.tower.dim:
            raise ShapeError(
                f"expected one query (s, {snapshot.tower.dim}) for {role!r}, got {len(queries)} of "
                f"{asked.shape}"
            )
        weight = float(np.linalg.norm(asked, axis=1).sum())
        if not weight:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        depth = max(depth, 2 * k)
        mask = snapshot.mask(_codes(modalities), self._views.allowed(where))
        rows = snapshot.candidates(asked, depth, mask)
        if len(rows) < (snapshot.n if mask is None else int(np.count_nonzero(mask))):
            more = [
                self.search_vectors(r, v, depth, where=where, modalities=modalities)[1][0]
                for r, v in (vectors or {}).items()
            ]
            if text:
                more.append(self.search_words(text, depth, where=where, modalities=modalities)[1])
            others = snapshot.living(np.concatenate([rows[:0], *more]))
            rows = np.union1d(rows, others[others >= 0])
        scores, ids = snapshot.search(asked, k, rows)
        return scores / np.float32(weight), ids

    # ---- write

    @contextmanager
    def writer(self, timeout_s: float = 0.0) -> Iterator[Writer]:
        """Hold the only right to write. Leaving commits; an exception goes back to the last commit.

        Raises:
            IndexLocked: another writer has it; says who and since when.
            IndexWriteError: the folder can't be written to.
        """
        with self._locked(timeout_s):
            with writing(self.path):
                writer = Writer(self)
            try:
                with writing(self.path):
                    upkeep.sweep(self.path, writer.db)
                    writer.keeper.catch_up(writer.db)
                yield writer
                writer.commit()
                writer.refresh_neighbours()
            except BaseException:
                writer.rollback()
                raise
            finally:
                writer.close()

    def compact(self, timeout_s: float = 0.0) -> dict[str, Any]:
        """Erase what was removed from every file, and bring the segments together.

        Returns: bytes before and after, and whether a reader held up the last step.
        """
        before = report.bytes_by_part(self.path)
        with self.writer(timeout_s) as writer:
            erased = writer.compact()
        return {"before": before, "after": report.bytes_by_part(self.path), "erased": erased}

    def close(self) -> None:
        self._catalog.close()
        self._views.close()

    def __enter__(self) -> DiskIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- parts

    def _single(self, role: str) -> Snapshot:
        found = self._views.snapshot(role)
        if not isinstance(found, Snapshot):
            raise SpaceMismatch(f"the index has one vector a token for {role!r}, not a passage")
        return found

    def _many(self, role: str) -> TokenSnapshot:
        if role not in self.towers:
            raise SpaceMismatch(
                f"the index has no token vectors: build a new one with [encoders.{role}] "
                'use = "late-minilm"'
            )
        found = self._views.snapshot(role)
        if not isinstance(found, TokenSnapshot):
            raise SpaceMismatch(f"the index has one vector a passage for {role!r}, not a token")
        return found

    @contextmanager
    def _locked(self, timeout_s: float) -> Iterator[None]:
        lock = WriterLock(self.path / "lock")
        try:
            lock.acquire(timeout_s)
        except OSError as error:
            raise IndexWriteError(
                f"could not write to the index {str(self.path)!r}: {error}"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _repair(self) -> None:
        """Let words catch up that a killed writer left behind, if nobody is at it already."""
        with self._catalog.snapshot() as db:
            folder, now = upkeep.words_folder(self.path, db), generation(db)
            (n,) = db.execute("SELECT count(*) FROM passages").fetchone()
        try:
            words = Words(folder)
            if (words.generation, words.n) == (now, n):
                return
        except CorruptIndex as error:
            _LOG.info("the words are built anew: %s", error)
        try:
            with self.writer():
                pass
        except (IndexLocked, IndexWriteError) as error:
            # a writer is at work and will do it, or this place is for reading only
            _LOG.info("the words are left behind the catalogue: %s", error)


def _fill(
    folder: Path,
    towers: Mapping[str, Tower],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    folder.mkdir(mode=0o700)
    create_catalog(folder / "catalog.sqlite")
    codes = {role: tower.code for role, tower in towers.items() if tower.code}
    for name in ("vectors", "words", "words/1", *(["tokens"] if codes else [])):
        make_folder(folder / name)
    catalog = Catalog(folder / "catalog.sqlite")
    with closing(catalog.writer()) as db:
        db.execute("BEGIN IMMEDIATE")
        for number, (role, tower) in enumerate(towers.items()):
            if role != tower.role:
                raise SpaceMismatch(f"the tower under {role!r} says its role is {tower.role!r}")
            db.execute(
                "INSERT INTO towers (role, tower, space, dim, number) VALUES (?, ?, ?, ?, ?)",
                (role, tower.tower, tower.space, tower.dim, number),
            )
        set_meta(db, "codes", codes)
        set_meta(db, "settings", dict(settings))
        set_meta(db, "options", dict(options))
        db.execute("COMMIT")
    catalog.close()
    words = WordsWriter(folder / "words" / "1")
    words.update(iter(()), (), 0, 0)
    words.close()
    sync_folder(folder)


def _checked(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise QueryError(f"k must be a whole number of at least 1, got {k!r}")
    return min(int(k), MAX_RESULTS)


def _codes(modalities: Collection[str] | None) -> frozenset[int] | None:
    if modalities is None:
        return None
    names = [modalities] if isinstance(modalities, str) else list(modalities)
    for name in names:
        if name not in MODALITIES:
            raise QueryError(f"modality is one of {', '.join(MODALITIES)}, got {name!r}")
    return frozenset(MODALITIES.index(name) for name in names)
