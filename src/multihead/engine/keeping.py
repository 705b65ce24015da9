"""What a translator's model is searched with: made when first asked for, and anew when the weights have changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from multihead.decoding.shortlist import Shortlist
from multihead.decoding.stepper import Stepper
from multihead.engine.graphs import Capture, Graphs
from multihead.engine.search import Engine, why_not
from multihead.engine.weights import Precision, version
from multihead.models.network import Network
from multihead.models.transformer import Transformer


class Engines:
    """Compiled searches, one of each precision with and without a shortlist, and graphs; of one model at a time.

    Args:
        capture: of graphs; PyTorch's by default.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._graphs: Graphs | None = None
        self._made: dict[tuple[Precision, bool], Engine] = {}
        self._refused: tuple[Network, Any, str] | None = None

    def of(self, model: Network, precision: Precision, shortlist: Shortlist | None = None) -> Engine | str:
        """The compiled search of a model, or why there is none."""
        kind = precision, shortlist is not None
        found = self._made.get(kind)
        if found is not None and found.model is model and found.current and _same(found.shortlist, shortlist):
            return found
        now = version(model)
        if self._refused is not None and self._refused[0] is model and self._refused[1] == now:
            return self._refused[2]
        self._made.pop(kind, None)
        reason = why_not(model)
        if reason is not None:
            self._refused = model, now, reason
            return reason
        self._made[kind] = engine = Engine(model, precision, shortlist)
        return engine

    def stepping(self, model: Network) -> Stepper[Any]:
        """The model for searches that go step by step: on a GPU, of a Transformer, each step is a graph."""
        graphed = self._capture is not None or model.output.weight.is_cuda
        if not graphed or not isinstance(model, Transformer):
            return model
        if self._graphs is None or self._graphs.model is not model:
            self._graphs = Graphs(model, self._capture)
        return self._graphs


def _same(one: Shortlist | None, other: Shortlist | None) -> bool:
    """Also of two that were read from one file."""
    if one is None or other is None or one is other:
        return one is other
    return all(np.array_equal(mine, its) for mine, its in zip(one.arrays, other.arrays, strict=True))
