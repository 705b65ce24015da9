"""How much was done a second lately.

What Prometheus is told: requests by status, how long they took, what waits, what is in the batch, tokens.

One registry for each server, so that several in a process (tests) do not share figures.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest


class Rate:
    """What was counted in the last seconds, a second.

    Args:
        window: how many seconds.
        clock: seconds, from whenever.
    """

    def __init__(self, window: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock, self._began = window, clock, clock()
        self._counted: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        """So many more were done."""
        self._counted.append((self._clock(), count))
        self._sum += count
        self._forget()

    def value(self) -> float:
        """How many a second; 0 where nothing was done."""
        self._forget()
        return self._sum / max(min(self._window, self._clock() - self._began), 1.0)

    def _forget(self) -> None:
        while self._counted and self._counted[0][0] < self._clock() - self._window:
            self._sum -= self._counted.popleft()[1]


_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        here = self.registry
        self.requests = Counter("multihead_requests", "Requests answered.", ["path", "status"], registry=here)
        self.seconds = Histogram(
            "multihead_request_seconds", "From a request's first byte to its answer's last.", ["path"],
            buckets=_SECONDS, registry=here,
        )  # fmt: skip
        self.refused = Counter(
            "multihead_refused", "Requests refused, by their word for programs.", ["error"], registry=here
        )
        self.gone = Counter(
            "multihead_clients_gone", "Requests whose client did not wait for the answer.", registry=here
        )
        self.sentences = Counter("multihead_sentences", "Sentences translated.", registry=here)
        self.tokens = Counter("multihead_tokens", "Tokens of translations, end symbols counted.", registry=here)
        self.reloads = Counter("multihead_reloads", "Models that were to be loaded anew.", ["result"], registry=here)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A figure that is looked up when somebody asks."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)
