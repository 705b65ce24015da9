"""The compiled searches of a translator's model: made when first asked for, and anew when the weights have changed."""

from __future__ import annotations

from typing import Any

from multihead.engine.search import Engine, why_not
from multihead.engine.weights import Precision, version
from multihead.models.network import Network


class Engines:
    """One of each precision, of one model at a time."""

    def __init__(self) -> None:
        self._made: dict[Precision, Engine] = {}
        self._refused: tuple[Network, Any, str] | None = None

    def of(self, model: Network, precision: Precision) -> Engine | str:
        """The compiled search of a model, or why there is none."""
        found = self._made.get(precision)
        if found is not None and found.model is model and found.current:
            return found
        now = version(model)
        if self._refused is not None and self._refused[0] is model and self._refused[1] == now:
            return self._refused[2]
        self._made.pop(precision, None)
        reason = why_not(model)
        if reason is not None:
            self._refused = model, now, reason
            return reason
        self._made[precision] = engine = Engine(model, precision)
        return engine
