"""Word search: BM25 by tantivy over terms that `terms.py` cuts, for texts and queries alike.

tantivy sees terms joined by spaces and never parses a query. Documents without words, the markers,
carry the catalogue's generation, so that the words say by themselves which commit they hold: the
highest of them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index.terms import STOP_WORDS, Analyser, analyser
from foveate.index.word_files import check_files, failing, reading, sweep_deletions, utf8_path
from foveate.pipeline.errors import CorruptIndex

if TYPE_CHECKING:
    from foveate.index.members import Allowed
    from foveate.pipeline.types import Floats, Ints

MAX_QUERY_TERMS = 128
"""A longer query is searched by its first 128 distinct terms that are not stop words."""
TITLE_REPEATS = 2
"""How often a title or heading is said before its text. On four sets two were better than one or
three, and better and faster than a field of its own with any weight."""
MAX_QUERY_CHARS = 20_000
_HEAP_BYTES = 64_000_000
_MARKERS_MAX = 32
_SET_MAX = 2_000  # passages that a query may name one by one; above it hits are sifted


@dataclass(frozen=True, slots=True)
class WordDocument:
    """A passage as word search takes it."""

    id: int
    source: int
    modality: int
    context: str
    text: str
    language: str | None


def schema() -> Any:
    """Return tantivy's schema: terms without positions, ids as columns, nothing stored."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    for name in ("id", "source", "modality", "generation", "last"):
        builder.add_unsigned_field(name, indexed=name != "last", fast=True)
    builder.add_text_field("body", tokenizer_name="whitespace", index_option="freq")
    return builder.build()


class Words:
    """One folder of tantivy files, opened to search."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self.folder = folder
        self._lock = threading.Lock()
        self._sound: set[str] = set()
        check_files(folder, self._sound)
        with reading(folder):
            if os.access(folder, os.W_OK):
                self._index = tantivy.Index.open(utf8_path(folder))
                self._index.config_reader(reload_policy="manual")
                self._index.reload()
            else:
                self._index = self._copied(folder)
            self._schema = self._index.schema
            if self._schema != schema():
                raise CorruptIndex(f"the words {str(folder)!r} hold other fields than expected")
            self._searcher = self._index.searcher()
            self.generation, self.last = self._marker()

    def _copied(self, folder: Path) -> Any:
        # tantivy takes a lock file even to read; where it may not write, it gets its own copy
        import tantivy

        copy = tempfile.mkdtemp(prefix="foveate-words-")
        weakref.finalize(self, shutil.rmtree, copy, ignore_errors=True)
        for entry in folder.iterdir():
            if not entry.name.endswith(".lock"):
                shutil.copyfile(entry, os.path.join(copy, entry.name))
        return tantivy.Index.open(copy)

    def reload(self) -> None:
        """See what was committed since."""
        with self._lock, reading(self.folder):
            check_files(self.folder, self._sound)
            self._index.reload()
            self._searcher = self._index.searcher()
            self.generation, self.last = self._marker()

    def _marker(self) -> tuple[int, int]:
        found = markers(self._searcher)
        self._n_markers = len(found)
        return max(found, default=(-1, 0))

    @property
    def n(self) -> int:
        """How many passages are held."""
        return max(0, int(self._searcher.num_docs) - self._n_markers)

    def search(
        self,
        text: str,
        k: int,
        languages: Iterable[str | None],
        *,
        allowed: Allowed | None = None,
        modalities: frozenset[int] | None = None,
    ) -> tuple[Floats, Ints]:
        """Find the k best passages. Returns scores (k',) float32 descending and ids (k',) int64."""
        query = self._query(text, languages)
        if query is None or not self.n:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        if allowed is not None and allowed.n <= _SET_MAX:
            field = "source" if allowed.by_source else "id"
            query = self._only(query, field, np.flatnonzero(allowed.members).tolist())
        if modalities is not None:
            query = self._only(query, "modality", sorted(modalities))
        with reading(self.folder):
            return self._best(query, k, allowed)

    def _best(self, query: Any, k: int, allowed: Allowed | None) -> tuple[Floats, Ints]:
        searcher = self._searcher
        limit = k if allowed is None else 4 * k
        while True:
            hits = searcher.search(query, limit, count=False).hits
            scores = np.fromiter((h[0] for h in hits), np.float32, len(hits))
            addresses = [h[1] for h in hits]
            ids = np.array(searcher.fast_field_values("id", addresses), dtype=np.int64)
            if allowed is not None:
                owners = ids
                if allowed.by_source:
                    found = searcher.fast_field_values("source", addresses)
                    owners = np.array(found, dtype=np.int64)
                keep = allowed.mask(owners)
                scores, ids = scores[keep], ids[keep]
            if len(ids) >= k or len(hits) < limit:
                order = np.lexsort((ids, -scores))[:k]
                return scores[order], ids[order]
            limit *= 4

    def _only(self, query: Any, field: str, values: list[int]) -> Any:
        from tantivy import Occur, Query

        chosen = Query.term_set_query(self._schema, field, values)
        return Query.boolean_query(
            [(Occur.Must, query), (Occur.Must, Query.const_score_query(chosen, 0.0))]
        )

    def _query(self, text: str, languages: Iterable[str | None]) -> Any:
        from tantivy import Occur, Query

        groups = query_groups(text[:MAX_QUERY_CHARS], [analyser(c) for c in languages])
        clauses = []
        for terms, weight in groups:
            options = [Query.term_query(self._schema, "body", t, "freq") for t in terms]
            query = options[0] if len(options) == 1 else Query.disjunction_max_query(options)
            # a query of bare terms lets tantivy pass over blocks that cannot reach the top k
            query = query if weight == 1 else Query.boost_query(query, weight)
            clauses.append((Occur.Should, query))
        return Query.boolean_query(clauses) if clauses else None


def query_groups(text: str, analysers: list[Analyser]) -> list[tuple[tuple[str, ...], float]]:
    """Return (interchangeable terms, weight) for each distinct thing that a query asks for.

    A word is stemmed by the rules of each language that the index holds; the best variant counts.
    Stop words count only in a query of nothing else.
    """
    words: dict[tuple[str, ...], float] = {}
    stops: dict[tuple[str, ...], float] = {}
    by_language = [list(a.query_terms(text)) for a in analysers]
    for column in zip(*by_language, strict=True):
        token = column[0][0]
        width = max(len(terms) for _, terms in column)
        for i in range(width):
            variants = tuple(dict.fromkeys(terms[i] for _, terms in column if i < len(terms)))
            home = stops if token.lower() in STOP_WORDS else words
            home[variants] = home.get(variants, 0.0) + 1.0
        if len(words) >= MAX_QUERY_TERMS:
            break
    chosen = words or stops
    return list(chosen.items())[:MAX_QUERY_TERMS]


def markers(searcher: Any) -> list[tuple[int, int]]:
    """Return (generation, last passage id) of each marker."""
    import tantivy

    query = tantivy.Query.exists_query("generation")
    addresses = [hit[1] for hit in searcher.search(query, 10 * _MARKERS_MAX, count=False).hits]
    generations = searcher.fast_field_values("generation", addresses)
    lasts = searcher.fast_field_values("last", addresses)
    return [(int(g or 0), int(p or 0)) for g, p in zip(generations, lasts, strict=True)]


class WordsWriter:
    """Bring a folder of tantivy files to the catalogue's newest commit."""

    def __init__(self, folder: Path, title_repeats: int = TITLE_REPEATS) -> None:
        import tantivy

        self.folder = folder
        self.title_repeats = title_repeats
        with failing(folder):
            sweep_deletions(folder)
            self._index = tantivy.Index(schema(), path=utf8_path(folder))
            self._writer = self._start()

    def update(
        self, added: Iterator[WordDocument], removed: Iterable[int], generation: int, last: int
    ) -> None:
        """Apply commits of the catalogue; until their marker is in, they can be applied again."""
        import tantivy

        gone = list(removed)
        with failing(self.folder):
            self._index.reload()
            passed = sorted(g for g, _ in markers(self._index.searcher()))[:-1]
            if gone or len(passed) >= _MARKERS_MAX:
                self._erase(gone, passed)
        for passage in added:
            document = _document(passage, self.title_repeats)
            with failing(self.folder):
                self._writer.add_document(document)
        with failing(self.folder):
            marker = tantivy.Document()
            marker.add_unsigned("generation", generation)
            marker.add_unsigned("last", last)
            self._writer.add_document(marker)
            self._writer.commit()

    def close(self) -> None:
        with failing(self.folder):
            self._writer.wait_merging_threads()
        for entry in self.folder.iterdir():
            entry.chmod(0o600)

    def _start(self) -> Any:
        return self._index.writer(heap_size=_HEAP_BYTES, num_threads=1)

    def _erase(self, passages: list[int], generations: list[int]) -> None:
        """Delete documents, while no merge runs and in a commit of its own.

        tantivy 0.27 starts merges when it takes in a new segment. One that starts while a commit
        applies deletions can bring deleted documents back.
        """
        import tantivy

        self._writer.wait_merging_threads()
        self._writer = self._start()
        for field, values in (("id", passages), ("generation", generations)):
            for start in range(0, len(values), _SET_MAX):
                # delete_documents_by_term makes a signed term, which no unsigned field holds
                query = tantivy.Query.term_set_query(
                    self._index.schema, field, values[start : start + _SET_MAX]
                )
                self._writer.delete_documents_by_query(query)
        self._writer.commit()


def _document(passage: WordDocument, title_repeats: int) -> Any:
    import tantivy

    cut = analyser(passage.language)
    document = tantivy.Document()
    document.add_unsigned("id", passage.id)
    document.add_unsigned("source", passage.source)
    document.add_unsigned("modality", passage.modality)
    title = cut.terms(passage.context)
    document.add_text("body", " ".join([*(title * title_repeats), *cut.terms(passage.text)]))
    return document


def pending(
    db: sqlite3.Connection, generation: int, last: int
) -> tuple[list[int], Iterator[tuple[Any, ...]]]:
    """Return what the catalogue removed after a generation and added after a passage id."""
    removed = [
        r[0] for r in db.execute("SELECT passage FROM removed WHERE generation > ?", (generation,))
    ]
    added = db.execute(
        "SELECT p.id, p.source, p.modality, p.context, p.start, p.stop, s.language "
        "FROM passages p JOIN sources s ON s.row = p.source WHERE p.id > ? ORDER BY p.id",
        (last,),
    )
    return removed, added
