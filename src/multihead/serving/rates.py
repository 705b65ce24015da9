"""How much was done a second lately."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


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
