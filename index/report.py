"""Say what an index holds, and whether its parts agree."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index import neighbours, reading, upkeep
from foveate.index.catalog import generation
from foveate.index.lexical import Words
from foveate.index.storage import checksum, folder_bytes
from foveate.index.stores import store_of
from foveate.index.texts import whole_text
from foveate.index.vectors import measure
from foveate.pipeline.errors import CorruptIndex
from foveate.pipeline.types import MODALITIES

if TYPE_CHECKING:
    from foveate.index.disk import DiskIndex


def bytes_by_part(root: Path) -> dict[str, int]:
    """Return bytes on disk of the catalogue, words, vectors and FAISS caches."""
    catalog = sum(p.stat().st_size for p in root.glob("catalog.sqlite*") if p.is_file())
    caches = sum(p.stat().st_size for p in root.glob("vectors/*/*.faiss"))
    centres = sum(p.stat().st_size for p in root.glob("tokens/*/*.centres"))
    parts = {
        "catalog": catalog,
        "words": folder_bytes(root / "words"),
        "vectors": folder_bytes(root / "vectors") - caches,
        "faiss": caches,
        "tokens": folder_bytes(root / "tokens") - centres,
        "centroids": centres,
    }
    return {**parts, "total": sum(parts.values())}


def status(index: DiskIndex) -> dict[str, Any]:
    """Return counts, sizes, towers and how each is searched, as JSON types."""
    with index._catalog.snapshot() as db:
        modalities = reading.counts_by_modality(db)
        found: dict[str, Any] = {
            "path": str(index.path).encode("utf-8", "replace").decode(),
            "format": index._catalog.format,
            "generation": generation(db),
            "files": _counts(db, "SELECT state, count(*) FROM files WHERE complete GROUP BY 1"),
            "partial_files": _one(db, "SELECT count(*) FROM files WHERE NOT complete"),
            "sources": _one(db, "SELECT count(*) FROM sources"),
            "passages": sum(modalities.values()),
            "modalities": {MODALITIES[c]: n for c, n in sorted(modalities.items())},
            "types": _counts(db, "SELECT type, count(*) FROM sources GROUP BY 1"),
            "languages": _counts(
                db, "SELECT coalesce(language, 'unknown'), count(*) FROM sources GROUP BY 1"
            ),
            "removed_not_erased": _one(db, "SELECT count(*) FROM removed"),
            "bytes": bytes_by_part(index.path),
            "towers": {role: _tower(index, db, role) for role in index.towers},
        }
        found["words"] = _words(index, db)
    return found


def _one(db: sqlite3.Connection, sql: str) -> int:
    return int(db.execute(sql).fetchone()[0])


def _counts(db: sqlite3.Connection, sql: str) -> dict[str, int]:
    return {r[0]: r[1] for r in db.execute(sql + " ORDER BY 2 DESC, 1")}


def _tower(index: DiskIndex, db: sqlite3.Connection, role: str) -> dict[str, Any]:
    tower = index.towers[role]
    n_segments, n_rows = db.execute(
        "SELECT count(*), coalesce(sum(n), 0) FROM segments WHERE role = ?", (role,)
    ).fetchone()
    (layout,) = db.execute("SELECT layout FROM towers WHERE role = ?", (role,)).fetchone()
    if tower.code:
        snapshot = index._many(role)
        return {
            "tower": tower.tower, "space": tower.space, "dim": tower.dim, "vectors": n_rows,
            "segments": n_segments, "kind": tower.code, "tokens": snapshot.n_tokens,
            "covered": snapshot.centroids.n if snapshot.centroids else 0, "recall_at_10": None,
        }  # fmt: skip
    kind, why = index.plan.choose(n_rows, tower.dim)
    found: dict[str, Any] = {
        "tower": tower.tower, "space": tower.space, "dim": tower.dim, "vectors": n_rows,
        "segments": n_segments, "kind": kind, "wanted": index.plan.kind, "note": why,
        "recall_at_10": 1.0 if kind == "flat" else None,
    }  # fmt: skip
    if kind != "flat":
        facts = neighbours.find_facts(index.vectors_folder(role), layout, n_rows)
        if facts is None:
            found["note"] = why or "no FAISS file: searched exactly until a writer makes one"
            found["recall_at_10"] = 1.0
        else:
            found |= {
                "kind": facts.kind, "recall_at_10": facts.recall, "effort": facts.effort,
                "covered": facts.n, "build_s": facts.build_s,
            }  # fmt: skip
    return found


def _words(index: DiskIndex, db: sqlite3.Connection) -> dict[str, Any]:
    try:
        words = Words(upkeep.words_folder(index.path, db))
    except CorruptIndex as error:
        return {"problem": str(error)}
    return {"passages": words.n, "generation": words.generation}


def check(index: DiskIndex, n: int) -> dict[str, Any]:
    """Compare the catalogue, the segments and the words; measure recall anew."""
    problems: list[str] = []
    recall: dict[str, float | None] = {}
    with index._catalog.snapshot() as db:
        for (text,) in db.execute("PRAGMA quick_check(20)"):
            if text != "ok":
                problems.append(f"catalogue: {text}")
        for row in db.execute("PRAGMA foreign_key_check").fetchmany(20):
            problems.append(f"catalogue: a row of {row[0]} points at nothing")
        orphans = _one(
            db, "SELECT count(*) FROM sources WHERE row NOT IN (SELECT source FROM holdings)"
        )
        if orphans:
            problems.append(f"catalogue: no file holds {orphans} of the sources")
        n_looked = _check_texts(db, n, problems)
        for role in index.towers:
            recall[role] = _check_tower(index, db, role, problems)
        try:
            words = Words(upkeep.words_folder(index.path, db))
            total = _one(db, "SELECT count(*) FROM passages")
            if words.generation == generation(db) and words.n != total:
                problems.append(f"words: {words.n} passages, the catalogue has {total}")
            if words.generation != generation(db):
                problems.append("words: behind the catalogue; the next writer brings them up")
        except CorruptIndex as error:
            problems.append(f"words: {error}; the next writer builds them anew")
    return {"ok": not problems, "problems": problems, "recall_at_10": recall, "looked_at": n_looked}


def _check_texts(db: sqlite3.Connection, n: int, problems: list[str]) -> int:
    rows = db.execute(
        "SELECT p.id, p.source, p.stop, s.n_chars FROM passages p JOIN sources s "
        "ON s.row = p.source WHERE p.stop IS NOT NULL AND p.id % max(1, (SELECT count(*) / ?1 "
        "FROM passages)) = 0 LIMIT ?1",
        (max(1, n),),
    ).fetchall()
    lengths: dict[int, int] = {}
    for id_, source, stop, n_chars in rows:
        if source not in lengths:
            lengths[source] = len(whole_text(db, source))
        if lengths[source] != n_chars or stop > n_chars:
            problems.append(f"catalogue: passage {id_} ends behind its source's text")
    return len(rows)


def _check_tower(
    index: DiskIndex, db: sqlite3.Connection, role: str, problems: list[str]
) -> float | None:
    folder, store = index.vectors_folder(role), store_of(index.towers[role])
    listed = db.execute("SELECT name, crc FROM segments WHERE role = ?", (role,)).fetchall()
    for name, crc in listed:
        path = folder / name
        if not os.path.exists(path):
            problems.append(f"vectors: {path.name} of {role!r} is missing")
        elif checksum(path) != crc:
            problems.append(f"vectors: {path.name} of {role!r} is damaged (checksum)")
    try:
        snapshot: Any = store.load(db, folder, index.towers[role], None)
    except CorruptIndex as error:
        problems.append(f"vectors: {error}")
        return None
    alive = snapshot.ids if snapshot.alive is None else snapshot.ids[snapshot.alive]
    if (np.diff(snapshot.ids) <= 0).any():
        problems.append(f"vectors: ids of {role!r} are not ascending")
    known = np.fromiter((r[0] for r in db.execute("SELECT id FROM passages ORDER BY id")), np.int64)
    lost = int(len(alive) - np.isin(alive, known, assume_unique=True).sum())
    if lost:
        problems.append(f"vectors: {lost} of {role!r} belong to no passage")
    store.attach(snapshot, folder, index.plan)
    if index.towers[role].code:
        return None
    if snapshot.near is None:
        return 1.0 if len(alive) else None
    return measure(snapshot, index.plan, tune=False)
