"""Read what a generator streams, whatever it does: bounded in time, length and repeats."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Generator

Stopped = Literal["end", "length", "timeout", "repeat", "error", "cancelled"]

GRACE_S = 2.0  # a generator checks its own deadline between steps; a step may take this long
CHARS_PER_TOKEN = 12  # no tokenizer writes more; more than max_tokens of these is no answer
LONGEST_REPEAT = 240  # code points of the run that repeats
REPEATS = 4
REPEATED_MARKS = 24  # of a run shorter than 4, which may be honest: dots, rules, "no, no, no"


LOOK_S = 0.05  # between two looks at whether a person has had enough


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a completion took, as the model or the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Stream:
    """An iterator of pieces that says, once it has ended, what it took.

    usage: None where nobody counted. attention: which parts of the prompt a local model looked at
    (`foveate.pipeline.decoding.attention.Attended`), None elsewhere.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self.usage: Usage | None = None
        self.attention: Any = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def follow(self, pieces: Iterable[str]) -> Stream:
        """Take the pieces from here, for a source that must know its own stream."""
        self._pieces = iter(pieces)
        return self

    def close(self) -> None:
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generator wrote. detail: of an error. usage, attention: of its `Stream`."""

    text: str
    stopped: Stopped
    seconds: float
    detail: str = ""
    usage: Usage | None = None
    attention: Any = None


def complete(
    generator: Generator,
    messages: Sequence[Mapping[str, Any]],
    *,
    max_tokens: int = 256,
    stop: Sequence[str] = (),
    timeout_s: float = 120.0,
    cancelled: threading.Event | None = None,
) -> Completion:
    """Run a generator to its end or to a limit.

    It runs in a thread of its own, because one that hangs in a call cannot be interrupted: it is
    told to stop, and left behind if it does not. cancelled: ends it when somebody sets it.
    """
    began = time.monotonic()
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    cancel = threading.Event()
    streams: list[Any] = []

    def run() -> None:
        try:
            stream = generator.generate(
                messages, max_tokens=max_tokens, stop=stop, timeout_s=timeout_s
            )
            streams.append(stream)
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
            try:
                piece = pieces.get(timeout=max(0.0, min(LOOK_S, ends - time.monotonic())))
            except queue.Empty:
                if cancelled is not None and cancelled.is_set():
                    stopped = "cancelled"
                    break
                if time.monotonic() >= ends:
                    raise
                continue
            if cancelled is not None and cancelled.is_set():
                stopped = "cancelled"
                break
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
    usage = getattr(streams[0], "usage", None) if streams else None
    attention = getattr(streams[0], "attention", None) if streams else None
    return Completion(text, stopped, seconds, detail, usage, attention)  # type: ignore[arg-type]


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
