"""The types that every stage shares. Standard library only at run time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from foveate.pipeline.errors import ShapeError

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    Floats: TypeAlias = NDArray[np.float32]
    Ints: TypeAlias = NDArray[np.int64]

Modality = Literal["text", "table", "image", "page"]
MODALITIES: tuple[Modality, ...] = ("text", "table", "image", "page")

FileState = Literal["indexed", "partial", "empty", "skipped", "failed"]
NoteKind = Literal["skipped", "failed", "empty", "truncated", "guessed", "ocr", "info"]
BlockKind = Literal["heading", "paragraph", "list", "table", "code", "caption"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle on the upright page or picture: 0..1, origin top left."""

    x0: float
    y0: float
    x1: float
    y1: float

    def __post_init__(self) -> None:
        if not (0 <= self.x0 < self.x1 <= 1 and 0 <= self.y0 < self.y1 <= 1):
            raise ShapeError(f"expected a box with 0 <= x0 < x1 <= 1 (y alike), got {self}")


@dataclass(frozen=True, slots=True)
class Locator:
    """Where a passage stands in its source.

    span: [start, end) in code points of the source's canonical text.
    page: 1-based. row: 1-based data row of a JSONL, CSV or table file.
    """

    span: tuple[int, int] | None = None
    page: int | None = None
    boxes: tuple[Box, ...] = ()
    row: int | None = None

    def __post_init__(self) -> None:
        if self.span is not None and not 0 <= self.span[0] <= self.span[1]:
            raise ShapeError(f"expected a span 0 <= start <= end, got {self.span}")


@dataclass(frozen=True, slots=True)
class Source:
    """One thing that was indexed: a file, or a record of a file.

    id: first 32 hex digits of the SHA-256 of its bytes. uris: every place that holds these bytes;
    an absolute path, or `path#row=N` for a record. modified: POSIX seconds. type: 'pdf',
    'markdown', 'jpeg', ... as the filter language sees it.
    """

    id: str
    uris: tuple[str, ...]
    media_type: str
    type: str
    size: int
    modified: float
    title: str | None = None
    language: str | None = None
    encoding: str | None = None
    n_pages: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return self.uris[0]

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return os.path.basename(self.uri.split("#row=")[0])


@dataclass(frozen=True, slots=True)
class Passage:
    """The indexed unit: a span of text, table rows, a picture or a page.

    id: 64-bit, from the catalogue, never reused. number: 0-based within the source.
    text: verbatim `source_text[start:end]` for text and table passages and for the OCR text of a
    picture. context: title, headings or a table's header; encoded and indexed, never quoted.
    """

    id: int
    number: int
    source: Source
    modality: Modality
    text: str
    locator: Locator
    context: str = ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.source.metadata

    @property
    def label(self) -> str:
        """The form people see and type: the source id's first 12 digits and the number."""
        return f"{self.source.id[:12]}:{self.number}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found. score: 0..1, higher is better. scores: each stage's own."""

    passage: Passage
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    duplicates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a compressor keeps of one hit.

    spans: [start, end) in code points of the source's canonical text, ascending and disjoint;
    each is verbatim source. score: the compressor's own, higher is better.
    """

    hit: Hit
    spans: tuple[tuple[int, int], ...]
    score: float = 0.0

    def __post_init__(self) -> None:
        end = 0
        for span in self.spans:
            if not end <= span[0] < span[1]:
                raise ShapeError(f"expected ascending, disjoint, filled spans, got {self.spans}")
            end = span[1]


@dataclass(frozen=True, slots=True)
class Context:
    """What the reader is shown, in the order in which it is shown.

    n_tokens: of all kept spans together, as the caller counts them. trace: who dropped what.
    """

    kept: tuple[Kept, ...]
    n_tokens: int
    trace: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Citation:
    """Evidence for one sentence of an answer.

    quote: verbatim; `source_text[span[0]:span[1]] == quote`. sentence: [start, end) of the
    sentence in `Answer.text` that it supports. marker: the number n printed as [n].
    """

    marker: int
    quote: str
    passage: Passage
    span: tuple[int, int] | None
    sentence: tuple[int, int]
    page: int | None = None
    boxes: tuple[Box, ...] = ()
    support: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and where each of its sentences comes from. answered is False when it refuses.

    conflicts: sentences of other passages that say otherwise than a cited one, with marker 0 and
    the sentence of the answer that they speak against. unspoken: what is asked of, where other
    hits speak of it and no cited passage does.
    """

    question: str
    text: str
    citations: tuple[Citation, ...]
    answered: bool
    hits: tuple[Hit, ...] = ()
    trace: Mapping[str, Any] = field(default_factory=dict)
    conflicts: tuple[Citation, ...] = ()
    unspoken: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know about a file: why it was skipped, cut or guessed."""

    kind: NoteKind
    message: str
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A structural piece of the canonical text, [start, end) in code points.

    level: of a heading, 1 is the top. header: span of a table's header line(s), kept as context
    when the table's rows are split.
    """

    kind: BlockKind
    start: int
    end: int
    level: int = 0
    header: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WordBoxes:
    """Where words stand on their pages.

    spans: (w, 2) int32, [start, end) in the canonical text, ascending. pages: (w,) int32, 1-based.
    boxes: (w, 4) float32, x0 y0 x1 y1, 0..1, origin top left.
    """

    spans: NDArray[np.int32]
    pages: NDArray[np.int32]
    boxes: NDArray[np.float32]

    def __post_init__(self) -> None:
        n = len(self.spans)
        if (self.spans.shape, self.pages.shape, self.boxes.shape) != ((n, 2), (n,), (n, 4)):
            raise ShapeError(
                f"expected spans (w, 2), pages (w,), boxes (w, 4), got {self.spans.shape}, "
                f"{self.pages.shape}, {self.boxes.shape}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture to index: the file itself, a figure taken out of it, or a rendered page.

    image: upright RGB. span: of its OCR text or caption in the canonical text.
    """

    image: Image
    modality: Literal["image", "page"]
    page: int | None = None
    box: Box | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """What a loader makes of a file, or of one record of it.

    digest: SHA-256, 64 hex digits, of the bytes (of the record's bytes for a record); the source
    id is its first 32. text: canonical, already cleaned. page_starts: offset of each page in text.
    row: 1-based, for records.
    """

    digest: str
    media_type: str
    type: str
    size: int
    text: str = ""
    title: str | None = None
    language: str | None = None
    encoding: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    page_starts: tuple[int, ...] = ()
    blocks: tuple[Block, ...] = ()
    words: WordBoxes | None = None
    pictures: tuple[Picture, ...] = ()
    notes: tuple[Note, ...] = ()
    row: int | None = None

    @property
    def source_id(self) -> str:
        return self.digest[:32]


@dataclass(frozen=True, slots=True, eq=False)
class MultiVectors:
    """One vector a token or patch, of n items: ragged, end to end, never padded.

    vectors: (t, d) float32; of what is stored each has length 1, of what is asked its weight.
    offsets: (n+1,) int64, rising from 0 to t: item i has the rows offsets[i] to offsets[i + 1].
    """

    vectors: Floats
    offsets: Ints

    def __post_init__(self) -> None:
        places = self.offsets
        ends = (int(places[0]), int(places[-1])) if places.ndim == 1 and len(places) else (-1, -1)
        if (
            self.vectors.ndim != 2
            or ends != (0, len(self.vectors))
            or (places[1:] < places[:-1]).any()
        ):
            raise ShapeError(
                f"expected vectors (t, d) and offsets that rise from 0 to t, got "
                f"{self.vectors.shape} and {places.shape} from {ends[0]} to {ends[1]}"
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, item: int) -> Floats:
        """Return one item's vectors (t, d)."""
        found: Floats = self.vectors[self.offsets[item] : self.offsets[item + 1]]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A passage before the catalogue gives it an id. image is set when it is a picture."""

    modality: Modality
    text: str
    locator: Locator
    context: str = ""
    image: Image | None = None

    @property
    def encoded(self) -> str:
        """What a text encoder reads."""
        return f"{self.context}\n{self.text}" if self.context else self.text


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What the catalogue knows of one file on disk."""

    path: str
    size: int
    mtime_ns: int
    digest: str | None
    state: FileState
    notes: tuple[Note, ...] = ()
    n_sources: int = 0
    n_passages: int = 0


@dataclass(slots=True)
class AddReport:
    """What one `add` did.

    Counts are files, except those of sources, passages and what was encoded. problems: files that
    a person should know about. warnings: sentences on the index as a whole.
    """

    n_seen: int = 0
    n_added: int = 0
    n_changed: int = 0
    n_unchanged: int = 0
    n_moved: int = 0
    n_removed: int = 0
    n_empty: int = 0
    n_skipped: int = 0
    n_failed: int = 0
    n_sources: int = 0
    n_passages: int = 0
    n_encoded: int = 0
    seconds: float = 0.0
    problems: list[FileRecord] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
