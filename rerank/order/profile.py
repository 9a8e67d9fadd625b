"""Put the best passages where this reader looks most (AttnRank, arXiv 2508.05128).

Where a reader looks hardly depends on what stands there. So the share of attention that each place
of a prompt gets is measured once, over many questions with their passages shuffled, and saved;
ordering is then free.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources as packaged
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Context
from foveate.rerank.order.attention import attention, reader_scan
from foveate.rerank.order.places import arranged, ranked

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats

Profiles = Mapping[int, "Floats"]
"""{number of places: (places,) float32 shares of attention, that sum to 1}."""


class AttnRank:
    """Best passage where the reader looks most, the second where it looks second most.

    Args:
        resources: what the engine lends.
        profile: a file that `foveate fit profile` wrote; by default the one that is known for the
            configured reader.
    """

    name = "attnrank"

    def __init__(
        self, resources: Resources, *, profile: str | os.PathLike[str] | None = None
    ) -> None:
        self._resources = resources
        self._profile = profile

    def order(self, query: str, context: Context) -> Context:
        """Return the context, each passage at the place that its rank deserves."""
        kept = ranked(context.kept)
        if len(kept) < 2:
            return arranged(context, kept, self.name)
        shares = shares_of(self._profiles(), len(kept))
        return arranged(context, [kept[i] for i in seats(shares)], self.name)

    def _profiles(self) -> Profiles:
        if self._profile is not None:
            return load(Path(self._profile).expanduser())
        name = self._resources.reader().name
        places = [saved_place(name), shipped_place(name)]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise ConfigError(
                f"order 'attnrank' knows no profile of the reader {name!r}: measure it once with "
                "`foveate fit profile`"
            )
        return load(found)


def seats(shares: Floats) -> list[int]:
    """Return which rank sits at each place: rank 0 where the share is greatest, and so on.

    Equal shares keep the ranks' order.
    """
    places = np.argsort(-np.asarray(shares), kind="stable")
    ranks = np.empty(len(places), dtype=np.int64)
    ranks[places] = np.arange(len(places))
    return [int(rank) for rank in ranks]


def shares_of(profiles: Profiles, n: int) -> Floats:
    """Return (n,) float32: the measured shares, else those of the nearest number, stretched."""
    if n in profiles:
        return profiles[n]
    nearest = min(profiles, key=lambda m: (abs(m - n), m))
    known = profiles[nearest]
    at = np.linspace(0, len(known) - 1, n)
    found = np.interp(at, np.arange(len(known)), known)
    shares: Floats = (found / found.sum()).astype(np.float32)
    return shares


def measure(
    resources: Resources,
    questions: Iterable[tuple[str, Sequence[str]]],
    n_places: int,
    *,
    seed: int = 0,
    tell: Callable[[int], None] | None = None,
) -> Floats:
    """Measure the share of attention, per token, of each of n places.

    questions: each with at least n texts, of which n are drawn and shuffled.

    Returns:
        shares (n,) float32, that sum to 1.
    """
    rng = np.random.default_rng(seed)
    scan = reader_scan(resources, {})
    total = np.zeros(n_places, dtype=np.float64)
    for done, (question, texts) in enumerate(questions, start=1):
        drawn = rng.permutation(len(texts))[:n_places]
        seen = attention(scan, question, [texts[i] for i in drawn])
        total += seen / seen.sum()
        if tell is not None:
            tell(done)
    shares: Floats = (total / max(total.sum(), 1e-9)).astype(np.float32)
    return shares


def load(path: Path) -> Profiles:
    """Read a profile.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))["profiles"]
        found = {int(n): np.asarray(shares, dtype=np.float32) for n, shares in table.items()}
        if not found or any(len(shares) != n for n, shares in found.items()):
            raise ValueError("each profile needs as many shares as places")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read the profile {str(path)!r}: {error}") from error
    return found


def save(path: Path, profiles: Profiles, facts: Mapping[str, Any]) -> None:
    """Write a profile and what it was measured on."""
    table = {str(n): [round(float(x), 5) for x in shares] for n, shares in profiles.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "profiles": table}, indent=1) + "\n", encoding="utf-8")


def saved_place(reader: str) -> Path:
    """Return where `foveate fit profile` keeps the user's profile of a reader."""
    import platformdirs

    return Path(platformdirs.user_data_dir("foveate")) / "profiles" / _file(reader)


def shipped_place(reader: str) -> Path:
    return Path(str(packaged.files("foveate.rerank.order"))) / "weights" / _file(reader)


def _file(reader: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(reader).name or reader) + ".json"
