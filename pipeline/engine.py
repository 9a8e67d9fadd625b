"""The engine: one index and the stages around it, top to bottom as the data flows.

ingest -> chunk -> encode -> index                      Engine.add
query -> parse -> retrieve -> fuse -> rerank            Engine.search
      -> compress -> order -> generate -> cite          Engine.ask
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import config as configuration
from foveate.pipeline import opening, registry
from foveate.pipeline.errors import (
    ConfigError,
    FoveateError,
    IndexNotFound,
    IndexWriteError,
    QueryError,
)
from foveate.pipeline.types import AddReport, Answer, Box, FileRecord, Hit, Passage
from foveate.pipeline.watched import Watched

if TYPE_CHECKING:
    from types import TracebackType

    from PIL.Image import Image

    from foveate.pipeline.answer import AnswerOptions
    from foveate.pipeline.chat import Chat
    from foveate.pipeline.config import Config
    from foveate.pipeline.protocols import Encoder, Generator, Progress
    from foveate.pipeline.reader import Reader
    from foveate.pipeline.refine import Refinery
    from foveate.pipeline.trace import Stages
    from foveate.pipeline.types import Context, Floats
    from foveate.rerank.late import Match


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    create: bool = False,
    preset: str | None = None,
    config: Config | None = None,
    encoders: Mapping[str, Encoder] | None = None,
) -> Engine:
    """Open an index; with create=True make it if it is not there.

    path: the index's folder; None takes FOVEATE_INDEX, else `.foveate` in this folder or the
    nearest parent. preset: which components a new index uses; an index that exists keeps its own.
    encoders: your own objects by role ('text', 'image') in the place of the configured ones; give
    the same ones each time the index is opened.

    Raises:
        IndexNotFound: if there is none and create is False.
        SpaceMismatch: if the configuration asks for encoders that did not build this index.
    """
    settings = config if config is not None else configuration.load(preset)
    place = opening.locate(path, create=create)
    kind, options = settings.component("index")
    factory = registry.find("index", kind)
    try:
        index = factory.open(place, **options)
    except IndexNotFound:
        if not create:
            raise
        chosen = opening.make_encoders(settings) if encoders is None else encoders
        try:
            index = factory.create(
                place,
                towers=opening.towers(chosen),
                settings=opening.built_with(settings),
                **options,
            )
        except IndexWriteError as error:
            # unless another process made it in the meantime
            try:
                index = factory.open(place, **options)
            except IndexNotFound:
                raise error from None
        else:
            return Engine(index, settings, chosen)
    if encoders is None:
        settings = opening.keep_build(settings, index.settings)
        encoders = opening.make_encoders(settings)
    return Engine(index, settings, encoders)


class Engine:
    """An index that can be added to, searched and asked. Safe to share between threads."""

    def __init__(self, index: Any, config: Config, encoders: Mapping[str, Encoder]) -> None:
        from foveate.pipeline.search import SearchOptions

        self.index = index
        self.config = config
        self.encoders = dict(encoders)
        self._search_options = configuration.make(SearchOptions, config.table("search"), "search")
        self._generator: Generator | None = None
        self._reader: Reader | None = None
        self._refinery: Refinery | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return Path(self.index.path)

    def add(
        self,
        *paths: str | os.PathLike[str],
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        prune: bool = False,
        dry_run: bool = False,
        refresh: bool = False,
        progress: bool | Progress = False,
        timeout_s: float = 0.0,
    ) -> AddReport:
        """Index files and folders; what is unchanged is skipped.

        include, exclude: globs. prune: remove files that are gone from below the paths. dry_run:
        only say what would be done. refresh: read again what is unchanged. progress: True draws
        bars on a terminal; a callable gets (stage, done, total). timeout_s: how long to wait for
        another writer.

        Raises:
            IndexLocked: if another process is writing.
            FoveateError: for a path that is not there.
        """
        from foveate.pipeline import changes, update
        from foveate.pipeline.ingest.options import IngestOptions
        from foveate.pipeline.languages import language_warnings
        from foveate.pipeline.terminal import contextual_progress

        ingest = IngestOptions.from_table(self.config.table("ingest"))
        chosen: dict[str, Any] = {"include": include, "exclude": exclude, "prune": prune}
        if dry_run:
            return changes.plan(self.index, paths, ingest, **chosen, refresh=refresh)
        with contextual_progress(progress) as report, self.index.writer(timeout_s) as writer:
            self._check_towers()
            job = update.Update(writer, self.encoders, ingest, progress=report, refresh=refresh)
            done = job.run(paths, **chosen)
        if done.n_sources:
            done.warnings += language_warnings(self.index, self.encoders["text"])
        return done

    def search(
        self,
        text: str | None = None,
        *,
        image: Image | str | os.PathLike[str] | None = None,
        k: int = 10,
        where: str | None = None,
        modality: str | Sequence[str] | None = None,
        mode: str = "hybrid",
        group: str | None = None,
        collapse: bool = True,
        rerank: bool | str | Sequence[str | Mapping[str, Any]] | None = None,
    ) -> list[Hit]:
        """Find passages and pictures by words, by a picture, or by both.

        where: a filter, e.g. "type = 'pdf' and year >= 2020". modality: one or several of text,
        table, image, page. mode: 'hybrid', 'dense' or 'words'. group: 'source' gives each source's
        best passage only. collapse: fold near-duplicates. rerank: a reranker by name, or a chain
        of them; None takes what is configured for hybrid searches, False none. Without words there
        is nothing to rerank by.

        Returns:
            At most k hits, best first.

        Raises:
            QueryError: for an empty query, a k below 1 or a filter that cannot be read.
        """
        return self._search(
            text,
            k,
            rerank=rerank,
            use="search",
            image=image,
            where=where,
            modality=modality,
            mode=mode,
            group=group,
            collapse=collapse,
        )

    def _search(
        self, text: str | None, k: int, *, rerank: Any, use: str, **options: Any
    ) -> list[Hit]:
        from foveate.pipeline import query as queries
        from foveate.pipeline import refine, search

        asked = queries.parse(text, k=k, **options)
        if rerank is None and asked.mode != "hybrid":
            rerank = False  # who asks for one list wants to see that list
        chain = self.refinery.chain(rerank, use) if asked.text else []
        if chain:
            asked = dataclasses.replace(asked, k=max(k, chain[0][0].depth))
        hits = search.search(self.index, self.encoders, asked, self._search_options)
        return refine.rerank(asked.text, hits, chain, k) if chain else hits

    def ask(
        self,
        text: str,
        *,
        k: int | None = None,
        where: str | None = None,
        extractive: bool | None = None,
        rerank: bool | str | Sequence[str | Mapping[str, Any]] | None = None,
        watch: Callable[[str, Any], None] | None = None,
    ) -> Answer:
        """Answer from what is indexed; every sentence carries a citation, or it says it can't.

        k: passages that are considered. extractive: True answers with verbatim sentences, False
        writes with the reader, None does what the configuration says. rerank: as in `search`; None
        takes what is configured for questions. watch: gets what is there before the answer is:
        ('hits', list of Hit), then ('draft', str) for each piece that a generator writes.

        Raises:
            QueryError: for an empty question or a filter that cannot be read.
        """
        from foveate.pipeline import answer
        from foveate.pipeline.trace import Stages

        def boxes(source_id: str, span: tuple[int, int]) -> list[tuple[int, Box]]:
            # a writer may have taken the source away since it was found
            try:
                return self.boxes(source_id, span)
            except QueryError:
                return []

        if isinstance(text, str) and not text.strip():
            raise QueryError("the question is empty: ask something")
        options, generator = self._answering(extractive)
        stages = Stages()
        with stages.timed("search") as row:
            wanted = options.candidates if k is None else k
            hits = self._search(text, wanted, rerank=rerank, use="ask", where=where)
            row["hits"] = len(hits)
        if watch is not None:
            watch("hits", hits)
            generator = generator and Watched(generator, watch)
        context, arrange = self._refine(text, hits, options, generator, stages)
        material = answer.Material(
            hits=hits,
            texts=self.text,
            encoder=self.encoders["text"],
            generator=generator,
            boxes=boxes,
            context=context,
            arrange=arrange,
            image=self.image,
        )
        return answer.answer(text, material, options=options, stages=stages)

    def _refine(
        self,
        text: str,
        hits: Sequence[Hit],
        options: AnswerOptions,
        generator: Generator | None,
        stages: Stages,
    ) -> tuple[Context | None, Callable[[Context], Context] | None]:
        """Compress the hits, and say how what is shown is to be ordered; None where neither is."""
        compressor, orderer = self.refinery.compressor(), self.refinery.orderer()
        context = None
        if compressor is not None and hits:
            count = generator.count_tokens if generator else self._read_with().count_tokens
            with stages.timed("compress") as row:
                context = compressor.compress(text, hits, options.budget_tokens, count_tokens=count)
                row["kept"], row["tokens"] = len(context.kept), context.n_tokens

        def arrange(kept: Context) -> Context:
            with stages.timed("order"):
                return orderer.order(text, kept) if orderer is not None else kept

        return context, arrange if orderer is not None else None

    def chat(self, *, rewrite: str = "rules", **options: Any) -> Chat:
        """Begin a conversation, whose questions may lean on those before.

        rewrite: 'rules', or 'reader' to let the language model make follow-up questions whole.
        options: of `ask`, for every question.
        """
        from foveate.pipeline.chat import Chat

        return Chat(self, rewrite=rewrite, **options)

    def generator(self) -> Generator:
        """Return the generator that is configured; where it is 'extractive', the reader."""
        return self._generate_with()

    def show(self, hit: str | int) -> Passage:
        """Return the passage with this id or label ('3f2a90c1d4e5:7').

        Raises:
            QueryError: if there is none.
        """
        found: Passage = self.index.find(str(hit))
        return found

    def text(self, source_id: str) -> str:
        """Return a source's canonical text; every span counts code points of it."""
        found: str = self.index.source_text(source_id)
        return found

    def boxes(self, source_id: str, span: tuple[int, int]) -> list[tuple[int, Box]]:
        """Return (page, box) for each line of a span of a PDF or a picture's OCR text."""
        import numpy as np

        from foveate.pipeline.ingest.boxes import line_boxes

        words = self.index.word_boxes(source_id)
        if words is None:
            return []
        start, end = span
        inside = (words.spans[:, 1] > start) & (words.spans[:, 0] < end)
        pages = [int(page) for page in np.unique(words.pages[inside])]
        return [(page, box) for page in pages for box in line_boxes(words, start, end, page)]

    def image(self, passage: Passage) -> Image:
        """Return the picture or the rendered page behind a passage, upright.

        Raises:
            FoveateError: if its file is gone or the passage has neither page nor picture.
        """
        from foveate.pipeline.ingest.render import render

        passwords = tuple(self.config.get("ingest.pdf_passwords", ()))
        for uri in passage.source.uris:
            if os.path.exists(uri):
                return render(uri, passage, passwords=passwords)
        raise FoveateError(f"the file behind {passage.label} is gone: {passage.source.uri!r}")

    def heat_map(self, passage: Passage, query: str) -> Floats:
        """Return (rows, columns) float32, 0..1: where in a picture or page the query looks.

        Raises:
            ConfigError: if the image tower gives no patches.
            FoveateError: if the picture's file is gone.
        """
        from foveate.rerank import regions

        ((_, looking),) = self.refinery.chain("regions", "search")
        heat: Floats = regions.grid(*looking.heat(query, passage))  # type: ignore[attr-defined]
        return heat

    def matches(self, hit: Hit, query: str) -> list[Match]:
        """Return which token of the query matches which of the hit, in the query's order.

        Raises:
            ConfigError: if the index's encoders give no token vectors.
        """
        ((_, late),) = self.refinery.chain("late", "search")
        found: list[Match] = late.explain(query, hit)  # type: ignore[attr-defined]
        return found

    def status(self) -> dict[str, Any]:
        """Return counts, sizes on disk, vector kinds and their recall; JSON-able."""
        found: dict[str, Any] = self.index.status()
        return found

    def files(self, state: str | None = None) -> Iterator[FileRecord]:
        """Yield every file that was ever seen, with its state and the reason for it."""
        found: Iterator[FileRecord] = self.index.files(state)
        return found

    def remove(self, *targets: str | os.PathLike[str]) -> int:
        """Remove files, folders or sources (a label or id) from the index, not from the disk.

        Returns:
            The number of files removed.

        Raises:
            FoveateError: if a target is not in the index.
        """
        from foveate.pipeline import update

        with self.index.writer() as writer:
            return sum(update.remove(writer, self.index, target) for target in targets)

    def check(self) -> dict[str, Any]:
        """Compare the index with itself: integrity, and recall against an exact search."""
        found: dict[str, Any] = self.index.check()
        return found

    def compact(self) -> None:
        """Rewrite the index without what was removed; its bytes are gone from the disk after.

        So are the reader's kept keys, which may be of what was removed.
        """
        shutil.rmtree(self.path / "scan", ignore_errors=True)
        self.index.compact()

    @property
    def refinery(self) -> Refinery:
        """The stages that refine hits: rerankers, the compressor and the order."""
        from foveate.pipeline.ingest.sentences import sentences
        from foveate.pipeline.protocols import Resources
        from foveate.pipeline.refine import Refinery

        with self._lock:
            if self._refinery is None:
                lent = Resources(
                    encoders=self.encoders,
                    index=self.index,
                    folder=self.path,
                    text=self.text,
                    image=self.image,
                    sentences=sentences,
                    reader=self._read_with,
                    generator=self._generate_with,
                )
                self._refinery = Refinery(lent, self.config)
            return self._refinery

    def close(self) -> None:
        """Close the files; the engine can't be used after."""
        self.index.close()

    def _check_towers(self) -> None:
        from foveate.pipeline.search import check_tower

        for role, encoder in self.encoders.items():
            check_tower(self.index, role, encoder)

    def _answering(self, extractive: bool | None) -> tuple[Any, Generator | None]:
        """Return the answer's options and the generator, None when it quotes only."""
        from foveate.pipeline.answer import AnswerOptions

        table = self.config.table("generate")
        known = {f.name for f in dataclasses.fields(AnswerOptions)}
        chosen = {k: v for k, v in table.items() if k in known}
        options = configuration.make(AnswerOptions, chosen, "generate")
        if extractive is None:
            extractive = table.get("use", "extractive") == "extractive"
        return options, None if extractive else self._generate_with()

    def _generate_with(self) -> Generator:
        """Return the generator that is configured; where it is 'extractive', the reader."""
        from foveate.pipeline.answer import AnswerOptions

        table = self.config.table("generate")
        name = table.pop("use", "extractive")
        for field in dataclasses.fields(AnswerOptions):
            table.pop(field.name, None)
        if name == "extractive":
            name = "transformers"
        with self._lock:
            if self._generator is None:
                make = registry.find("generator", name)
                if name == "transformers" and not table.keys() - {"decoding"}:
                    table["reader"] = self._read_with()
                try:
                    self._generator = make(**table)
                except TypeError as error:
                    raise ConfigError(f"[generate] {name!r}: {error}") from error
            return self._generator

    def _read_with(self) -> Reader:
        """Return the one language model that reads, by the `[reader]` table."""
        from foveate.pipeline.reader import Reader

        with self._lock:
            if self._reader is None:
                try:
                    self._reader = Reader(**self.config.table("reader"))
                except TypeError as error:
                    raise ConfigError(f"[reader] {error}") from error
            return self._reader
