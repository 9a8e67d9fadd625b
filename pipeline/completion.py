"""Read what a generator streams, whatever it does: bounded in time, length and repeats."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Generator

Stopped = Literal["end", "length", "timeout", "repeat", "error"]

GRACE_S = 2.0  # a generator checks its own deadline between steps; a step may take this long
CHARS_PER_TOKEN = 12  # no tokenizer writes more; more than max_tokens of these is no answer
REPEAT = re.compile(r"(.{2,240}?)\1{3,}\s*\Z|(\S)\2{23,}\s*\Z", re.DOTALL)
REPEAT_WINDOW = 1000


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generator wrote. detail: the message of an error."""

    text: str
    stopped: Stopped
    seconds: float
    detail: str = ""


def complete(
    generator: Generator,
    messages: Sequence[Mapping[str, str]],
    *,
    max_tokens: int = 256,
    stop: Sequence[str] = (),
    timeout_s: float = 120.0,
) -> Completion:
    """Run a generator to its end or to a limit.

    It runs in a thread of its own, because one that hangs in a call cannot be interrupted: it is
    told to stop, and left behind if it does not.
    """
    began = time.monotonic()
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    cancel = threading.Event()

    def run() -> None:
        try:
            stream = generator.generate(
                messages, max_tokens=max_tokens, stop=stop, timeout_s=timeout_s
            )
            for piece in stream:
                pieces.put(piece)
                if cancel.is_set():
                    break
            close = getattr(stream, "close", None)
            if close is not None:
                close()
            pieces.put(None)
        except BaseException as error:
            pieces.put(error)

    threading.Thread(target=run, name="foveate-generator", daemon=True).start()
    text, stopped, detail = "", "end", ""
    ends = began + timeout_s + GRACE_S
    try:
        while True:
            piece = pieces.get(timeout=max(0.0, ends - time.monotonic()))
            if piece is None:
                break
            if isinstance(piece, BaseException):
                stopped, detail = "error", f"{type(piece).__name__}: {piece}"
                break
            text += printable(piece)
            found = REPEAT.search(text, max(0, len(text) - REPEAT_WINDOW))
            if found is not None:
                text, stopped = once(text, found), "repeat"
                break
            if len(text) > max_tokens * CHARS_PER_TOKEN:
                text, stopped = text[: max_tokens * CHARS_PER_TOKEN], "length"
                break
    except queue.Empty:
        stopped = "timeout"
    finally:
        cancel.set()
    seconds = time.monotonic() - began
    if stopped == "end" and seconds >= timeout_s:
        stopped = "timeout"
    return Completion(text, stopped, seconds, detail)  # type: ignore[arg-type]


def once(text: str, repeat: re.Match[str]) -> str:
    """Keep the first of the repeats that the text ends with."""
    unit = repeat.group(1) or repeat.group(2)
    return text[: repeat.start() + len(unit)]


def printable(piece: str) -> str:
    """Drop what a half-decoded or hostile stream may hold: U+FFFD, surrogates, control codes."""
    return "".join(
        c
        for c in piece
        if c in "\n\t"
        or (
            not (c == "\ufffd" or ord(c) < 32 or 0x7F <= ord(c) < 0xA0)
            and not 0xD800 <= ord(c) < 0xE000
        )
    )


def until(pieces: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Pass pieces on up to the first stop string, also one that is split over two pieces."""
    stop = [s for s in stop if s]
    held = ""
    stream = iter(pieces)
    longest = max(map(len, stop), default=1) - 1
    with contextlib.ExitStack() as stack:
        close = getattr(stream, "close", None)
        if close is not None:
            stack.callback(close)
        for piece in stream:
            held += piece
            cuts = [at for s in stop if (at := held.find(s)) >= 0]
            if cuts:
                if min(cuts):
                    yield held[: min(cuts)]
                return
            keep = min(longest, len(held))
            if len(held) > keep:
                yield held[: len(held) - keep]
                held = held[len(held) - keep :]
        if held:
            yield held
