"""Find and load evaluation sets: BEIR folders, captioned pictures, question sets.

What a folder is follows from what it holds:

    corpus.jsonl | corpus.<language>.jsonl, queries.jsonl, qrels/<split>.tsv      Retrieval (BEIR)
    segments.jsonl, queries.jsonl                                    Retrieval, one per rotation
    captions.jsonl, images/                                                       Pictures
    *.jsonl of question, answers, docs with is_gold                               Questions, a file
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from foveate.pipeline.evaluate.sets import (
    Dataset,
    DatasetError,
    Pictures,
    Question,
    QuestionDoc,
    Questions,
    Record,
    Retrieval,
    language_of,
    sample,
)
from foveate.pipeline.terminal import number as counted

DATA_VARIABLE = "FOVEATE_EVAL_DATA"
SPLITS = ("test", "dev", "val", "train")

__all__ = [
    "Dataset",
    "DatasetError",
    "Pictures",
    "Questions",
    "Retrieval",
    "find",
    "languages",
    "load",
    "load_beir",
    "load_segments",
    "sample",
]


def find(name: str | os.PathLike[str]) -> Path:
    """Return the folder of a data set: a path, or a name below FOVEATE_EVAL_DATA.

    Raises:
        DatasetError: if neither is a folder; it names the sets that are there.
    """
    given = Path(name).expanduser()
    if given.is_dir():
        return given.resolve()
    root = os.environ.get(DATA_VARIABLE)
    if root and (Path(root).expanduser() / name).is_dir():
        return (Path(root).expanduser() / name).resolve()
    raise DatasetError(f"no data set {os.fspath(name)!r}: it is not a folder{_nearby(name, root)}")


def _nearby(name: str | os.PathLike[str], root: str | None) -> str:
    """Say where else a name was looked for, and which sets are there."""
    if not root:
        return f"; set {DATA_VARIABLE} to a folder of sets to call them by name"
    place = Path(root).expanduser()
    where = f" nor below {DATA_VARIABLE}={root}"
    if not place.is_dir():
        return f"{where}, which is no folder"
    known = known_sets(place)
    if not known:
        return f"{where}, which holds no set"
    close = difflib.get_close_matches(os.fspath(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{where}{hint} (there: {', '.join(known)})"


def known_sets(folder: Path) -> list[str]:
    """Return the names of the sets in a folder, told by their files' names."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and _is_set(p))


def _is_set(folder: Path) -> bool:
    try:
        return bool(loaders(folder)) or any(
            loaders(inner) for inner in folder.iterdir() if inner.is_dir()
        )
    except (OSError, DatasetError):
        return False


def load(name: str | os.PathLike[str], *, split: str | None = None) -> list[Dataset]:
    """Load what a folder holds: one set, or several, or those of its sub-folders.

    name: a path, that of a file of questions too, a name below FOVEATE_EVAL_DATA, or either with
    `:split` at its end. split: which judgments to take; None takes test, else dev, val or train,
    whichever comes first.

    Raises:
        DatasetError: if the folder holds no data set, or a file of it cannot be read.
    """
    text = os.fspath(name)
    file = Path(text).expanduser()
    if file.is_file():
        if file.suffix != ".jsonl" or not _holds_questions(file):
            raise DatasetError(f"{text!r} holds no questions: expected question, answers and docs")
        return [load_questions(file)]
    named = not Path(text).is_dir() and ":" in text
    if named:
        text, _, split = text.rpartition(":")
    folder = find(text)
    found = load_folder(folder, split)
    if not found:
        for inner in sorted(p for p in folder.iterdir() if p.is_dir()):
            found.extend(load_folder(inner, split))
    if not found:
        raise DatasetError(
            f"no data set in {str(folder)!r}: expected corpus.jsonl with queries.jsonl and "
            "qrels/*.tsv, captions.jsonl with images/, or *.jsonl of question, answers and docs"
        )
    if named and not any(map(has_splits, found)):
        raise DatasetError(
            f"{str(folder)!r} has no split {split!r}: there are no qrels/*.tsv in it"
        )
    return found


def has_splits(dataset: Dataset) -> bool:
    """Tell whether a set's judgments are files of which one is taken."""
    folder = dataset.folder if isinstance(dataset, Retrieval) else None
    return folder is not None and (folder / "qrels").is_dir()


def load_folder(folder: Path, split: str | None = None) -> list[Dataset]:
    """Load one folder; an empty list if it is of no known form."""
    return [load_one() for load_one in loaders(folder, split)]


def loaders(folder: Path, split: str | None = None) -> list[Callable[[], Dataset]]:
    """Return what loads each set of a folder; none if it is of no known form."""
    names = {p.name for p in folder.iterdir()}
    if "segments.jsonl" in names and "queries.jsonl" in names:
        return [partial(load_segments, folder)]
    if any(n == "corpus.jsonl" or _language(n) for n in names) and "qrels" in names:
        return [partial(load_beir, folder, split=split)]
    if "captions.jsonl" in names and "images" in names:
        return [partial(load_pictures, folder)]
    files = [p for p in sorted(folder.glob("*.jsonl")) if _holds_questions(p)]
    return [partial(load_questions, p, alone=len(files) == 1) for p in files]


def languages(folder: Path) -> list[str]:
    """Return the languages of corpus.<language>.jsonl files, English first."""
    found = sorted(c for p in folder.iterdir() if (c := _language(p.name)))
    return sorted(found, key=lambda code: code != "en")


def load_beir(
    folder: Path,
    *,
    split: str | None = None,
    language: str | None = None,
    query_language: str | None = None,
) -> Retrieval:
    """Load a BEIR folder; for one with a corpus a language, English unless told.

    Raises:
        DatasetError: for a missing file, a bad line, or judgments of unknown queries only.
    """
    spoken = languages(folder)
    single = (folder / "corpus.jsonl").is_file()
    language = language or (spoken[0] if spoken and not single else None)
    asked = query_language or language
    corpus_file = folder / (f"corpus.{language}.jsonl" if language else "corpus.jsonl")
    qrels_file = _qrels_file(folder, split)
    split = qrels_file.stem
    asked_files = [f"queries.{asked}.jsonl"] if asked else ["queries.jsonl"]
    asked_files.append(f"{split}_queries.jsonl")
    rows = [row for n in asked_files if (folder / n).is_file() for row in _rows(folder / n)]
    if not rows:
        raise DatasetError(f"no queries in {str(folder)!r}: expected {asked_files[0]}")
    corpus = tuple(
        Record(_id(row, corpus_file), str(row.get("title") or ""), str(row.get("text") or ""))
        for row in _rows(corpus_file)
    )
    if not corpus:
        raise DatasetError(f"{str(corpus_file)!r} holds no documents")
    qrels = read_qrels(qrels_file)
    texts = {_id(row, folder / asked_files[0]): str(row.get("text", "")) for row in rows}
    name = folder.name if split == "test" else f"{folder.name}:{split}"
    if language and (language, asked) != ("en", "en"):
        name += f"/{language}" if asked == language else f"/{asked}>{language}"
    buckets = {str(r["_id"]): str(r["pos_bucket"]) for r in rows if r.get("pos_bucket")}
    return _judged(
        Retrieval(name, corpus, texts, qrels, language or "en", buckets, folder=folder),
        qrels_file,
    )


def load_segments(folder: Path, rotation: int = 0) -> Retrieval:
    """Load documents made of segments, each rotated by `rotation` places.

    A query's passage then stands at (segment + rotation) modulo the number of segments; that
    place is its bucket. Titles of segments are left out.
    """
    corpus, n_segments = [], {}
    file = folder / "segments.jsonl"
    for number, row in enumerate(_rows(file), start=1):
        segments = row.get("segments")
        if not isinstance(segments, list) or not all(isinstance(s, dict) for s in segments):
            raise DatasetError(f"{str(file)!r} line {number}: segments is no list of objects")
        texts = [str(s.get("text", "")) for s in segments]
        n_segments[_id(row, file)] = n = len(texts)
        turned = [texts[(place - rotation) % n] for place in range(n)]
        corpus.append(Record(_id(row, file), "", "\n\n".join(turned)))
    queries, qrels, buckets = {}, {}, {}
    file = folder / "queries.jsonl"
    for number, row in enumerate(_rows(file), start=1):
        key, doc, segment = _id(row, file), str(row.get("doc")), row.get("segment")
        if not isinstance(segment, int) or not 0 <= segment < n_segments.get(doc, 0):
            raise DatasetError(
                f"{str(file)!r} line {number}: expected doc and segment of segments.jsonl, "
                f"got {doc!r} and {segment!r}"
            )
        queries[key] = str(row.get("text", ""))
        qrels[key] = {doc: 1}
        buckets[key] = str((segment + rotation) % n_segments[doc])
    name = folder.name if not rotation else f"{folder.name}/rotated{rotation}"
    return Retrieval(name, tuple(corpus), queries, qrels, buckets=buckets, folder=folder)


def load_pictures(folder: Path) -> Pictures:
    """Load captioned pictures.

    Raises:
        DatasetError: if none of the captions' pictures is there.
    """
    images: dict[str, Path] = {}
    captions: dict[str, list[str]] = {}
    missing: list[str] = []
    file, place = folder / "captions.jsonl", folder / "images"
    for row in _rows(file):
        if "image" not in row or not row.get("captions"):
            raise DatasetError(f"{str(file)!r} needs image and captions")
        name = str(row["image"])
        path = place / name
        if place.resolve() not in path.resolve().parents or not path.is_file():
            missing.append(name)
            continue
        images[name] = path
        # rows of one picture add up
        captions.setdefault(name, []).extend(c for c in _texts(row["captions"]) if c.strip())
    if not missing and not images:
        raise DatasetError(f"{str(file)!r} holds no row: it needs image and captions")
    told = _missing_pictures(missing, place) if missing else ""
    if not images:
        raise DatasetError(f"{str(file)!r}: {told}")
    given = {name: tuple(some) for name, some in captions.items()}
    return Pictures(folder.name, images, given, (told,) if told else ())


def _missing_pictures(names: Sequence[str], place: Path) -> str:
    """Say which pictures are not there; names are taken below images/."""
    first = names[0]
    whole = f"{counted(len(names), 'picture')} {'is' if len(names) == 1 else 'are'} not in images/"
    hint = "names are relative to images/"
    inner = first.removeprefix("./").removeprefix("images/")
    if inner != first and (place / inner).is_file():
        hint += f", so write {inner!r}"
    return f"{whole}, such as {first!r}: {hint}"


def load_questions(path: Path, *, alone: bool = True) -> Questions:
    """Load a file of questions with their documents; one without an id gets its line's number."""
    questions = []
    for number, row in enumerate(_rows(path), start=1):
        try:
            docs = tuple(
                QuestionDoc(
                    str(d.get("title") or ""), str(d.get("text") or ""), _flag(d["is_gold"])
                )
                for d in row["docs"]
            )
            questions.append(
                Question(
                    id=str(row.get("id", number)),
                    text=str(row["question"]),
                    answers=_texts(row["answers"]),
                    docs=docs,
                    answerable=bool(row.get("answerable", True)),
                    required=tuple(tuple(map(str, g)) for g in row.get("required_answers", ())),
                    falsehoods=tuple(map(str, row.get("fake_answers", ()))),
                )
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DatasetError(f"{str(path)!r} line {number}: no usable {error}") from error
    name = path.parent.name if alone else f"{path.parent.name}/{path.stem}"
    return Questions(name, tuple(questions), language_of(questions[0].text if questions else ""))


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgments: three columns with or without a header (BEIR), or four (TREC).

    Raises:
        DatasetError: for a line of another form.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, line in enumerate(_lines(path), start=1):
        cells = line.split("\t") if "\t" in line else line.split()
        if number == 1 and not _is_number(cells[-1]):
            continue
        if len(cells) not in (3, 4) or not _is_number(cells[-1]):
            raise DatasetError(
                f"{str(path)!r} line {number}: expected query-id, corpus-id, score, got {line!r}"
            )
        if not float(cells[-1]).is_integer():
            raise DatasetError(
                f"{str(path)!r} line {number}: expected a whole number as score, got {cells[-1]!r}"
            )
        qrels.setdefault(cells[0], {})[cells[-2]] = int(float(cells[-1]))
    return qrels


def _judged(dataset: Retrieval, source: Path) -> Retrieval:
    """Keep the queries that have a relevant document, and say what else the judgments name."""
    relevant = {q: docs for q, docs in dataset.qrels.items() if any(s > 0 for s in docs.values())}
    kept = [q for q, text in dataset.queries.items() if q in relevant and text.strip()]
    if not kept:
        raise DatasetError(f"{str(source)!r} judges none of the queries ({len(dataset.queries)})")
    notes = []
    if unknown := len(set(relevant) - set(kept)):
        told = "query has no text and was" if unknown == 1 else "queries have no text and were"
        notes.append(f"{unknown} judged {told} left out")
    ids = {record.id for record in dataset.corpus}
    if twice := len(dataset.corpus) - len(ids):
        notes.append(
            f"{counted(twice, 'document')} {'has' if twice == 1 else 'have'} the _id of one before"
        )
    if absent := sum(doc not in ids for q in kept for doc in relevant[q]):
        what = "judgment names a document" if absent == 1 else "judgments name documents"
        notes.append(f"{absent} {what} that the corpus lacks")
    return replace(
        dataset,
        queries={q: dataset.queries[q] for q in kept},
        qrels={q: relevant[q] for q in kept},
        buckets={q: dataset.buckets[q] for q in kept if q in dataset.buckets},
        notes=tuple(notes),
    )


def _qrels_file(folder: Path, split: str | None) -> Path:
    there = {p.stem: p for p in sorted((folder / "qrels").glob("*.tsv"))}
    if not there:
        raise DatasetError(f"no qrels/*.tsv in {str(folder)!r}")
    if split is None:
        split = next((s for s in SPLITS if s in there), next(iter(there)))
    if split not in there:
        raise DatasetError(f"no split {split!r} in {str(folder)!r} (there: {', '.join(there)})")
    return there[split]


def _holds_questions(path: Path) -> bool:
    row = next(_rows(path), None)
    return row is not None and {"question", "answers", "docs"} <= set(row)


def _language(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) == 3 and (parts[0], parts[2]) == ("corpus", "jsonl") else None


def _id(row: Mapping[str, Any], path: Path) -> str:
    if row.get("_id") is None:
        raise DatasetError(f"{str(path)!r} has a row without _id: {str(row)[:80]}")
    return str(row["_id"])


def _texts(value: Any) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise TypeError(f"list of texts: {value!r:.60}")
    return tuple(map(str, value))


def _flag(value: Any) -> bool:
    if value not in (True, False):
        raise TypeError(f"is_gold: expected true or false, got {value!r:.60}")
    return bool(value)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DatasetError(f"{str(path)!r} line {number} is not JSON: {error.msg}") from error
        if not isinstance(row, dict):
            raise DatasetError(f"{str(path)!r} line {number} is no JSON object: {line[:60]!r}")
        yield row


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig") as handle:
            yield from (line.rstrip("\n") for line in handle if line.strip())
    except FileNotFoundError as error:
        raise DatasetError(f"no file {str(path)!r}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{str(path)!r} is not UTF-8: {error}") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
