"""Refuse a PDF whose compressed parts would fill the memory, before a reader unpacks them."""

from __future__ import annotations

import re
import zlib

from foveate.pipeline.errors import LimitExceeded
from foveate.pipeline.ingest.options import MIB, IngestOptions

# what is drawn packs 3 to 20 times; only what repeats itself packs so far
BOMB_RATIO = 100
# a reader keeps some ten times the bytes of a page's content as objects
MAX_CONTENT_BYTES = 64 * MIB
_START = re.compile(rb"(?<!end)stream\r?\n")
_FLATE = re.compile(rb"/(?:FlateDecode|Fl)\b")
_PICTURE = re.compile(rb"/Subtype\s*/Image\b")
_HEAD_BYTES = 1024
# unpacks to 16 MiB at most
_PIECE_BYTES = 16 << 10


def check_streams(data: bytes, options: IngestOptions) -> None:
    """Unpack the streams that are no pictures, piece by piece, and drop what comes out.

    Pictures have their own limit, on pixels.

    Raises:
        LimitExceeded: if what packs beyond `BOMB_RATIO` unpacks to too much.
    """
    limit = min(MAX_CONTENT_BYTES, options.max_unpacked_bytes)
    total = 0
    for match in _START.finditer(data):
        head = data[max(match.start() - _HEAD_BYTES, 0) : match.start()]
        head = head[head.rfind(b" obj") + 1 :]
        if not _FLATE.search(head) or _PICTURE.search(head):
            continue
        end = data.find(b"endstream", match.end())
        packed = memoryview(data)[match.end() : end if end >= 0 else len(data)]
        size = _unpacked_bytes(packed, limit)
        if size > BOMB_RATIO * len(packed):
            total += size
        if total > limit:
            raise LimitExceeded(
                f"its pages unpack to more than {limit} bytes, over {BOMB_RATIO} times their size"
            )


def _unpacked_bytes(packed: memoryview, limit: int) -> int:
    """Return what a stream unpacks to; counting stops past the limit, and where it is damaged."""
    unpacker = zlib.decompressobj()
    size = 0
    try:
        for start in range(0, len(packed), _PIECE_BYTES):
            size += len(unpacker.decompress(packed[start : start + _PIECE_BYTES]))
            if size > limit or unpacker.eof:
                break
    except zlib.error:
        # encrypted or damaged: the reader will see
        pass
    return size
