"""The application: every route, what stands before them, and what starts and ends with it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from foveate.pipeline import errors
from foveate.pipeline.errors import MissingExtra
from foveate.pipeline.serve.options import ServeOptions, check

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from mcp.server import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings
    from prometheus_client import CollectorRegistry  # noqa: F401  # asked for here, used in metrics
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise MissingExtra("foveate serve", str(error), "pip install 'foveate[serve]'") from error

from foveate.pipeline.serve import api, openai, service, work
from foveate.pipeline.serve.bodies import SessionBody
from foveate.pipeline.serve.faults import first_fault, is_other_than_json
from foveate.pipeline.serve.guard import COOKIE, Guard, Refused
from foveate.pipeline.serve.metrics import Counted, Metrics
from foveate.pipeline.serve.tools import tools

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine

_LOG = logging.getLogger(__name__)
PAGE = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
STATUS: tuple[tuple[type[Exception], int], ...] = (
    (api.NotFound, 404),
    (openai.UnknownModel, 404),
    (service.Forbidden, 403),
    (work.Busy, 503),
    (work.Stopping, 503),
    (work.TooSlow, 504),
    (errors.QueryError, 400),
    (errors.UnknownComponent, 400),
    (errors.ConfigError, 400),
    (errors.SpaceMismatch, 400),
    (errors.LoadError, 422),
    (errors.IndexLocked, 409),
    (errors.FoveateError, 500),
)


class Server:
    """An application, and the service, guard and metrics behind it."""

    def __init__(
        self, engine: Engine, options: ServeOptions | None = None, *, token: str | None = None
    ) -> None:
        self.options = options or ServeOptions()
        check(self.options, token)
        self.service = service.Service(engine, self.options)
        self.tools: MCPServer = tools(self.service)
        self.metrics = Metrics(gauges(self.service))
        self.app = self._application()
        self.guard = Guard(Counted(self.app, self.metrics), self.options, token)

    def _application(self) -> FastAPI:
        from foveate import __version__

        assistants = self.tools.streamable_http_app(
            stateless_http=True,
            json_response=True,
            max_request_body_size=self.options.max_body_bytes,
            # the guard has looked at the host and the origin already
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

        @contextlib.asynccontextmanager
        async def life(_: FastAPI) -> AsyncIterator[None]:
            async with self.tools.session_manager.run():
                yield
            self.service.close()

        app = FastAPI(
            title="foveate",
            version=__version__,
            description="Search an index, ask it, and open what it cites.",
            docs_url=None,  # their pages load scripts from elsewhere
            redoc_url=None,
            lifespan=life,
        )
        app.include_router(api.routes(self.service))
        app.include_router(openai.routes(self.service))
        self._add_page(app)
        self._add_house(app)
        app.router.routes.extend(assistants.routes)
        for kind, handler in ((errors.FoveateError, failed), (OSError, failed)):
            app.add_exception_handler(kind, handler)
        app.add_exception_handler(Refused, refused)
        app.add_exception_handler(RequestValidationError, invalid)
        app.add_exception_handler(HTTPException, missed)
        return app

    def _add_page(self, app: FastAPI) -> None:
        """Serve the page's few files from memory: no path of a request ever reaches the disk."""
        files = {name: (data, kind) for name, data, kind in page_files()}

        def answer(request: Request, name: str) -> Response:
            if name not in files:
                return problem(404, "there is no such file", "NotFound")
            data, kind = files[name]
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "no-cache"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(data, media_type=kind, headers=headers)

        @app.get("/", include_in_schema=False)
        async def index(request: Request) -> Response:
            return answer(request, "index.html")

        @app.get("/page/{name}", include_in_schema=False)
        async def file(request: Request, name: str) -> Response:
            return answer(request, name)

    def _add_house(self, app: FastAPI) -> None:
        """Add what those ask who keep the server: health, metrics and the page's session."""
        from foveate import __version__

        @app.get("/health", tags=["house"])
        async def health() -> dict[str, Any]:
            """Say that the server answers and the index can be read."""
            generation = await self.service.showing.run(
                lambda: self.service.engine.index.generation
            )
            return {"status": "ok", "version": __version__, "generation": generation}

        @app.get("/metrics", tags=["house"], response_class=Response)
        async def metrics() -> Response:
            """Return counters and times for Prometheus."""
            data, kind = self.metrics.text()
            return Response(data, headers={"content-type": kind})

        @app.get("/api/session", tags=["house"])
        async def session(request: Request) -> dict[str, Any]:
            """Say whether a token is needed, and whether this request has it."""
            headers = {k.lower(): v for k, v in request.headers.items()}
            locked = self.guard.locked
            return {"locked": locked, "open": not locked or self.guard.knows(headers)}

        @app.post("/api/session", tags=["house"])
        async def enter(body: SessionBody) -> Response:
            """Take the token from the page; a cookie stands for it until the server ends."""
            if not self.guard.locked:
                return JSONResponse({"locked": False, "open": True})
            if not self.guard.accepts(body.token):
                return problem(401, "that is not the token", "refused")
            made = JSONResponse({"locked": True, "open": True})
            made.set_cookie(COOKIE, self.guard.session, httponly=True, samesite="strict", path="/")
            return made


def page_files() -> list[tuple[str, bytes, str]]:
    """Return (name, bytes, media type) of each file of the page."""
    folder = resources.files("foveate.pipeline.serve").joinpath("page")
    kinds = dict(PAGE)
    for entry in folder.iterdir():
        if entry.name.endswith(".js"):
            kinds[entry.name] = "text/javascript; charset=utf-8"
    return [(name, folder.joinpath(name).read_bytes(), kind) for name, kind in kinds.items()]


def gauges(served: service.Service) -> dict[str, Any]:
    """Return what the metrics show beside the requests."""
    index = served.engine.index
    return {
        "index_generation": ("The number of the newest commit.", lambda: index.generation),
        "index_passages": ("Passages in the index.", lambda: index.count()),
        "searches_held": ("Searches that run or wait.", lambda: served.searching.held),
        "questions_held": ("Questions that run or wait.", lambda: served.asking.held),
        "jobs_open": (
            "Changes of the index that run or wait.",
            lambda: sum(not job.finished.is_set() for job in served.clerk.all()),
        ),
    }


def problem(
    status: int, sentence: str, kind: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return an error in the one shape that all have; OpenAI's clients read it too."""
    told = {"message": sentence, "type": kind, "code": None, "param": None}
    more = {"Retry-After": "2"} if status == 503 else {}
    return JSONResponse({"error": told}, status, {**more, **(headers or {})})


async def failed(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
    if status == 500:
        _LOG.error("a request failed: %s", error)
    sentence = str(error) if isinstance(error, errors.FoveateError) else "the disk or file failed"
    return problem(status, sentence, type(error).__name__)


async def refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(error.status, str(error), "refused")


async def invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    first = faults[0] if faults else {}
    broken = first.get("type") == "json_invalid"
    status = 400 if broken else 415 if is_other_than_json(first) else 422
    return problem(status, first_fault(faults, request.headers.get("content-type")), "invalid")


async def missed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, sentence = request.url.path[:100], str(error.detail)
    if error.status_code == 404:
        sentence = f"there is nothing at {path!r}: /openapi.json lists what there is"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        sentence = f"{path!r} does not take {request.method}: use {allowed}"
    return problem(error.status_code, sentence, "http", error.headers)
