"""Token vectors on disk: ragged, coded, written once, mapped into memory and never changed.

A segment is a header of 64 bytes; ids (n,) int64, sources (n,) int64, modalities (n,) uint8; from
the next multiple of 64, offsets (n+1,) int64 and scales (t,) float16; from the next multiple of
64, codes (t, width): int8, or one bit a dimension, the most significant first. Little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from foveate.index.storage import checksum, write_file
from foveate.pipeline.errors import CorruptIndex
from foveate.pipeline.types import MultiVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Ints

_HEADER = struct.Struct("<8sQQII32x")
_MAGIC = b"FVTOK001"
_BLOCK_ITEMS = 512
CODES = ("onebit", "int8")
_KINDS: dict[str, Any] = {"onebit": np.uint8, "int8": np.int8}


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Coded token vectors of items, and whose they are.

    ids, sources: (n,) int64, ids ascending. modalities: (n,) uint8. offsets: (n+1,) int64.
    scales: (t,) float16. codes: (t, width) int8, or uint8 for one bit a dimension. pick: (m,)
    int64, the items that are meant; None for all.
    """

    ids: Ints
    sources: Ints
    modalities: NDArray[np.uint8]
    offsets: Ints
    scales: NDArray[np.float16]
    codes: NDArray[Any]
    pick: Ints | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Ints:
        """(n,) int64: tokens of each item."""
        sizes = np.diff(self.offsets)
        return sizes if self.pick is None else sizes[self.pick]

    def keep(self, places: Ints) -> TokenRows:
        """Return only the items at these places; nothing is copied."""
        pick = places if self.pick is None else self.pick[places]
        return TokenRows(
            self.ids[places], self.sources[places], self.modalities[places], self.offsets,
            self.scales, self.codes, pick,
        )  # fmt: skip

    def take(self, places: Ints) -> tuple[NDArray[Any], NDArray[np.float16], Ints]:
        """Copy items out. Returns codes (t', width), scales (t',), offsets (m+1,)."""
        items = places if self.pick is None else self.pick[places]
        starts, sizes = self.offsets[items], self.offsets[items + 1] - self.offsets[items]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        return self.codes[rows], self.scales[rows], offsets

    def blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.float16]]]:
        """Yield codes and scales a few items at a time."""
        for start in range(0, len(self), _BLOCK_ITEMS):
            places = np.arange(start, min(start + _BLOCK_ITEMS, len(self)))
            codes, scales, _ = self.take(places)
            yield codes, scales


def width_of(code: str, dim: int) -> int:
    """Return the bytes of one token's codes."""
    return dim if code == "int8" else -(-dim // 8)


def encode(vectors: MultiVectors, code: str) -> tuple[NDArray[Any], NDArray[np.float16]]:
    """Return codes (t, width) and scales (t,) float16 of token vectors (t, d).

    int8: scale = max |x| / 127. onebit: the sign of each dimension, scale = mean |x|
    (XNOR-Net, arXiv 1603.05279). What `decode` gives is coded alike again.
    """
    x = vectors.vectors
    if code == "onebit":
        return np.packbits(x > 0, axis=1), np.abs(x).mean(1).astype(np.float16)
    scales = (np.abs(x).max(1) / 127).astype(np.float16) if x.size else np.zeros(0, np.float16)
    divisor = np.maximum(scales.astype(np.float32), 1e-12)[:, None]
    return np.rint(x / divisor).clip(-127, 127).astype(np.int8), scales


def decode(codes: NDArray[Any], scales: NDArray[np.float16], dim: int) -> Floats:
    """Return (t, dim) float32."""
    if codes.dtype == np.uint8:
        values = np.unpackbits(codes, axis=1, count=dim).astype(np.float32) * 2 - 1
    else:
        values = codes.astype(np.float32)
    values *= scales.astype(np.float32)[:, None]
    return values


def _layout(n: int, n_tokens: int) -> tuple[int, int]:
    """Return where the offsets and where the codes begin."""
    first = (_HEADER.size + 17 * n + 63) // 64 * 64
    return first, (first + 8 * (n + 1) + 2 * n_tokens + 63) // 64 * 64


def write_segment(path: Path, parts: Sequence[TokenRows], width: int) -> tuple[int, int]:
    """Write parts, one after the other, as one segment. Returns the number of items and the CRC.

    Raises:
        OSError: the file could not be written; nothing is left behind.
    """
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<i8")
    n, n_tokens = len(lengths), int(offsets[-1])
    first, second = _layout(n, n_tokens)
    crc = 0

    def fill(file: BinaryIO) -> None:
        nonlocal crc

        def put(data: bytes) -> None:
            nonlocal crc
            crc = zlib.crc32(data, crc)
            file.write(data)

        kind = 1 if parts[0].codes.dtype == np.uint8 else 8
        put(_HEADER.pack(_MAGIC, n, n_tokens, width, kind))
        for type_, name in (("<i8", "ids"), ("<i8", "sources"), ("u1", "modalities")):
            for part in parts:
                put(np.ascontiguousarray(getattr(part, name), dtype=type_).tobytes())
        put(b"\0" * (first - file.tell()))
        put(offsets.tobytes())
        for part in parts:
            for _, scales in part.blocks():
                put(np.ascontiguousarray(scales, dtype="<f2").tobytes())
        put(b"\0" * (second - file.tell()))
        for part in parts:
            for codes, _ in part.blocks():
                put(np.ascontiguousarray(codes).tobytes())

    write_file(path, fill)
    return n, crc


def open_segment(path: Path, n: int, dim: int, crc: int) -> TokenRows:
    """Map a segment into memory, once all of it has been compared with its CRC.

    Raises:
        CorruptIndex: it is missing, cut, or not what the catalogue says.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
        is_sound = checksum(path) == crc
        size = path.stat().st_size
    except OSError as error:
        raise CorruptIndex(f"cannot read the token vectors {str(path)!r}: {error}") from error
    magic, items, n_tokens, width, kind = (
        _HEADER.unpack(head) if len(head) == _HEADER.size else (b"", 0, 0, 0, 0)
    )
    code = "onebit" if kind == 1 else "int8"
    first, second = _layout(n, n_tokens)
    fits = magic == _MAGIC and items == n and width == width_of(code, dim)
    if not (is_sound and fits and size == second + n_tokens * width):
        raise CorruptIndex(
            f"the token vectors {str(path)!r} are damaged: restore the file, or index the folder "
            "anew"
        )
    column = np.fromfile(path, dtype="<i8", count=2 * n, offset=_HEADER.size)
    kinds = np.fromfile(path, dtype="u1", count=n, offset=_HEADER.size + 16 * n)
    offsets = np.fromfile(path, dtype="<i8", count=n + 1, offset=first)
    scales = np.fromfile(path, dtype="<f2", count=n_tokens, offset=first + 8 * (n + 1))
    codes: NDArray[Any] = np.empty((0, width), _KINDS[code])
    if n_tokens:
        # nothing cannot be mapped
        codes = np.asarray(
            np.memmap(path, dtype=_KINDS[code], mode="r", offset=second, shape=(n_tokens, width))
        )
    return TokenRows(column[:n], column[n:], kinds, offsets, scales, codes)
