"""Stream the lines of a file, whatever the width of its characters."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO


def raw_lines(handle: BinaryIO, encoding: str, limit_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield each line's bytes as UTF-8 where the file is wide, and whether it is whole.

    A line of more than limit_bytes is dropped (b"", False); memory never holds more than that.
    A lone CR does not end a line.
    """
    if encoding.startswith(("utf-16", "utf-32")):
        yield from _wide_lines(handle, encoding, limit_bytes)
        return
    while line := handle.readline(limit_bytes + 1):
        if len(line) <= limit_bytes:
            yield line, True
            continue
        while line and not line.endswith(b"\n"):
            line = handle.readline(limit_bytes)
        yield b"", False


def _wide_lines(handle: BinaryIO, encoding: str, limit_bytes: int) -> Iterator[tuple[bytes, bool]]:
    reader = io.TextIOWrapper(handle, encoding, errors="replace", newline="\n")
    try:
        while line := reader.readline(limit_bytes):
            raw = line.encode("utf-8", "surrogatepass")
            whole = len(raw) <= limit_bytes and (line.endswith("\n") or len(line) < limit_bytes)
            while line and not line.endswith("\n") and not whole:
                line = reader.readline(limit_bytes)
            yield (raw, True) if whole else (b"", False)
    finally:
        # the caller closes the handle
        reader.detach()


def line_encoding(encoding: str) -> str:
    """The encoding of the bytes that `raw_lines` yields."""
    return "utf-8" if encoding.startswith(("utf-16", "utf-32", "ascii")) else encoding
