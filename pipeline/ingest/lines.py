"""Stream the lines of a file, whatever the width of its characters."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

_HEAD_BYTES = 1 << 16


def raw_lines(handle: BinaryIO, encoding: str, limit_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield each line's bytes as UTF-8 where the file is wide, and whether it is whole.

    A line of more than limit_bytes is dropped (b"", False); memory never holds more than that.
    A lone CR ends a line only in a file whose beginning has no other line end.
    """
    head = handle.read(_HEAD_BYTES)
    handle.seek(-len(head), io.SEEK_CUR)
    lone = b"\r" in head and b"\n" not in head
    if encoding.startswith(("utf-16", "utf-32")):
        yield from _wide_lines(handle, encoding, limit_bytes, "\r" if lone else "\n")
        return
    if lone:
        yield from _cr_lines(handle, limit_bytes)
        return
    while line := handle.readline(limit_bytes + 1):
        if len(line) <= limit_bytes:
            yield line, True
            continue
        while line and not line.endswith(b"\n"):
            line = handle.readline(limit_bytes)
        yield b"", False


def _cr_lines(handle: BinaryIO, limit_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield lines that end with CR, with LF in its place."""
    rest, whole = b"", True
    while piece := handle.read(_HEAD_BYTES):
        *lines, rest = (rest + piece).split(b"\r")
        for line in lines:
            whole = whole and len(line) <= limit_bytes
            yield (line + b"\n", True) if whole else (b"", False)
            whole = True
        if len(rest) > limit_bytes:
            rest, whole = b"", False
    if rest or not whole:
        yield (rest, True) if whole else (b"", False)


def _wide_lines(
    handle: BinaryIO, encoding: str, limit_bytes: int, end: str
) -> Iterator[tuple[bytes, bool]]:
    reader = io.TextIOWrapper(handle, encoding, errors="replace", newline=end)
    try:
        while line := reader.readline(limit_bytes):
            raw = line.encode("utf-8", "surrogatepass")
            whole = len(raw) <= limit_bytes and (line.endswith(end) or len(line) < limit_bytes)
            while line and not line.endswith(end) and not whole:
                line = reader.readline(limit_bytes)
            if end == "\r" and raw.endswith(b"\r"):
                raw = raw[:-1] + b"\n"
            yield (raw, True) if whole else (b"", False)
    finally:
        # the caller closes the handle
        reader.detach()


def line_encoding(encoding: str) -> str:
    """The encoding of the bytes that `raw_lines` yields."""
    return "utf-8" if encoding.startswith(("utf-16", "utf-32", "ascii")) else encoding
