"""See where the time goes, without changing what is timed."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[str, int, int | None], None]


class Clocked:
    """An object whose named methods are timed; all else is passed on to it."""

    def __init__(self, inner: Any, methods: Mapping[str, str], clock: Clock) -> None:
        self._inner = inner
        self._methods = methods
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        stage = self._methods.get(name)
        if stage is None:
            return value

        def timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return value(*args, **options)
            finally:
                self._clock.add(stage, time.perf_counter() - started)

        return timed


class Clock:
    """Seconds by stage, a round (a query) at a time."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self.watching = False
        self._now: dict[str, float] = defaultdict(float)

    def add(self, stage: str, seconds: float) -> None:
        self._now[stage] += seconds

    def close_round(self, total: float) -> None:
        """End a round that took this long in all; what no stage took is 'rest'."""
        known = sum(self._now.values())
        self.rounds.append({**self._now, "rest": max(0.0, total - known), "total": total})
        self._now = defaultdict(float)

    def watch(self, engine: Any) -> None:
        """Time an engine's encoders and index from now on."""
        self.watching = True
        self._now.clear()
        for role, encoder in list(engine.encoders.items()):
            engine.encoders[role] = Clocked(encoder, {"encode_queries": "encode"}, self)
        calls = {"search_vectors": "vectors", "search_words": "words", "passages": "passages"}
        engine.index = Clocked(engine.index, calls, self)

    def summary(self) -> dict[str, dict[str, float]]:
        """Return {stage: {median_ms, p95_ms}} over the rounds."""
        stages = dict.fromkeys(stage for r in self.rounds for stage in r)
        found = {}
        for stage in stages:
            values = sorted(1000 * r.get(stage, 0.0) for r in self.rounds)
            p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
            found[stage] = {"median_ms": statistics.median(values), "p95_ms": p95}
        return found


class Stages:
    """A progress callable that counts the time before each report to that report's stage."""

    def __init__(self, tell: Tell | None = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._tell = tell
        self._since = time.perf_counter()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self._since
        self._since = now
        if self._tell is not None:
            self._tell(stage, done, total)
