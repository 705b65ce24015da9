"""When a sentence's beam search may stop before its length limit.

`Exact` stops as soon as nothing can change any more, and never before: what is found is what the search to the limit
finds. `Ahead` and `Patience` stop earlier, and what they find can differ from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class Standing:
    """How the search of each sentence stands after a step."""

    beam: int
    """K."""
    length: int
    """Symbols of the hypotheses that go on."""
    limits: Int[Tensor, " sentences"]
    """The most that they may have, the end symbol counted."""
    finished: Int[Tensor, " sentences"]
    """How many hypotheses are finished."""
    settled: Float[Tensor, " sentences"]
    """The score of the last of the n best finished ones; -inf where fewer are finished."""
    leading: Float[Tensor, " sentences"]
    """log p of the best hypothesis that goes on; -inf where none does."""
    now: Float[Tensor, " sentences"]
    """The highest score that any of those which go on would have if it ended here; -inf where none does."""
    divisors: Float[Tensor, " lengths"]
    """The length penalty of each length."""


@runtime_checkable
class Stop(Protocol):
    """A rule for when to stop. A search of its own accord stops at the limit and where nothing goes on."""

    def done(self, standing: Standing) -> Bool[Tensor, " sentences"]:
        """The sentences whose search may stop."""


@dataclass(frozen=True)
class Exact:
    """Stop when no hypothesis that goes on can still be among the n best: the same is found as without stopping.

    A hypothesis of log-probability s can only lose probability, s' <= s <= 0, and penalty(n') <= penalty(limit) for all
    lengths n' that it may reach. So its score will be s' / penalty(n') <= s / penalty(limit), and of equal scores the
    one that finished first counts. In floating point too: additions and divisions round monotonically. A coverage
    penalty (`coverage.py`) adds at most 0 to the score in the end, so the bound stays one. (Huang, Zhao and Ma 2017,
    "When to finish? Optimal beam search for neural text generation", section 3, has it for alpha 0.)

    The larger alpha, and the further away the limit, the later it stops; with alpha 0 at the first chance.
    """

    def done(self, standing: Standing) -> Bool[Tensor, " sentences"]:
        """Where the n best finished ones score at least what anything else may still reach."""
        return standing.settled >= standing.leading / standing.divisors[standing.limits]


@dataclass(frozen=True)
class Ahead:
    """Stop when K are finished and the n best score at least what the best that goes on would if it ended here.

    What a hypothesis may yet gain by its length is not waited for; with alpha 0 it can gain nothing, and what is found
    is exact. (``early_stopping=False`` of the transformers library is this rule.)
    """

    def done(self, standing: Standing) -> Bool[Tensor, " sentences"]:
        """Where K are finished, and ahead."""
        return (standing.settled >= standing.now) & (standing.finished >= standing.beam)


@dataclass(frozen=True)
class Patience:
    """Stop when factor * K hypotheses are finished, whatever they score (Kasai et al. 2022, "A call for clarity in
    beam search: how it works and when it stops", algorithm 1).

    With 1, the usual rule of the field, the first K are what there is to choose from; a larger factor waits for more.

    Args:
        factor: p of the paper, above 0.

    Raises:
        ConfigurationError: another factor.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < float("inf"):
            raise ConfigurationError(f"patience must be a number above 0, got {self.factor}")

    def done(self, standing: Standing) -> Bool[Tensor, " sentences"]:
        """Where so many are finished, and as many as are wanted."""
        return (standing.finished >= self.factor * standing.beam) & (standing.settled > -float("inf"))


def usual_stop(beam: int) -> Stop:
    """`Exact`, but with a beam of 1 the first end, so that it is greedy search."""
    return Patience(1.0) if beam == 1 else Exact()
