"""The files of word search: sound or damaged, left behind, or in a folder with an odd name."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from foveate.pipeline.errors import CorruptIndex, IndexWriteError

_FOOTER_MAGIC = 1337


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn what tantivy says about files that it cannot read into `CorruptIndex`."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise CorruptIndex(f"cannot read the words {str(folder)!r}: {error}") from error
    except BaseException as error:
        # a Rust panic comes as a BaseException of a class that no module offers
        if type(error).__name__ != "PanicException":
            raise
        raise CorruptIndex(f"the words {str(folder)!r} are damaged: {error}") from error


def check_files(folder: Path, sound: set[str]) -> None:
    """Compare the files that tantivy lists with the CRC-32 in their footers; it never does.

    sound: names that were compared before; those that are found sound are added. The files never
    change once they are written.

    Raises:
        CorruptIndex: a file is damaged.
    """
    try:
        listed = json.loads((folder / "meta.json").read_text("utf-8"))["segments"]
        names = [name for segment in listed for name in _file_names(segment)]
        for name in names:
            if name not in sound and not _is_sound((folder / name).read_bytes()):
                raise CorruptIndex(f"the words {str(folder / name)!r} are damaged (checksum)")
            sound.add(name)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptIndex(f"cannot read the words {str(folder)!r}: {error}") from error


def _file_names(segment: dict[str, Any]) -> list[str]:
    stem = str(segment["segment_id"]).replace("-", "")
    names = [f"{stem}.{part}" for part in ("fast", "fieldnorm", "idx", "pos", "store", "term")]
    if segment.get("deletes"):
        names.append(f"{stem}.{segment['deletes']['opstamp']}.del")
    return names


def _is_sound(data: bytes) -> bool:
    # body, footer as JSON, its length, a magic number
    if len(data) < 8:
        return False
    length, magic = struct.unpack("<II", data[-8:])
    if magic != _FOOTER_MAGIC or length + 8 > len(data):
        return False
    try:
        crc = json.loads(data[-8 - length : -8])["crc"]
    except (ValueError, TypeError, KeyError):
        return False
    return bool(zlib.crc32(memoryview(data)[: -8 - length]) == crc)


def utf8_path(folder: Path) -> str:
    """Return a path that Rust's UTF-8 texts can hold, by way of a link where this one cannot.

    A path has other bytes where a folder's name is not UTF-8, or where Python takes names for
    ASCII, as in the locale C.
    """
    raw = os.fsencode(folder)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        link = os.path.join(_links(), zlib.crc32(raw).to_bytes(4, "big").hex())
        if not os.path.islink(link):
            os.symlink(folder, link)
        return link


@cache
def _links() -> str:
    folder = tempfile.mkdtemp(prefix="foveate-links-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def sweep_deletions(folder: Path) -> None:
    """Delete lists of deleted documents that a killed writer left: their names come again."""
    try:
        listed = json.loads((folder / "meta.json").read_text("utf-8"))["segments"]
    except (FileNotFoundError, KeyError, TypeError):
        return
    names = {name for segment in listed for name in _file_names(segment)}
    for path in folder.glob("*.del"):
        if path.name not in names:
            path.unlink()


class failing:
    """Turn tantivy's errors into ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError | OSError):
            raise IndexWriteError(
                f"could not write the words {str(self.folder)!r}: {error}; every committed source "
                "is kept and the words are brought up to date by the next writer"
            ) from error
