"""Turn bytes into text: which encoding they are in, and how sure that is."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Note

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ESCAPES = ((b"\x1b$)C", "iso2022_kr"), (b"\x1b$B", "iso2022_jp_2"), (b"\x1b$@", "iso2022_jp_2"))
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_EAST_ASIAN = re.compile(r"[\n\r -~\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff00-\uffef]")
SAMPLE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text, the encoding it was in, and notes on what was guessed or replaced."""

    text: str
    encoding: str
    notes: tuple[Note, ...] = ()


def _as_cp1252(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    bad = error.object[error.start : error.end]
    return bad.decode("cp1252", "replace"), error.end


codecs.register_error("foveate-cp1252", _as_cp1252)


def decode(data: bytes, *, override: str | None = None, declared: str | None = None) -> Decoded:
    """Decode the bytes of a text.

    override: the encoding that the user named; it is used. declared: what the file itself says
    (an HTML or XML declaration); it is used where it holds.

    Raises:
        ConfigError: if `override` is not an encoding.
    """
    encoding, notes = detect(data, override=override, declared=declared)
    return decode_as(data, encoding, notes)


def decode_as(data: bytes, encoding: str, notes: tuple[Note, ...] = ()) -> Decoded:
    """Decode with a known encoding; what does not fit it is replaced, with a note."""
    try:
        return Decoded(data.decode(encoding), encoding, notes)
    except UnicodeDecodeError as error:
        at = error.start
    handler = "foveate-cp1252" if encoding.startswith(("utf-8", "ascii")) else "replace"
    text = data.decode(encoding, handler)
    what = "read as cp1252" if handler != "replace" else "replaced by U+FFFD"
    message = f"bytes that are not {encoding} (the first at byte {at}) were {what}"
    return Decoded(text, encoding, (*notes, Note("guessed", message)))


def detect(
    data: bytes, *, override: str | None = None, declared: str | None = None
) -> tuple[str, tuple[Note, ...]]:
    """Name the encoding of a text, with notes where it had to be guessed."""
    if override is not None:
        try:
            return codecs.lookup(override).name, ()
        except LookupError:
            raise ConfigError(f"unknown encoding {override!r} in ingest.encoding") from None
    for bom, name in _BOMS:
        if data.startswith(bom):
            return name, ()
    wide = _wide(data)
    if wide:
        note = Note("guessed", f"no byte order mark; read as {wide}")
        return wide, (note,)
    for escape, name in _ESCAPES:
        if escape in data[:SAMPLE_BYTES] and data.isascii():
            return name, (Note("guessed", f"encoding guessed: {name}"),)
    if data.isascii():
        return "ascii", ()
    if declared and _fits(data, declared):
        return codecs.lookup(declared).name, ()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8", ()
    if _is_utf8_with_strays(data):
        return "utf-8", ()
    from foveate.pipeline.ingest.charsets import guess

    name, certain = guess(data)
    hint = "" if certain else "; other encodings are as likely"
    return name, (Note("guessed", f"encoding guessed: {name}{hint}"),)


def is_text(head: bytes, *, named: bool = False) -> bool:
    """Whether bytes look like text in some encoding rather than binary data.

    named: the file has the name of a text, so a few NULs are blemishes.
    """
    if any(head.startswith(bom) for bom, _ in _BOMS) or _wide(head):
        return True
    if head.count(0) > (max(4, len(head) // 20) if named else len(head) // 500):
        return False
    return len(_CONTROL.findall(head.replace(b"\x00", b""))) <= len(head) // 50


def is_utf8(data: bytes) -> bool:
    return _fits(data, "utf-8")


def _fits(data: bytes, name: str) -> bool:
    try:
        data.decode(codecs.lookup(name).name)
    except (LookupError, ValueError):
        return False
    return True


def _wide(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: told by where the zero bytes stand."""
    sample = data[: min(len(data), 1 << 16) // 4 * 4] or data
    zeros = sample.count(0)
    if len(sample) < 4:
        return None
    if zeros * 100 < len(sample):
        return _wide_east_asian(sample)
    if zeros * 3 < len(sample) and sample.replace(b"\x00", b"").isascii():
        # ASCII with NULs in it: wide ASCII is half zeros
        return None
    counts = [sample[i::4].count(0) for i in range(4)]
    quarter = len(sample) / 4
    if counts[2] + counts[3] > 1.9 * quarter and counts[0] < 0.1 * quarter:
        return "utf-32-le"
    if counts[0] + counts[1] > 1.9 * quarter and counts[3] < 0.1 * quarter:
        return "utf-32-be"
    even, odd = counts[0] + counts[2], counts[1] + counts[3]
    for name, high, low in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if high > 20 * low and _reads_as_text(sample, name):
            return name
    return _wide_east_asian(sample)


def _wide_east_asian(sample: bytes) -> str | None:
    """UTF-16 of a script whose characters have no zero byte: it would not pass for text else."""
    if len(sample) < 16 or len(_CONTROL.findall(sample)) * 50 <= len(sample):
        return None
    if not sample.isascii() and _begins_as_utf8(sample):
        return None  # sequences beyond ASCII do not come out right by chance
    for name in ("utf-16-le", "utf-16-be"):
        text = sample.decode(name, "replace")
        if len(_EAST_ASIAN.findall(text)) > 0.95 * len(text):
            return name
    return None


def _begins_as_utf8(sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def _reads_as_text(sample: bytes, name: str) -> bool:
    text = sample[: len(sample) // 2 * 2].decode(name, "replace")
    bad = sum(not (c.isprintable() or c.isspace()) or c == "\ufffd" for c in text)
    return bad * 50 <= len(text)


def _is_utf8_with_strays(data: bytes) -> bool:
    """Whether most of the bytes above 127 form UTF-8 sequences."""
    text = data.decode("utf-8", "surrogateescape")
    strays = sum("\udc80" <= c <= "\udcff" for c in text)
    sequences = sum(c > "\x7f" for c in text) - strays
    return sequences > 2 * strays
