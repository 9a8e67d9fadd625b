"""The routes under /api: what the page uses, and any program may."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from foveate.pipeline.errors import FoveateError, QueryError
from foveate.pipeline.serve.bodies import LABEL, SPAN, AddBody, AskBody, RemoveBody, SearchBody
from foveate.pipeline.serve.faults import wanted
from foveate.pipeline.serve.guard import Refused
from foveate.pipeline.serve.pictures import WIDEST_PX, etag
from foveate.pipeline.serve.service import Service
from foveate.pipeline.serve.stream import HEADERS, event, stages
from foveate.pipeline.serve.work import Job

T = TypeVar("T")

Label = Annotated[str, Path(pattern=r"^([0-9a-f]{12}:\d{1,9}|\d{1,19})$"), LABEL]
Span = Annotated[str | None, Query(pattern=r"^\d{1,10}-\d{1,10}$"), SPAN]
Wait = Annotated[float, Query(ge=0, le=120)]
JobId = Annotated[
    str,
    Path(pattern=r"^[0-9a-f]{16}$"),
    wanted("16 digits 0-9a-f", "adding and removing return a job with an id"),
]


def routes(service: Service) -> APIRouter:
    """Return the routes of one service."""
    router = APIRouter(prefix="/api")
    router.include_router(reading(service))
    router.include_router(writing(service))
    return router


def reading(service: Service) -> APIRouter:
    """Return the routes that change nothing."""
    router = APIRouter(tags=["read"])

    @router.post("/search")
    async def search(body: SearchBody) -> dict[str, Any]:
        """Find passages and pictures by words, by a picture, or by both."""
        return await service.searching.run(lambda: service.search(body))

    @router.post("/ask", response_model=None)
    async def ask(body: AskBody) -> Response | dict[str, Any]:
        """Answer a question with citations, in server-sent events unless stream is false.

        What cannot be asked at all is refused before the events begin.

        Events: `hits` (what was found), `draft` (what the reader writes, not yet checked),
        `answer` (the answer with its citations and trace), `error`; `wait` only keeps the line.
        """
        if not body.stream:
            return await service.asking.run(lambda: service.answer(body))
        await service.showing.run(lambda: service.check_question(body))
        return StreamingResponse(told(service, body), 200, HEADERS, "text/event-stream")

    @router.get("/passages/{label}")
    async def show(
        label: Label, span: Span = None, q: Annotated[str, Query(max_length=4000)] = ""
    ) -> dict[str, Any]:
        """Return a passage, or a span of its source, in its surroundings, with its boxes."""
        return await service.showing.run(lambda: found(lambda: service.show(label, span, q)))

    @router.get("/passages/{label}/picture", response_class=Response)
    async def picture(
        request: Request,
        label: Label,
        width: Annotated[int, Query(ge=16, le=WIDEST_PX)] = 1200,
        span: Span = None,
        crop: bool = False,
    ) -> Response:
        """Return the picture or page behind a passage as JPEG; crop: only where the span is."""

        def make() -> bytes:
            return found(lambda: service.picture(label, width_px=width, span=span, crop=crop))

        data = await service.showing.run(make)
        tag = etag(hashlib.sha256(data).digest())
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type="image/jpeg", headers=headers)

    @router.get("/passages/{label}/heat")
    async def heat(
        label: Label, q: Annotated[str, Query(min_length=1, max_length=4000)]
    ) -> dict[str, Any]:
        """Return where in a picture or page the words look: rows of numbers within 0..1."""
        return await service.showing.run(lambda: found(lambda: service.heat(label, q)))

    @router.get("/status")
    async def status(files: bool = False) -> dict[str, Any]:
        """Say what the index holds; files: list every file, its state and why."""
        from foveate.pipeline import records

        def look() -> dict[str, Any]:
            counts = service.status()
            if files:
                counts = {**counts, "files": records.files(list(service.engine.files()))}
            return counts

        return await service.showing.run(look)

    @router.get("/jobs")
    async def jobs() -> dict[str, Any]:
        """List the changes of the index, the newest first."""
        return {"jobs": [job.as_dict() for job in service.clerk.all()]}

    @router.get("/jobs/{job_id}")
    async def job(job_id: JobId) -> dict[str, Any]:
        """Say how far a change of the index is."""
        known = service.clerk.find(job_id)
        if known is None:
            raise NotFound(f"there is no job {job_id!r}")
        return known.as_dict()

    return router


def writing(service: Service) -> APIRouter:
    """Return the routes that change the index."""
    router = APIRouter(tags=["write"])

    @router.post("/files", status_code=202)
    async def upload(
        request: Request, name: Annotated[str, Query(max_length=1000)], wait_s: Wait = 0.0
    ) -> JSONResponse:
        """Take in a file, its bytes as the body, and index it; wait_s: for the end of that."""
        path = await asyncio.to_thread(service.new_upload, name)
        try:
            await save(request, str(path))
            job = service.add_upload(path)
        except BaseException:
            await asyncio.to_thread(discard, str(path))
            raise
        return await reported(job, wait_s)

    @router.post("/add", status_code=202)
    async def add(body: AddBody, wait_s: Wait = 0.0) -> JSONResponse:
        """Index files and folders that are below the server's roots."""
        job = await asyncio.to_thread(
            service.add, body.paths, prune=body.prune, refresh=body.refresh
        )
        return await reported(job, wait_s)

    @router.post("/remove", status_code=202)
    async def remove(body: RemoveBody, wait_s: Wait = 0.0) -> JSONResponse:
        """Take files, folders or labels out of the index; only uploads go from the disk too."""
        return await reported(service.remove(body.targets, erase=body.erase), wait_s)

    return router


class NotFound(FoveateError):
    """Something that is named and is not there."""


def found(work: Callable[[], T]) -> T:
    """Run work; a passage that is not there is not a mistake of the query but a 404."""
    try:
        return work()
    except QueryError as error:
        if str(error).startswith("span"):
            raise
        raise NotFound(str(error)) from error


async def told(service: Service, body: AskBody) -> AsyncIterator[bytes]:
    """Yield the events of an answer."""
    async for name, data in stages(service.asking, lambda watch: service.answer(body, watch)):
        if name == "hits":
            data = [service.hit(h, i, body.text) for i, h in enumerate(data, start=1)]
        yield event("answer" if name == "result" else name, data)


async def save(request: Request, path: str) -> None:
    """Write a request's body to a new private file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        n = 0
        async for piece in request.stream():
            n += len(piece)
            await asyncio.to_thread(handle.write, piece)
    if not n:
        raise Refused(400, "the body is empty: send the file's bytes as the body")


def discard(path: str) -> None:
    import shutil

    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


async def reported(job: Job, wait_s: float) -> JSONResponse:
    """Return a job, after it has ended or the wait is over: 200 done, 422 failed, 202 not yet."""
    if wait_s:
        await asyncio.to_thread(job.finished.wait, wait_s)
    status = {"done": 200, "failed": 422}.get(job.state, 202)
    content: dict[str, Any] = {"job": job.as_dict()}
    if job.error:
        content["error"] = {"message": job.error, "type": "failed"}
    return JSONResponse(content, status, {"Location": f"/api/jobs/{job.id}"})
