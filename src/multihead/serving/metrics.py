"""Prometheus metrics of the server, and event rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest


class SlidingRate:
    """Events per second over a sliding window.

    Args:
        window: length in seconds.
        clock: returns seconds.
    """

    def __init__(self, window: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock, self._began = window, clock, clock()
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        """Count events that happened now."""
        self._counts.append((self._clock(), count))
        self._sum += count
        self._forget()

    def value(self) -> float:
        """Events per second; 0 without events."""
        self._forget()
        return self._sum / max(min(self._window, self._clock() - self._began), 1.0)

    def _forget(self) -> None:
        while self._counts and self._counts[0][0] < self._clock() - self._window:
            self._sum -= self._counts.popleft()[1]


CLOSED = ("head_too_slow", "answer_not_taken", "too_many", "too_many_bytes")
"""Why a connection is closed before its time."""

_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Prometheus metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("multihead_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "multihead_request_seconds", "Seconds from a request's first byte to its response's last.", ["path"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self.refused = Counter("multihead_refused", "Requests refused, by error code.", ["error"], registry=registry)
        self.disconnects = Counter(
            "multihead_clients_gone", "Requests whose client disconnected before the response.", registry=registry
        )
        self.closed = Counter(
            "multihead_connections_closed", "Connections closed by the server, by reason.", ["reason"],
            registry=registry,
        )  # fmt: skip
        for reason in CLOSED:
            self.closed.labels(reason)
        self.sentences = Counter("multihead_sentences", "Sentences translated.", registry=registry)
        self.tokens = Counter("multihead_tokens", "Tokens of translations, including end symbols.", registry=registry)
        self.reloads = Counter(
            "multihead_reloads", "Loads of models, first loads included, by result.", ["result"], registry=registry
        )
        self.unloads = Counter(
            "multihead_unloads", "Models unloaded to make room for others.", ["model"], registry=registry
        )
        self.model_requests = Counter(
            "multihead_model_requests", "Requests searched, by model; through a pivot there are two.", ["model"],
            registry=registry,
        )  # fmt: skip
        self.model_bytes = Gauge(
            "multihead_model_bytes", "Memory of the weights; 0 if the model is not loaded.", ["model"],
            registry=registry,
        )  # fmt: skip

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge that calls ``value`` whenever metrics are read."""
        Gauge(name, description, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
