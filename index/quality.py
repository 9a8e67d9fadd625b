"""Passages that no question would want: scored without labels, and skipped by dense search.

QualT5 (arXiv 2407.12170) learns such a score from judgments. This one needs neither labels nor a
model: a passage is poor when it is very short, mostly no letters, the same words over and over, or
made of lines that stand in many other passages. Nothing is deleted: words, filters and ids find a
skipped passage as before, and without the file `skipped.npy` dense search finds it too.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.index.storage import write_file
from foveate.pipeline.errors import ConfigError, CorruptIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Ints

FILE = "skipped.npy"
ROLE = "text"
ENOUGH_WORDS = 24  # from which on length adds nothing
AT_A_TIME = 4096
COMMON_LINE = 4  # passages that hold a line make it boilerplate
WORD = re.compile(r"[^\W\d_]+|\d+")


def score(texts: Sequence[str], held: Mapping[str, int] | None = None) -> Floats:
    """Return (n,) float32 within 0..1, higher is better; equal texts get equal scores.

    The geometric mean of four parts: length, letters, variety of words, and lines of its own.
    held: how many passages hold a line; counted among the texts where it is not given.
    """
    if held is None:
        held = Counter(line for text in texts for line in lines(text))
    found = np.empty(len(texts), dtype=np.float32)
    for i, text in enumerate(texts):
        words = [w.casefold() for w in WORD.findall(text)]
        solid = [c for c in text if not c.isspace()]
        length = min(1.0, len(words) / ENOUGH_WORDS)
        letters = sum(c.isalpha() for c in solid) / max(1, len(solid))
        # of n words in running text about n ** 0.85 are different
        variety = min(1.0, len(set(words)) / max(1.0, len(words) ** 0.85))
        own = lines(text)
        repeated = sum(len(line) for line in own if held.get(line, 0) >= COMMON_LINE)
        fresh = 1 - repeated / max(1, sum(map(len, own)))
        found[i] = (length * letters * variety * max(fresh, 0.0)) ** 0.25
    return found


def lines(text: str) -> set[str]:
    """Return the lines of a text as they are compared."""
    return {" ".join(line.split()).casefold() for line in text.split("\n") if line.strip()}


def worst(ids: Ints, scores: Floats, share: float) -> Ints:
    """Return the ids of the worst share of passages, ascending.

    Passages of one score stay together, so that of equal ones all or none are skipped.

    Raises:
        ConfigError: for a share outside 0..0.9.
    """
    if not 0 <= share <= 0.9:
        raise ConfigError(f"expected a share within 0..0.9 to skip, got {share}")
    n = int(len(ids) * share)
    order = np.sort(scores)
    if n == 0:
        return np.empty(0, dtype=np.int64)
    return np.sort(ids[scores < order[n]]).astype(np.int64)


def rate(index: Any) -> tuple[Ints, Floats]:
    """Score every passage of an index that has a text vector. Returns (ids, scores), both (n,)."""
    ids: Ints = index.passage_ids(ROLE)
    held: Counter[str] = Counter()
    parts = [ids[at : at + AT_A_TIME] for at in range(0, len(ids), AT_A_TIME)]
    for part in parts:
        for passage in index.passages(part):
            held.update(lines(passage.text))
    common = {line: n for line, n in held.items() if n >= COMMON_LINE}
    found = [score([p.text for p in index.passages(part)], common) for part in parts]
    return ids, np.concatenate([*found, np.empty(0, dtype=np.float32)])


class Skipped:
    """The passages that dense search skips, as a file beside the catalogue. Threads share it."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / FILE
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._ids: Ints = np.empty(0, dtype=np.int64)
        self._kept: tuple[Any, NDArray[np.bool_]] | None = None

    def ids(self) -> Ints:
        """Return (m,) int64, ascending.

        Raises:
            CorruptIndex: if the file cannot be read.
        """
        with self._lock:
            try:
                state = self._place.stat()
            except FileNotFoundError:
                stamp = None
            else:
                stamp = (state.st_mtime_ns, state.st_ino)
            if stamp != self._stamp:
                self._ids = self._read() if stamp else np.empty(0, dtype=np.int64)
                self._stamp, self._kept = stamp, None
            return self._ids

    def put(self, ids: Iterable[int]) -> int:
        """Skip these passages from now on, and no others. Returns how many."""
        chosen = np.unique(np.asarray(list(ids), dtype=np.int64))
        if len(chosen):
            write_file(self._place, lambda file: np.save(file, chosen, allow_pickle=False))
        else:
            self._place.unlink(missing_ok=True)
        return len(chosen)

    def apply(self, members: Any, mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Return the mask (n,) of the rows that may be found, without those that are skipped.

        members: a snapshot with `ids` (n,).
        """
        skipped = self.ids()
        if not len(skipped):
            return mask
        with self._lock:
            if self._kept is None or self._kept[0] is not members:
                self._kept = (members, ~np.isin(members.ids, skipped))
            keep = self._kept[1]
        return keep if mask is None else mask & keep

    def _read(self) -> Ints:
        try:
            with open(self._place, "rb") as file:
                found: Ints = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise CorruptIndex(
                f"cannot read {str(self._place)!r} ({error}): delete it, and `foveate quality "
                "--skip` makes it anew"
            ) from error
        return found
