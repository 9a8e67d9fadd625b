"""What a process has open of an index: renewed at each commit, and opened anew after a fork."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from foveate.index import filters, reading, upkeep
from foveate.index.catalog import Catalog, generation
from foveate.index.lexical import Words
from foveate.index.members import Allowed
from foveate.index.neighbours import Plan, load_faiss
from foveate.index.stores import folder_of, store_of
from foveate.index.towers import Tower
from foveate.pipeline.errors import CorruptIndex, SpaceMismatch

_N_FILTERS_KEPT = 16
_RETRIES = 10


class Views:
    """The newest snapshots of vectors and words, and answers of filters. Threads share it."""

    def __init__(
        self, path: Path, catalog: Catalog, towers: Mapping[str, Tower], plan: Plan
    ) -> None:
        self.path = path
        self.towers = towers
        self.plan = plan
        self._catalog = catalog
        self._lock = threading.RLock()
        self._reset()

    @property
    def reader(self) -> reading.PassageReader:
        """What makes passages, with the texts and sources that it keeps."""
        return self._here()._reader

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._reset()

    def snapshot(self, role: str) -> Any:
        """Return a tower as of the newest commit: a `Snapshot` or a `TokenSnapshot`."""
        if role not in self.towers:
            raise SpaceMismatch(
                f"the index has no vectors for {role!r} (it has: {', '.join(self.towers)})"
            )
        here = self._here()
        now = self._catalog.generation
        held = here._snapshots.get(role)
        if held is not None and held[0] == now:
            return held[1]
        with here._lock:
            held = here._snapshots.get(role)
            if held is not None and held[0] >= now:
                return held[1]
            loaded = self._load(role, held[1] if held else None)
            here._snapshots[role] = loaded
            return loaded[1]

    def _load(self, role: str, previous: Any) -> tuple[int, Any]:
        tower = self.towers[role]
        folder, store = folder_of(self.path, tower), store_of(tower)
        for attempt in range(_RETRIES):
            with self._catalog.snapshot() as db:
                now = generation(db)
                try:
                    snapshot = store.load(db, folder, tower, previous)
                except CorruptIndex:
                    # a writer may have put segments together between the list and the opening
                    if attempt == _RETRIES - 1 or self._catalog.generation == now:
                        raise
                    continue
            store.attach(snapshot, folder, self.plan)
            return now, snapshot
        raise CorruptIndex(f"the vectors of {role!r} change faster than they can be opened")

    def words(self) -> tuple[Words, int]:
        """Return the words, and the generation that they should have."""
        here = self._here()
        with self._catalog.reader() as db:
            now = generation(db)
            held = here._opened
            if held is not None and held[1].generation == now:
                return held[1], now
            folder = upkeep.words_folder(self.path, db)
        with here._lock:
            for attempt in range(_RETRIES):
                try:
                    if here._opened is not None and here._opened[0] == folder:
                        here._opened[1].reload()
                    else:
                        here._opened = (folder, Words(folder))
                    return here._opened[1], now
                except CorruptIndex:
                    with self._catalog.reader() as db:
                        other = upkeep.words_folder(self.path, db)
                    if other == folder and attempt > 1:
                        raise
                    folder, here._opened = other, None
        raise CorruptIndex(f"the words of {str(self.path)!r} change faster than they can be opened")

    def facts(self, now: int) -> tuple[tuple[str | None, ...], frozenset[int]]:
        """Return the languages and modalities that the index holds."""
        here = self._here()
        known = here._known
        if known is None or known[0] != now:
            with self._catalog.reader() as db:
                kinds = frozenset(reading.modalities(db))
                known = here._known = (now, reading.languages(db), kinds)
        return known[1], known[2]

    def allowed(self, where: str | filters.Filter | None) -> Allowed | None:
        """Return what a filter lets through, None for everything."""
        tree = parsed(where)
        if tree is None:
            return None
        here = self._here()
        by_source = not filters.uses_passages(tree)
        condition, bound = filters.to_sql(tree)
        with self._catalog.snapshot() as db:
            # not the tree: Python takes true for 1, and they are two filters
            key = (generation(db), condition, tuple(bound))
            with here._lock:
                if key in here._filters:
                    return here._filters[key]
            sql = (
                f"SELECT s.row FROM sources s WHERE {condition}"
                if by_source
                else "SELECT p.id FROM passages p JOIN sources s ON s.row = p.source "
                f"WHERE {condition}"
            )
            found = np.fromiter((r[0] for r in db.execute(sql, bound)), dtype=np.int64)
        allowed = Allowed.of(found, by_source=by_source)
        with here._lock:
            here._filters[key] = allowed
            while len(here._filters) > _N_FILTERS_KEPT:
                here._filters.popitem(last=False)
        return allowed

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._reader = reading.PassageReader()
        self._snapshots: dict[str, tuple[int, Any]] = {}
        self._opened: tuple[Path, Words] | None = None
        self._known: tuple[int, tuple[str | None, ...], frozenset[int]] | None = None
        self._filters: OrderedDict[tuple[int, str, tuple[object, ...]], Allowed] = OrderedDict()

    def _here(self) -> Views:
        if self._pid != os.getpid():
            # a lock that another thread held at the fork will never be released, and the threads
            # of OpenMP and tantivy did not come along
            self._lock = threading.RLock()
            self._reset()
            load_faiss().omp_set_num_threads(1)
        return self


def parsed(where: str | filters.Filter | None) -> filters.Filter | None:
    """Return a filter's tree; None and an empty text let everything through."""
    if where is None or isinstance(where, str):
        return filters.parse(where) if where and where.strip() else None
    return where
