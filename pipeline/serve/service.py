"""What the server does, whoever asks for it: the page, a program, a chat client or a tool."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import query as queries
from foveate.pipeline import records, terminal
from foveate.pipeline.errors import FoveateError, QueryError
from foveate.pipeline.serve.options import ServeOptions
from foveate.pipeline.serve.pictures import Pictures, decode
from foveate.pipeline.serve.work import Clerk, Desk, Job

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.serve.bodies import AskBody, SearchBody
    from foveate.pipeline.types import Answer, Box, Hit, Passage

AROUND_CHARS = 3000
LONGEST_NAME = 200  # bytes, so that every file system takes it
WRITER_WAIT_S = 30.0
PICTURES = ("image", "page")
SPAN = re.compile(r"(\d{1,10})-(\d{1,10})")


class Forbidden(FoveateError):
    """Something that this server was not started to do."""


class Service:
    """One index, and the threads that read and write it."""

    def __init__(self, engine: Engine, options: ServeOptions) -> None:
        self.engine = engine
        self.options = options
        self.pictures = Pictures(engine)
        limits = {"waiting": options.n_waiting}
        self.searching = Desk(
            "search", threads=options.n_searching, timeout_s=options.timeout_s, **limits
        )
        self.showing = Desk("show", threads=2, timeout_s=options.timeout_s, **limits)
        self.asking = Desk(
            "ask", threads=options.n_asking, timeout_s=options.ask_timeout_s, **limits
        )
        self.clerk = Clerk()
        self._status: tuple[int, dict[str, Any]] | None = None

    def close(self) -> None:
        """Take in nothing more, and wait until the index is not being written."""
        for desk in (self.searching, self.showing, self.asking):
            desk.close()
        self.clerk.close()

    # ---- read

    def search(self, body: SearchBody) -> dict[str, Any]:
        """Return the hits of a search as JSON types."""
        hits = self.find(body)
        return {
            "query": body.text,
            "hits": [self.hit(h, i, body.text) for i, h in enumerate(hits, start=1)],
            "notes": self.notes(body.where),
        }

    def find(self, body: SearchBody) -> list[Hit]:
        picture = None
        if body.image is not None:
            picture = decode(body.image, self.options.max_picture_bytes)
        return self.engine.search(
            body.text or None,
            image=picture,
            k=self.bounded(body.k),
            where=body.where,
            modality=list(body.modality) if body.modality else None,
            mode=body.mode,
            group=body.group,
            collapse=body.collapse,
            rerank=body.rerank,
        )

    def notes(self, where: str | None) -> list[str]:
        """Return what a person should know of a filter that can be read."""
        unknown = queries.unknown_fields(self.engine.index, where)
        return [f"where: {unknown}"] if unknown else []

    def bounded(self, k: int) -> int:
        """Refuse more hits than one request may have. Raises QueryError."""
        if k > self.options.max_k:
            raise QueryError(f"k is at most {self.options.max_k} here, got {k}")
        return k

    def hit(self, value: Hit, rank: int, query: str) -> dict[str, Any]:
        """Return a hit, which part of it to show and which words to light, in code points."""
        text = value.passage.text
        start, end = terminal.excerpt(text, query)
        lit = terminal.matches(text[start:end], query) if query else []
        found = records.hit(value, rank, query)
        return {
            **found,
            "name": value.passage.source.name,
            "n_pages": value.passage.source.n_pages,
            "excerpt": [start, end],
            "lit": [[start + a, start + b] for a, b in lit],
            "picture": self.picture_url(value.passage),
        }

    def check_question(self, body: AskBody) -> None:
        """Refuse what cannot be asked, before there is anything to send.

        Raises:
            QueryError: for an empty question, too many hits or a filter that cannot be read.
            UnknownComponent, ConfigError: for a reranker that is not there or cannot be made.
        """
        if body.k is not None:
            self.bounded(body.k)
        if not body.text.strip():
            raise QueryError("text is empty: ask a question")
        queries.parse(body.text, where=body.where)
        self.notes(body.where)
        self.engine.refinery.chain(body.rerank, "ask")

    def ask(self, body: AskBody, watch: Callable[[str, Any], None] | None = None) -> Answer:
        """Answer a question; watch gets each stage's result when it is there."""
        self.check_question(body)
        return self.engine.ask(
            body.text,
            k=body.k,
            where=body.where,
            extractive=body.extractive,
            rerank=body.rerank,
            watch=watch,
        )

    def answer(
        self, body: AskBody, watch: Callable[[str, Any], None] | None = None
    ) -> dict[str, Any]:
        """Ask, and return the answer as JSON types, each citation with the place that opens it."""
        value = self.ask(body, watch)
        found = records.answer(value, trace=False)
        found["notes"] = self.notes(body.where)
        for record, citation in zip(found["citations"], value.citations, strict=True):
            passage = citation.passage
            record["name"] = passage.source.name
            record["modality"] = passage.modality
            record["picture"] = self.picture_url(passage)
            record["open"] = place_url(passage.label, citation.span)
        if body.trace:
            found["trace"] = records.rounded(value.trace)
            found["hits"] = [self.hit(h, i, value.question) for i, h in enumerate(value.hits, 1)]
        return found

    def show(self, label: str, span: str | None = None, query: str = "") -> dict[str, Any]:
        """Return a passage, or a span of its source, with what stands around it.

        focus: [start, end) within `quote` of what is to be lit: all of a span that was asked for,
        else the sentence of the passage that answers the query best. boxes: of the focus.
        """
        passage = self.engine.show(label)
        whole = self.engine.text(passage.source.id)
        start, end = self.place(passage, span, len(whole))
        low, high = max(0, start - AROUND_CHARS), min(len(whole), end + AROUND_CHARS)
        quote = whole[start:end]
        lit = terminal.matches(quote, query) if query else []
        focus = (0, len(quote)) if span else terminal.excerpt(quote, query) if lit else (0, 0)
        boxes = self.boxes(passage, (start + focus[0], start + focus[1]))
        page = boxes[0][0] if boxes else passage.locator.page
        return {
            **records.passage(passage),
            "name": passage.source.name,
            "n_pages": passage.source.n_pages,
            "span": [start, end],
            "before": whole[low:start],
            "quote": quote,
            "after": whole[end:high],
            "cut": [low > 0, high < len(whole)],
            "focus": list(focus),
            "lit": [list(pair) for pair in lit],
            "page": page,
            "boxes": [{"page": n, "box": records.box(b)} for n, b in boxes],
            "picture": self.picture_url(passage, span),
        }

    def place(self, passage: Passage, span: str | None, length: int) -> tuple[int, int]:
        """Return the span that is asked for, else the passage's own. Raises QueryError."""
        if span is None:
            return passage.locator.span or (0, 0)
        numbers = SPAN.fullmatch(span)
        if numbers is None or not int(numbers[1]) < int(numbers[2]) <= length:
            raise QueryError(f"span is START-END within 0-{length}, got {span!r}")
        return int(numbers[1]), int(numbers[2])

    def boxes(self, passage: Passage, span: tuple[int, int]) -> list[tuple[int, Box]]:
        """Return (page, box) of a span, on the passage's own page if it is a picture of one."""
        if not span[0] < span[1]:
            return []
        found = self.engine.boxes(passage.source.id, span)
        if passage.modality not in PICTURES:
            return found
        if passage.modality == "image" and passage.source.type == "pdf":
            return []  # a figure cut out of its page: boxes of the page say nothing on it
        return [(n, b) for n, b in found if n == (passage.locator.page or 1)]

    def picture(
        self, label: str, *, width_px: int, span: str | None = None, crop: bool = False
    ) -> bytes:
        """Return a passage's picture or page as JPEG, or the part of it that a span covers."""
        passage = self.engine.show(label)
        boxes: list[tuple[int, Box]] = []
        if span is not None:
            length = len(self.engine.text(passage.source.id))
            boxes = self.boxes(passage, self.place(passage, span, length))
            if boxes and passage.modality not in PICTURES:
                passage = on_page(passage, boxes[0][0])
        page = passage.locator.page
        chosen = [b for n, b in boxes if n == (page or 1)] if crop else []
        return self.pictures.jpeg(passage, width_px=width_px, boxes=chosen)

    def heat(self, label: str, query: str) -> dict[str, Any]:
        """Return where in a picture the words look: rows of numbers within 0..1."""
        passage = self.engine.show(label)
        self.pictures.check(passage)
        return {"label": label, "heat": self.engine.heat_map(passage, query).round(3).tolist()}

    def picture_url(self, passage: Passage, span: str | None = None) -> str | None:
        """Return where the picture or page behind a passage is found; None if it has neither."""
        paged = passage.source.type == "pdf" and passage.locator.page is not None
        if passage.modality not in PICTURES and not paged:
            return None
        query = f"?span={span}" if span else ""
        return f"/api/passages/{passage.label}/picture{query}"

    def status(self) -> dict[str, Any]:
        """Return what the index holds; counted anew after each commit only."""
        now = self.engine.index.generation
        if self._status is None or self._status[0] != now:
            counts = self.engine.status()
            counts["states"] = counts.pop("files", {})
            self._status = (now, counts)
        return {
            **self._status[1],
            "read_only": self.options.read_only,
            "can_search_pictures": "image" in self.engine.encoders,
            "can_light_pictures": hasattr(self.engine.encoders.get("image"), "encode_regions"),
            "jobs": [job.as_dict() for job in self.clerk.all()[:20]],
        }

    # ---- write

    @property
    def uploads(self) -> Path:
        """The folder that keeps uploaded files."""
        given = self.options.uploads
        return Path(given).expanduser().absolute() if given else self.engine.path / "uploads"

    def check_writable(self) -> None:
        if self.options.read_only:
            raise Forbidden("this server only reads: start it without --read-only")

    def new_upload(self, name: str) -> Path:
        """Make a private folder of its own for an upload; return the path that it is to have.

        Raises:
            QueryError: for a name that is no plain file name.
        """
        self.check_writable()
        folder = self.uploads / uuid.uuid4().hex[:12]
        path = folder / plain_name(name)
        for made in (self.uploads, folder):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def add_upload(self, path: Path) -> Job:
        """Index an uploaded file; one that holds nothing to find is not kept."""

        def work(job: Job) -> dict[str, Any]:
            try:
                return self._add([str(path)], job)
            finally:
                job.label = self.engine.index.first_label(str(path))
                if job.label is None:
                    job.path = None
                    shutil.rmtree(path.parent, ignore_errors=True)
                else:
                    job.open = place_url(job.label, None)

        return self.clerk.submit("add", path.name, work, str(path))

    def add(self, paths: Sequence[str], *, prune: bool = False, refresh: bool = False) -> Job:
        """Index files and folders below the roots.

        Raises:
            Forbidden: for a path that is not below a root, or leads out of it by a link.
        """
        self.check_writable()
        chosen = [self.below_roots(path) for path in paths]
        what = ", ".join(os.path.basename(p) or p for p in chosen[:3])

        def work(job: Job) -> dict[str, Any]:
            out = [link for path in chosen for link in leading_out(path, self.roots)]
            return self._add(chosen, job, exclude=out, prune=prune, refresh=refresh)

        return self.clerk.submit("add", what, work)

    def _add(self, paths: Sequence[str], job: Job, **options: Any) -> dict[str, Any]:
        progress = self.clerk.progress(job)
        report = self.engine.add(*paths, progress=progress, timeout_s=WRITER_WAIT_S, **options)
        found = report.as_dict()
        found["seconds"] = round(report.seconds, 3)
        found["problems"] = records.files(report.problems)
        return found

    @property
    def roots(self) -> list[str]:
        return [os.path.realpath(os.path.expanduser(root)) for root in self.options.roots]

    def below_roots(self, path: str) -> str:
        """Return a path as it really is. Raises Forbidden if that is not below a root."""
        if "\0" in path:
            raise QueryError("a path has no NUL in it")
        real = os.path.realpath(os.path.expanduser(path))
        if not any(is_below(real, root) for root in self.roots):
            raise Forbidden(f"{path!r} is not below a folder that this server may index (--root)")
        return real

    def remove(self, targets: Sequence[str], *, erase: bool = False) -> Job:
        """Take files, folders or labels out of the index; uploaded files go from the disk too."""
        self.check_writable()
        named = list(targets)

        def work(job: Job) -> dict[str, Any]:
            held = {f.path for f in self.engine.files()}
            removed = self.engine.remove(*named)
            gone = held - {f.path for f in self.engine.files()}
            for path in gone:
                self._forget_upload(path)
            if erase:
                self.engine.compact()
            return {"removed": removed}

        what = ", ".join(os.path.basename(t) or t for t in named[:3])
        return self.clerk.submit("remove", what, work)

    def _forget_upload(self, path: str) -> None:
        real, home = os.path.realpath(path), os.path.realpath(self.uploads)
        if os.path.dirname(os.path.dirname(real)) == home:
            shutil.rmtree(os.path.dirname(real), ignore_errors=True)


def on_page(passage: Passage, page: int) -> Passage:
    import dataclasses

    return dataclasses.replace(passage, locator=dataclasses.replace(passage.locator, page=page))


def place_url(label: str, span: tuple[int, int] | None) -> str:
    """Return the address that opens a place on the page."""
    return f"/#open={label}" + (f"&span={span[0]}-{span[1]}" if span else "")


def plain_name(name: str) -> str:
    """Return a file name that stays in its folder and hides nothing.

    Raises:
        QueryError: if it names a folder, is hidden, too long or holds control characters.
    """
    name = unicodedata.normalize("NFC", name).strip()
    hides = any(unicodedata.category(c) in ("Cc", "Cs", "Cf") for c in name)
    if not name or name.startswith((".", "~")) or hides or set(name) & set('/\\:*?"<>|'):
        raise QueryError(f"name must be a plain file name such as report.pdf, got {name[:200]!r}")
    if len(name.encode()) > LONGEST_NAME:
        raise QueryError(f"name must have at most {LONGEST_NAME} bytes, got {name[:60]!r}...")
    return name


def is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def leading_out(path: str, roots: Sequence[str]) -> list[str]:
    """Return globs, relative to a folder, of every link below it that leads out of the roots."""
    found = []
    for folder, folders, files in os.walk(path, followlinks=False):
        for name in (*folders, *files):
            whole = os.path.join(folder, name)
            if not os.path.islink(whole):
                continue
            real = os.path.realpath(whole)
            if not any(is_below(real, root) for root in roots):
                relative = os.path.relpath(whole, path).replace(os.sep, "/")
                found.append("/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", relative))
    return found
