"""Vectors on disk: files that are written once, mapped into memory and never changed.

A segment is a header of 64 bytes, then ids (n,) int64, sources (n,) int64, modalities (n,) uint8,
and, from the next multiple of 64, vectors (n, dim) float32; all little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from foveate.index.storage import checksum, write_file
from foveate.pipeline.errors import CorruptIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Ints

_HEADER = struct.Struct("<8sQI44x")
_MAGIC = b"FVSEG001"
_BLOCK_ROWS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Vectors and whose they are.

    ids, sources: (n,) int64, ids ascending. modalities: (n,) uint8, an index into MODALITIES.
    vectors: (n, dim) float32, L2-normalised; or more rows, of which `pick` (n,) int64 are meant.
    """

    ids: Ints
    sources: Ints
    modalities: NDArray[np.uint8]
    vectors: Floats
    pick: Ints | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def blocks(self) -> Iterator[Floats]:
        """Yield the vectors in pieces that fit the processor's cache and the memory limit."""
        for start in range(0, len(self), _BLOCK_ROWS):
            stop = start + _BLOCK_ROWS
            if self.pick is None:
                yield self.vectors[start:stop]
            else:
                yield self.vectors[self.pick[start:stop]]

    def keep(self, places: Ints) -> Rows:
        """Return only the rows at these places; the vectors are not copied."""
        return Rows(
            self.ids[places], self.sources[places], self.modalities[places], self.vectors, places
        )


def _offset(n: int) -> int:
    return (_HEADER.size + 17 * n + 63) // 64 * 64


def segment_bytes(n: int, dim: int) -> int:
    """Return the size of a segment's file."""
    return _offset(n) + 4 * n * dim


def write_segment(path: Path, parts: list[Rows], dim: int) -> tuple[int, int]:
    """Write parts, one after the other, as one segment. Returns the number of rows and the CRC.

    Raises:
        OSError: the file could not be written; nothing is left behind.
    """
    n = sum(map(len, parts))
    crc = 0

    def fill(file: BinaryIO) -> None:
        nonlocal crc

        def put(data: bytes | memoryview) -> None:
            nonlocal crc
            crc = zlib.crc32(data, crc)
            file.write(data)

        put(_HEADER.pack(_MAGIC, n, dim))
        for kind, name in (("<i8", "ids"), ("<i8", "sources"), ("u1", "modalities")):
            for part in parts:
                put(np.ascontiguousarray(getattr(part, name), dtype=kind).tobytes())
        put(b"\0" * (_offset(n) - _HEADER.size - 17 * n))
        for part in parts:
            for block in part.blocks():
                put(np.ascontiguousarray(block, dtype="<f4").tobytes())

    write_file(path, fill)
    return n, crc


def open_segment(path: Path, n: int, dim: int, crc: int) -> Rows:
    """Map a segment into memory, once all of it has been compared with its CRC.

    Raises:
        CorruptIndex: it is missing, cut, or not what the catalogue says.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise CorruptIndex(f"cannot read the vectors {str(path)!r}: {error}") from error
    want = segment_bytes(n, dim)
    if size != want or head != _HEADER.pack(_MAGIC, n, dim):
        raise CorruptIndex(
            f"the vectors {str(path)!r} are damaged: expected {n} x {dim} in {want} bytes, "
            f"got {size} bytes: restore the file, or index the folder anew"
        )
    try:
        is_sound = checksum(path) == crc
    except OSError as error:
        raise CorruptIndex(f"cannot read the vectors {str(path)!r}: {error}") from error
    if not is_sound:
        raise CorruptIndex(
            f"the vectors {str(path)!r} are damaged (checksum): restore the file, or index the "
            "folder anew"
        )
    column = np.fromfile(path, dtype="<i8", count=2 * n, offset=_HEADER.size)
    kinds = np.fromfile(path, dtype="u1", count=n, offset=_HEADER.size + 16 * n)
    vectors = np.memmap(path, dtype="<f4", mode="r", offset=_offset(n), shape=(n, dim))
    return Rows(column[:n], column[n:], kinds, np.asarray(vectors))
