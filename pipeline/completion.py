"""Read what a generator streams, whatever it does: bounded in time, length and repeats."""

from __future__ import annotations

import contextlib
import queue
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
LONGEST_REPEAT = 240  # code points of the run that repeats
REPEATS = 4
REPEATED_MARKS = 24  # of a run shorter than 4, which may be honest: dots, rules, "no, no, no"


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
            cut = repeats(text)
            if cut is not None:
                text, stopped = text[:cut], "repeat"
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


def repeats(text: str) -> int | None:
    """Return where to cut a text that ends in the same run again and again, else None."""
    body = text.rstrip()
    for n in range(1, min(LONGEST_REPEAT, len(body) // REPEATS) + 1):
        times = REPEATS if n >= 4 else REPEATED_MARKS // n
        if len(body) >= n * times and body.endswith(body[-n:] * times):
            return len(body) - n * (times - 1)
    return None


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
