"""Counters for Prometheus: requests, their times, the work in hand and what is indexed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)


class Metrics:
    """A registry of its own, so that two servers in one process count apart.

    gauges: {name: (what it is, a function that returns it)}, read when somebody asks.
    """

    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Histogram,
            PlatformCollector,
            ProcessCollector,
        )

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = Counter(
            "foveate_requests",
            "Requests by route, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "foveate_request_seconds",
            "Time from the request's head to the end of its response.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._gauges = gauges
        self.registry.register(self)

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Note one request. route: its pattern, so that names in paths make no new series."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        for name, (what, read) in self._gauges.items():
            yield GaugeMetricFamily(f"foveate_{name}", what, value=read())

    def text(self) -> tuple[bytes, str]:
        """Return the exposition and its media type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class Counted:
    """ASGI: counts each request when its response has ended."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        import time

        began, status = time.perf_counter(), 500

        async def watch(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.count(route, method, status, time.perf_counter() - began)


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
