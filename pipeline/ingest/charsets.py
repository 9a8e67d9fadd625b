"""Guess the legacy encoding of a text."""

from __future__ import annotations

from charset_normalizer import from_bytes

# an encoding that others extend is named when the bytes need no more than it
_PLAINER = {"cp932": "shift_jis", "shift_jis_2004": "shift_jis", "shift_jisx0213": "shift_jis"}
_SAMPLE_BYTES = 1 << 16


def guess(data: bytes) -> tuple[str, bool]:
    """Return the likeliest encoding of bytes that are no Unicode form, and whether it is alone."""
    matches = from_bytes(_sample(data))
    best = matches.best()
    if best is None:
        return "cp1252", False
    name = best.encoding
    plain = _PLAINER.get(name)
    if plain and _same(data, name, plain):
        name = plain
    return name, len(matches) == 1


def _same(data: bytes, one: str, other: str) -> bool:
    try:
        return data.decode(one) == data.decode(other)
    except UnicodeDecodeError:
        return False


def _sample(data: bytes) -> bytes:
    """The lines that have bytes above 127: they decide, and may stand far into the file."""
    if len(data) <= _SAMPLE_BYTES:
        return data
    lines: list[bytes] = []
    size = 0
    for line in data.splitlines(keepends=True):
        if not line.isascii():
            lines.append(line[:_SAMPLE_BYTES])
            size += len(lines[-1])
            if size > _SAMPLE_BYTES:
                break
    return b"".join(lines)
