"""Search over the part of the vocabulary that a source is likely to need.

The output projection is a large part of a step's work, although most symbols are impossible for a given source. Each
sentence x has its own set V_x = always + the union of the candidates of each of its symbols, and probabilities are
normalized within it:

    p_x(y) = exp(z_y) / sum_{v in V_x} exp(z_v)        y in V_x

(Jean et al. 2015, "On using very large target vocabulary for neural machine translation", section 3.2; L'Hostis,
Grangier and Auli 2016, "Vocabulary selection strategies for neural machine translation".) Greedy search finds
what it finds with all other symbols forbidden; in a beam, hypotheses compete with slightly larger probabilities.

This module implements it for every search by masking; the compiled search (`multihead.engine`) omits the products.
`translating.shortlist` learns the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.decoding.stepper import Attending, State, Stepper
from multihead.errors import ConfigurationError

Ids = npt.NDArray[np.int64]


class Shortlist:
    """The symbols that translations may contain.

    Args:
        always: target symbols of every source, including the end symbol.
        starts: the candidates of source symbol s are ``candidates[starts[s]:starts[s + 1]]``.
        candidates: target symbols.

    Raises:
        ConfigurationError: starts that do not fit the candidates, or negative symbols.
    """

    def __init__(
        self, always: Sequence[int] | Ids, starts: Sequence[int] | Ids, candidates: Sequence[int] | Ids
    ) -> None:
        self.always: Ids = np.unique(np.asarray(always, dtype=np.int64))
        # Copies, so that the checked arrays cannot change, even if they map a file.
        self._starts: Ids = np.array(starts, dtype=np.int64).ravel()
        self._candidates: Ids = np.array(candidates, dtype=np.int64).ravel()
        decreases = (self._starts[1:] < self._starts[:-1]).any()  # differences could overflow
        if not len(self._starts) or decreases or self._starts[0] or self._starts[-1] != len(self._candidates):
            raise ConfigurationError(
                f"a shortlist's starts grow from 0 to its {len(self._candidates)} candidates, got "
                f"{self._starts[:5].tolist()} ... {self._starts[-1:].tolist()}"
            )
        if min(self.always.min(initial=0), self._candidates.min(initial=0)) < 0:
            raise ConfigurationError("a shortlist's symbols are ids counted from 0, got a negative one")

    @property
    def arrays(self) -> tuple[Ids, Ids, Ids]:
        """``always`` (sorted, without duplicates), ``starts`` and ``candidates``."""
        return self.always, self._starts, self._candidates

    def of(self, source: Sequence[int]) -> Ids:
        """V_x of a source, sorted."""
        parts = [self._candidates[self._starts[symbol] : self._starts[symbol + 1]] for symbol in source]
        found: Ids = np.unique(np.concatenate([self.always, *parts]))
        return found

    def check(self, source_vocab: int, target_vocab: int) -> None:
        """Raise ConfigurationError if the model has other vocabularies."""
        most = max(self.always.max(initial=0), self._candidates.max(initial=0))
        if len(self._starts) != source_vocab + 1 or most >= target_vocab:
            raise ConfigurationError(
                f"this shortlist is of a vocabulary of {len(self._starts) - 1} source entries and target entries up to "
                f"{most}, the model's have {source_vocab} and {target_vocab}: make one for this model"
            )

    def check_end(self, end: int) -> None:
        """Raise ConfigurationError if the end symbol is not in ``always``, so that no hypothesis could end."""
        if end not in self.always:
            raise ConfigurationError(f"a shortlist must contain the end symbol {end}: make another one")


@dataclass(frozen=True)
class ShortlistedState:
    """The state of the model, and the permitted symbols of each hypothesis."""

    state: Any
    """A `State` of the model."""
    permitted: Bool[Tensor, "rows vocab"]

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        state: State = self.state
        return state.rows

    def select(self, rows: Int[Tensor, " rows"]) -> ShortlistedState:
        """The state of these rows, in this order."""
        return ShortlistedState(self.state.select(rows), self.permitted[rows])

    def join(self, other: ShortlistedState) -> ShortlistedState:
        """The rows of this state followed by those of another."""
        return ShortlistedState(self.state.join(other.state), torch.cat((self.permitted, other.permitted)))


class Shortlisted:
    """A `Stepper` that restricts another one to the shortlist of each source.

    Args:
        stepper: the model.
        shortlist: for the vocabularies of the model.
        target_vocab: size of the target vocabulary.
    """

    def __init__(self, stepper: Stepper[Any], shortlist: Shortlist, target_vocab: int) -> None:
        self._stepper, self._shortlist, self._vocab = stepper, shortlist, target_vocab

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> ShortlistedState:
        """The model's state, and the permitted symbols of each sentence."""
        permitted = torch.zeros(len(lengths), self._vocab, dtype=torch.bool)
        for row, symbols, length in zip(permitted, source.tolist(), lengths.tolist(), strict=True):
            row[torch.from_numpy(self._shortlist.of(symbols[:length]))] = True
        return ShortlistedState(self._stepper.start(source, lengths), permitted.to(source.device))

    def step(
        self, tokens: Int[Tensor, " rows"], state: ShortlistedState
    ) -> tuple[Float[Tensor, "rows vocab"], ShortlistedState]:
        """The model's step, with probabilities normalized within the shortlist."""
        rows, following = self._stepper.step(tokens, state.state)
        return self._within(rows, state), ShortlistedState(following, state.permitted)

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: ShortlistedState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], ShortlistedState]:
        """The same, with the model's attention.

        Raises:
            ConfigurationError: the model does not return its attention.
        """
        if not isinstance(self._stepper, Attending):
            raise ConfigurationError(f"a {type(self._stepper).__name__} does not say what it looks at (step_attending)")
        rows, attention, following = self._stepper.step_attending(tokens, state.state)
        return self._within(rows, state), attention, ShortlistedState(following, state.permitted)

    @staticmethod
    def _within(rows: Tensor, state: ShortlistedState) -> Tensor:
        return rows.masked_fill(~state.permitted, -torch.inf).log_softmax(1)
