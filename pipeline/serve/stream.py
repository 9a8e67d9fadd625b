"""Server-sent events: the stages of an answer as they come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import FoveateError

if TYPE_CHECKING:
    from foveate.pipeline.serve.work import Desk

_LOG = logging.getLogger(__name__)
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
KEEP_ALIVE_S = 10.0

Watch = Callable[[str, Any], None]


class Left(Exception):
    """Nobody reads the events any more."""


def event(name: str, data: Any) -> bytes:
    """Return one event. JSON has no line breaks, so a text cannot end it early."""
    text = json.dumps(data, ensure_ascii=True, default=str)
    return f"event: {name}\ndata: {text}\n\n".encode()


async def stages(
    desk: Desk, work: Callable[[Watch], Any], *, most: int = 10_000
) -> AsyncIterator[tuple[str, Any]]:
    """Run work in a desk's thread; yield what it tells, then ('result', what it returns).

    An error is yielded as ('error', {...}). When the reader leaves, the work is told at its next
    step. most: events that wait; a reader who is further behind has left.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    gone = False

    def watch(name: str, data: Any) -> None:
        if gone or told.qsize() > most:
            raise Left("the reader has left")
        loop.call_soon_threadsafe(told.put_nowait, (name, data))

    async def run() -> None:
        try:
            result = await desk.run(lambda: work(watch))
        except Left:
            return
        except FoveateError as error:
            await told.put(("error", {"message": str(error), "type": type(error).__name__}))
        except Exception as error:  # the reader must learn of it: the status is sent already
            _LOG.exception("an answer failed")
            sentence = "the server failed; its log says why"
            await told.put(("error", {"message": sentence, "type": type(error).__name__}))
        else:
            await told.put(("result", result))

    task = asyncio.create_task(run())
    try:
        while True:
            try:
                name, data = await asyncio.wait_for(told.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield "wait", {}
                continue
            yield name, data
            if name in ("result", "error"):
                return
    finally:
        gone = True
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
