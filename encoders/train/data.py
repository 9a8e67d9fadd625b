"""What an encoder is trained on: pairs with negatives and grades, or texts alone."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import LoadError

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class Example:
    """One thing that is asked and what should be found.

    query: a text; in unlabelled data the text itself. positive: a text, a path of a picture, or
    any input of the encoder that is trained; None in unlabelled data. negatives: of the same
    kind. grade: relevance above 0. paraphrase, edited: the same question in other words, and one
    that looks alike but asks something else.
    """

    query: Any
    positive: Any = None
    negatives: tuple[Any, ...] = ()
    grade: float = 1.0
    paraphrase: str | None = None
    edited: str | None = None
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Examples, and the documents to mine negatives from.

    corpus: documents in the same form as positives. origin: where it all came from, for the card.
    """

    examples: tuple[Example, ...]
    corpus: tuple[Any, ...] = ()
    origin: str = ""

    @property
    def is_unlabelled(self) -> bool:
        return all(example.positive is None for example in self.examples)

    @property
    def is_graded(self) -> bool:
        return len({example.grade for example in self.examples}) > 1

    @property
    def digest(self) -> str:
        """A hash of every example, the same for the same content in the same order."""
        made = hashlib.sha256()
        for e in self.examples:
            parts = [e.query, e.positive, *e.negatives, e.grade, e.paraphrase, e.edited]
            made.update("\x1f".join(map(key_of, parts)).encode("utf-8", "surrogatepass"))
        return made.hexdigest()[:16]


@dataclass(slots=True)
class Relevance:
    """Which documents are known to answer which query, over all examples."""

    grades: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Relevance:
        found = cls()
        for example in examples:
            if example.positive is not None:
                of_query = found.grades.setdefault(key_of(example.query), {})
                key = key_of(example.positive)
                of_query[key] = max(example.grade, of_query.get(key, 0.0))
        return found

    def has(self, query: Any, document: Any) -> bool:
        return key_of(document) in self.grades.get(key_of(query), {})


def key_of(item: Any) -> str:
    """Return what tells one input from another: a text or path itself, else a hash of its bytes."""
    if isinstance(item, str | Path | int | float | None):
        return str(item)
    data = item.tobytes() if hasattr(item, "tobytes") else repr(item).encode()
    return hashlib.sha256(data).hexdigest()


def split(
    examples: Sequence[Example],
    share: float = 0.1,
    *,
    seed: int = 0,
    at_most: int = 300,
    by: str = "query",
) -> tuple[list[Example], list[Example]]:
    """Return (to train on, held out): whole queries, drawn by a hash of the query.

    No query stands on both sides. share: of the queries; at least 8 of them where there are 40,
    at most `at_most`; none below 16 queries. by: 'positive' draws positives in their place, for
    pictures with several captions each.
    """
    queries = list(dict.fromkeys(key_of(getattr(example, by)) for example in examples))
    n_held = min(max(round(share * len(queries)), min(8, len(queries) // 5)), at_most)
    if share <= 0 or len(queries) < 16:
        return list(examples), []
    order = sorted(queries, key=lambda q: hashlib.sha256(f"{seed}:{q}".encode()).digest())
    held = set(order[:n_held])
    kept = [e for e in examples if key_of(getattr(e, by)) not in held]
    return kept, [e for e in examples if key_of(getattr(e, by)) in held]


def read(path: str | Path, *, which: str = "train") -> TrainingSet:
    """Read what is at a path.

    A .jsonl file: rows of query, positive, and optionally negatives (a text or a list), grade,
    paraphrase, edited; or rows of text alone; or of image (a path, from the file's folder) and
    caption, captions or query. A .txt file: a text a line. A folder with
    corpus.jsonl and qrels/: BEIR, `which` split. A folder with captions.jsonl (image, captions)
    or with pictures beside .txt files of captions: pictures, asked for by their captions.

    Raises:
        LoadError: for a path that is none of these, or a row that lacks what it needs.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        if (place / "corpus.jsonl").is_file() and (place / "qrels").is_dir():
            return read_beir(place, which)
        return read_captions(place)
    if place.suffix == ".txt":
        texts = _lines(place)
        return TrainingSet(tuple(Example(text) for text in texts), origin=place.name)
    if place.suffix in (".jsonl", ".json", ".ndjson"):
        return read_pairs(place)
    raise LoadError(
        f"cannot train on {str(place)!r}: expected a .jsonl of query and positive, a .txt of "
        "texts, a BEIR folder, or a folder of pictures and captions"
    )


def read_pairs(path: Path) -> TrainingSet:
    """Read JSON lines of query and positive, of text, or of image and caption."""
    if any("image" in row for row in _rows(path)):
        return _pictures(_captioned(path, strict=True), path.name)
    found = [_pair(row, f"{str(path)!r} row {n}") for n, row in enumerate(_rows(path), start=1)]
    if not found:
        raise LoadError(f"no rows in {str(path)!r}")
    if len({example.positive is None for example in found}) > 1:
        raise LoadError(f"{str(path)!r} mixes rows with and without a positive: split it in two")
    return TrainingSet(tuple(found), origin=path.name)


def _pair(row: Mapping[str, Any], where: str) -> Example:
    query = row.get("query", row.get("text"))
    positive = row.get("positive")
    negatives = row.get("negatives", row.get("negative")) or ()
    negatives = (negatives,) if isinstance(negatives, str) else tuple(negatives)
    texts = [query, *negatives, *([] if positive is None else [positive])]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise LoadError(f"{where}: expected query and positive as text, or text; got {row!r:.120}")
    grade = row.get("grade", row.get("score", 1.0))
    if not isinstance(grade, int | float) or grade <= 0:
        raise LoadError(f"{where}: expected a grade above 0, got {grade!r}")
    return Example(
        query,
        positive,
        negatives,
        float(grade),
        row.get("paraphrase"),
        row.get("edited"),
        bool(row.get("synthetic", False)),
    )


def read_beir(folder: Path, which: str = "train") -> TrainingSet:
    """Read a BEIR folder: title and text are joined by a line break, as passages are encoded.

    Queries come from queries.jsonl and, where it is there, from `which`_queries.jsonl.
    """
    corpus = {
        str(row["_id"]): "\n".join(p for p in (row.get("title"), row.get("text")) if p)
        for row in _rows(folder / "corpus.jsonl")
    }
    queries: dict[str, str] = {}
    for name in ("queries.jsonl", f"{which}_queries.jsonl"):
        if (folder / name).is_file():
            queries |= {str(row["_id"]): str(row["text"]) for row in _rows(folder / name)}
    judgments = folder / "qrels" / f"{which}.tsv"
    if not judgments.is_file():
        there = ", ".join(sorted(p.stem for p in (folder / "qrels").glob("*.tsv")))
        raise LoadError(f"no split {which!r} in {str(folder / 'qrels')!r} (there: {there})")
    found = []
    with judgments.open(encoding="utf-8") as file:
        for cells in csv.reader(file, delimiter="\t"):
            if len(cells) < 3 or not _is_number(cells[2]):
                continue
            query, document, grade = queries.get(cells[0]), corpus.get(cells[1]), float(cells[2])
            if query and document and document.strip() and grade > 0:
                found.append(Example(query, document, grade=grade))
    if not found:
        raise LoadError(f"no judgment of {str(judgments)!r} names a query and document that exist")
    texts = tuple(text for text in corpus.values() if text.strip())
    return TrainingSet(tuple(found), texts, f"{folder.name}/{which}")


def read_captions(folder: Path) -> TrainingSet:
    """Read pictures and their captions; a picture is given as its path."""
    listed = folder / "captions.jsonl"
    pairs: list[tuple[Path, str]] = []
    if listed.is_file():
        pairs += _captioned(listed)
    else:
        for place in sorted(folder.rglob("*")):
            if place.suffix.lower() in PICTURES and place.with_suffix(".txt").is_file():
                pairs += [(place, caption) for caption in _lines(place.with_suffix(".txt"))]
    if not pairs:
        raise LoadError(
            f"no captioned picture in {str(folder)!r}: expected captions.jsonl with image and "
            "captions, or a .txt beside each picture"
        )
    return _pictures(pairs, folder.name)


def _captioned(path: Path, *, strict: bool = False) -> list[tuple[Path, str]]:
    """Return (picture, caption) of JSON lines; strict: what lacks either is refused."""
    found = []
    for number, row in enumerate(_rows(path), start=1):
        place = next(_places(path.parent, str(row.get("image"))), None)
        captions = row.get("captions") or [row.get("caption") or row.get("query")]
        captions = [captions] if isinstance(captions, str) else captions
        told = [str(caption) for caption in captions if caption]
        if strict and (place is None or not told):
            raise LoadError(
                f"{str(path)!r} row {number}: expected the path of an image that is there and a "
                f"caption, got {row!r:.120}"
            )
        found += [(place, caption) for caption in told if place is not None]
    return found


def _pictures(pairs: Sequence[tuple[Path, str]], origin: str) -> TrainingSet:
    examples = tuple(Example(caption, place) for place, caption in pairs)
    return TrainingSet(examples, tuple(dict.fromkeys(p for p, _ in pairs)), origin)


def open_picture(place: str | Path) -> Image:
    """Read a picture, upright."""
    from PIL import Image as Pictures
    from PIL import ImageOps

    try:
        with Pictures.open(place) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, Pictures.DecompressionBombError) as error:
        raise LoadError(f"cannot read the picture {str(place)!r}: {error}") from error


def _places(folder: Path, name: str) -> Iterator[Path]:
    yield from (p for p in (folder / name, folder / "images" / name) if p.is_file())


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise LoadError(f"{str(path)!r} line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise LoadError(f"{str(path)!r} line {number}: expected an object, got {line[:80]!r}")
        yield row


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read {str(path)!r}: {error}") from error
    return [line for line in text.split("\n") if line.strip()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
