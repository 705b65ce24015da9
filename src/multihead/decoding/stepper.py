"""The interface between searches and models: `Stepper` and `State`.

A search starts a model on a batch of sources and then steps it, one symbol per hypothesis at a time. Everything that
satisfies `Stepper` can be searched, even a table of numbers. What a model must remember between steps (key/value cache,
recurrent state, encoder memory, the position of each row) is in the `State`, which is an argument and a result and is
never kept by the model.

A search guarantees:

* the first step of a state from ``start`` receives the begin symbol, every later one the symbols chosen last;
* ``select`` is called at most once per step, and only if the rows change;
* the rows of a sentence are adjacent, and all sentences in the search have the same number of rows, so that a model can
  store what belongs to the source once per sentence. If a sentence has fewer hypotheses, its other rows are *dead*:
  they are stepped with some symbol of the vocabulary, and the result is ignored.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int, Shaped
from torch import Tensor

Own = TypeVar("Own")  # typing.Self, which the shape checker does not take


@runtime_checkable
class State(Protocol):
    """What a model remembers of the hypotheses so far, one row each. It is never changed in place."""

    @property
    def rows(self) -> int:
        """Number of hypotheses."""

    def select(self: Own, rows: Int[Tensor, " rows"]) -> Own:
        """The state of these rows, in this order; a row may occur several times or not at all."""

    def join(self: Own, other: Own) -> Own:
        """The rows of this state followed by those of another, which may be at other positions."""


S = TypeVar("S", bound=State)


@runtime_checkable
class Stepper(Protocol[S]):
    """A model that computes p(next symbol | symbols so far, source), one step at a time."""

    def start(self, source: Shaped[Tensor, "batch source *features"], lengths: Int[Tensor, " batch"]) -> S:
        """The state before the first step, one row per sentence.

        Args:
            source: the sources, padded at the end: symbols, or other inputs of the model.
            lengths: number of real symbols of each source.
        """

    def step(self, tokens: Int[Tensor, " rows"], state: S) -> tuple[Float[Tensor, "rows vocab"], S]:
        """Append a symbol to each row; return the log-probabilities of the next one, and the new state."""


@runtime_checkable
class Attending(Stepper[S], Protocol[S]):
    """A stepper that also returns its attention to the source, for the coverage penalty (`ranking.py`)."""

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: S
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], S]:
        """As `Stepper.step`, with the attention of the next symbol to each source symbol; 0 at padding."""
