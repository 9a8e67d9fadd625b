"""Run a server: over HTTP until it is told to stop, or over stdin and stdout for one assistant."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.serve.app import Server
from foveate.pipeline.serve.options import ServeOptions

import uvicorn  # isort: skip  # app says what to install when the extra is missing
from uvicorn.protocols.http.h11_impl import H11Protocol  # isort: skip

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine

_LOG = logging.getLogger(__name__)
KEEP_ALIVE_S = 15
SHUTDOWN_S = 10


def protocol(patience_s: float) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol, with an end to waiting for a request's head.

    uvicorn bounds the time between requests only: a client who sends a head byte by byte would
    hold its connection for ever.
    """

    class Patient(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._head_timer is None:
                self._wait()

        def on_response_complete(self) -> None:
            self._stop()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._head_timer = self.loop.call_later(patience_s, self._give_up)

        def _stop(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return Patient


class Listener:
    """A server that listens. In the main thread it ends by SIGINT or SIGTERM, else by `stop`."""

    def __init__(
        self, engine: Engine, options: ServeOptions | None = None, *, token: str | None = None
    ) -> None:
        self.server = Server(engine, options, token=token)
        self.options = options = self.server.options
        config = uvicorn.Config(
            self.server.guard,
            http=protocol(options.patience_s),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=options.n_connections,
            backlog=min(2048, 4 * options.n_connections),
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
            h11_max_incomplete_event_size=64 << 10,
            lifespan="on",
        )
        self._uvicorn = uvicorn.Server(config)
        self._socket = listen(options)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until it is stopped. ready: gets the address once it listens."""
        # weights load on the first search: nobody's request should wait for that
        self.server.service.engine.search("warm", k=1)
        if ready is not None:
            ready(self.url)
        self._uvicorn.run(sockets=[self._socket])

    def start(self) -> Listener:
        """Serve in a thread of its own; return when requests are answered."""
        self._thread = threading.Thread(target=self.run, name="foveate-serve", daemon=True)
        self._thread.start()
        while not self._uvicorn.started:
            self._thread.join(0.01)
            if not self._thread.is_alive():
                raise ConfigError("the server ended before it answered: see its log")
        return self

    def stop(self) -> None:
        """Let requests end, commit or roll back what is being written, and close."""
        self._uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Listener:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


def listen(options: ServeOptions) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: if the address cannot be taken.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    taken = socket.socket(family)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((options.host.strip("[]"), options.port))
    except OSError as error:
        taken.close()
        raise ConfigError(
            f"cannot listen on {options.host}:{options.port}: {error.strerror or error}; "
            "name another with --host and --port"
        ) from error
    taken.set_inheritable(True)
    return taken


def speak(engine: Engine, options: ServeOptions | None = None) -> None:
    """Serve one assistant over stdin and stdout until it closes them."""
    server = Server(engine, options)
    try:
        asyncio.run(server.tools.run_stdio_async())
    finally:
        server.service.close()
