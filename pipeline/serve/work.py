"""Threads that do the work of requests: so many at once, so many waiting, one that writes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from foveate.pipeline.errors import FoveateError

T = TypeVar("T")

JOBS_KEPT = 200
JOBS_WAITING = 64


class Busy(FoveateError):
    """There is more to do than is let in."""


class TooSlow(FoveateError):
    """A request took longer than it may."""


class Stopping(FoveateError):
    """The server is being shut down."""


class Desk:
    """A number of threads for one kind of work, and a bounded queue before them.

    A thread cannot be interrupted: a caller who waits too long is let go, while its place stays
    taken until the work is done, so that there is never more of it than threads.
    """

    def __init__(self, name: str, *, threads: int, waiting: int, timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"foveate-{name}")
        self._room = threads + waiting
        self._timeout_s = timeout_s
        self._held = 0
        self._lock = threading.Lock()
        self.name = name

    @property
    def held(self) -> int:
        """How much is being done or waits."""
        return self._held

    @contextlib.contextmanager
    def _place(self) -> Iterator[Callable[[], None]]:
        with self._lock:
            if self._held >= self._room:
                raise Busy(f"{self._held} requests are waiting already: try again in a moment")
            self._held += 1
        left = threading.Event()

        def leave() -> None:
            if not left.is_set():
                left.set()
                with self._lock:
                    self._held -= 1

        try:
            yield leave
        except BaseException:
            leave()
            raise

    async def run(self, work: Callable[[], T]) -> T:
        """Do something in one of the threads.

        Raises:
            Busy: if there is no room to wait. TooSlow: after the time is up.
        """
        with self._place() as leave:
            try:
                future = self._pool.submit(work)
            except RuntimeError as error:
                raise Stopping("the server is being shut down") from error
            future.add_done_callback(lambda _: leave())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise TooSlow(f"it took longer than {self._timeout_s:g} s") from error

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


State = Literal["waiting", "running", "done", "failed"]


@dataclass(slots=True)
class Job:
    """One change of the index. stage, n_done, n_all: how far it is; report: what it did.

    path: where an uploaded file is kept. label, open: its first passage, when it is indexed, and
    the address that opens it on the page.
    """

    kind: str
    what: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    state: State = "waiting"
    stage: str = ""
    n_done: int = 0
    n_all: int | None = None
    report: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    path: str | None = None
    label: str | None = None
    open: str | None = None
    started: float = field(default_factory=time.time)
    ended: float | None = None
    finished: threading.Event = field(default_factory=threading.Event, repr=False)

    def as_dict(self) -> dict[str, Any]:
        names = ("id", "kind", "what", "state", "stage", "n_done", "n_all", "report", "error")
        found = {name: getattr(self, name) for name in (*names, "path", "label", "open")}
        ended = None if self.ended is None else round(self.ended, 3)
        return {**found, "started": round(self.started, 3), "ended": ended}


class Clerk:
    """The one who writes: changes of the index wait in line and are done one after another."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="foveate-write")
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def submit(
        self, kind: str, what: str, work: Callable[[Job], dict[str, Any]], path: str | None = None
    ) -> Job:
        """Put a change in line. path: of the uploaded file that it is about.

        Raises:
            Busy: if too many wait. Stopping: if the server is being shut down.
        """
        job = Job(kind, what, path=path)
        with self._lock:
            if self._stopping.is_set():
                raise Stopping("the server is being shut down")
            open_jobs = [j for j in self._jobs.values() if not j.finished.is_set()]
            if len(open_jobs) >= JOBS_WAITING:
                raise Busy(f"{len(open_jobs)} changes are waiting already: try again in a moment")
            self._jobs[job.id] = job
            for old in [j.id for j in self._jobs.values() if j.finished.is_set()][:-JOBS_KEPT]:
                del self._jobs[old]
        self._pool.submit(self._do, job, work)
        return job

    def _do(self, job: Job, work: Callable[[Job], dict[str, Any]]) -> None:
        job.state = "running"
        try:
            if self._stopping.is_set():
                raise Stopping("the server was shut down before its turn came")
            job.report = work(job)
            job.state = "done"
        except Exception as error:  # whatever it is, the next change must have its turn
            told = isinstance(error, FoveateError | OSError)
            job.error = str(error) if told else f"{type(error).__name__}: {error}"
            job.state = "failed"
        finally:
            job.ended = time.time()
            job.finished.set()

    def progress(self, job: Job) -> Callable[[str, int, int | None], None]:
        """Return what tells how far a job is, and ends it when the server stops."""

        def report(stage: str, done: int, total: int | None) -> None:
            if self._stopping.is_set():
                raise Stopping("the server was shut down; what was committed is kept")
            job.stage, job.n_done, job.n_all = stage, done, total

        return report

    def find(self, job_id: str) -> Job | None:
        with self._lock:
            return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Return the newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def close(self) -> None:
        """End what is running at its next step, drop what waits, and wait for the thread."""
        self._stopping.set()
        self._pool.shutdown(wait=True)
