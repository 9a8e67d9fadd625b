"""Write files so that they are wholly there or not at all, and only their owner can read them."""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from foveate.pipeline.errors import CorruptIndex, IndexWriteError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut. Windows has no such call and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter."""
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    sync_folder(folder.parent)


def write_file(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Write a file aside, sync it, rename it into place and sync the folder."""
    aside = path.with_name(path.name + ".new")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file, read in pieces of a megabyte."""
    value = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return value


def folder_bytes(folder: Path) -> int:
    """Return the bytes that a folder's files take; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def reason(error: Exception) -> str:
    """Say in plain words why a write failed."""
    number = getattr(error, "errno", None)
    text = str(error)
    if number in _FULL or "full" in text or "File too large" in text or "No space" in text:
        return f"the disk is full or a size limit is reached ({text})"
    if "disk I/O error" in text:
        return f"the disk is full, or a size limit or a fault stops it ({text})"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM) or "readonly" in text:
        return f"the folder cannot be written to ({text})"
    return text


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the system says about a failed write into `IndexWriteError`.

    Raises:
        IndexWriteError: the disk is full, the folder is read-only, or a device failed.
        CorruptIndex: the catalogue is not a database any more.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise IndexWriteError(
            f"could not write to the index {str(folder)!r}: {reason(error)}; "
            "it stands as it was at the last commit"
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise CorruptIndex(f"the catalogue of {str(folder)!r} cannot be read: {error}") from error
    except OSError as error:
        raise IndexWriteError(
            f"could not write to the index {str(folder)!r}: {reason(error)}; "
            "it stands as it was at the last commit"
        ) from error
