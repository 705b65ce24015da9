"""What a search needs of a model: start on a batch of sources, then step, one symbol a hypothesis at a time.

A search knows neither the Transformer nor the recurrent networks: whatever satisfies :class:`Stepper` can be
searched, a table of numbers included. Everything that a model remembers between steps (key/value cache,
recurrent state, encoder memory, the position of each row) is in the :class:`State`, which is handed in and
handed back, never kept.

The search's half of the contract:

* the first step of a state from ``start`` is fed the begin symbol, every later one the symbols chosen last;
* ``select`` is called at most once a step, and not at all where the rows stay what they are;
* the rows of a sentence stand together, and every sentence still in the search has equally many of them, so
  that a model can keep what belongs to the source once a sentence. Where a sentence has fewer hypotheses than
  that, the rest of its rows are *dead*: they are stepped with some symbol of the vocabulary and their result
  is not looked at.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int, Shaped
from torch import Tensor

Own = TypeVar("Own")  # typing.Self, which the shape checker does not take


@runtime_checkable
class State(Protocol):
    """What a model remembers of the hypotheses so far, one row each; a value, never changed in place."""

    @property
    def rows(self) -> int:
        """The number of hypotheses."""

    def select(self: Own, rows: Int[Tensor, " rows"]) -> Own:
        """The state of these rows, in this order; a row may come several times or not at all."""

    def join(self: Own, other: Own) -> Own:
        """The rows of this state followed by those of the other, which may be at other positions."""


S = TypeVar("S", bound=State)


@runtime_checkable
class Stepper(Protocol[S]):
    """A model that gives p(next symbol | symbols so far, source), one step at a time."""

    def start(self, source: Shaped[Tensor, "batch source *features"], lengths: Int[Tensor, " batch"]) -> S:
        """The state before anything is decoded, one row a sentence.

        Args:
            source: the sources, padded at the end: symbols, or whatever else this model reads.
            lengths: how many of them are real, for each sentence.
        """

    def step(self, tokens: Int[Tensor, " rows"], state: S) -> tuple[Float[Tensor, "rows vocab"], S]:
        """Append a symbol to each row; give the log-probabilities of the one after it, and the new state."""


@runtime_checkable
class Attending(Stepper[S], Protocol[S]):
    """A stepper that can also say what it looked at, for searches that ask (`coverage.py`)."""

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: S
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], S]:
        """As `Stepper.step`; and how much the symbol after it attends to each source symbol, 0 beyond the source."""
