"""One writer at a time, across threads and processes. A holder that dies lets go by dying."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foveate.index.storage import PRIVATE_FILE
from foveate.pipeline.errors import IndexLocked

_POLL_S = 0.05
_NEXT = "wait with --wait SECONDS (timeout_s in Python), or stop it"
_held: set[int] = set()


def _let_go_in_child() -> None:
    # flock belongs to the open file, which a fork shares: a child that outlived its parent would
    # keep the lock without knowing of it
    for handle in _held:
        try:
            os.close(handle)
        except OSError:
            continue
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)

if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> bool:
        try:
            # far behind the text, as Windows refuses reads of the locked bytes
            os.lseek(handle, 1 << 30, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _take(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class WriterLock:
    """The right to write to the index whose lock file this is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def acquire(self, timeout_s: float = 0.0) -> None:
        """Take the lock, waiting at most `timeout_s`.

        Raises:
            IndexLocked: another writer has it; the message says who and since when.
            OSError: the lock file cannot be opened for writing.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
            if _take(handle):
                break
            os.close(handle)
            if time.monotonic() >= deadline:
                raise IndexLocked(self._message())
            time.sleep(_POLL_S)
        _held.add(handle)
        self._handle = handle
        self._sign(handle)

    def release(self) -> None:
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        if handle in _held:
            _held.discard(handle)
            try:
                os.ftruncate(handle, 0)
            finally:
                os.close(handle)

    def holder(self) -> dict[str, Any] | None:
        """Return pid, host, since and command of who signed the lock file last, if anyone."""
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _sign(self, handle: int) -> None:
        text = json.dumps(
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": " ".join(sys.argv)[:200],
            }
        )
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, text.encode("utf-8"))

    def _message(self) -> str:
        who = self.holder()
        folder = str(self.path.parent)
        if who is None:
            return f"another process is writing to {folder!r}: {_NEXT}"
        return (
            f"{folder!r} is being written to by process {who.get('pid')} on {who.get('host')} "
            f"since {who.get('since')} ({who.get('command')}): {_NEXT}"
        )
