"""Several models as one, whose predictions are averaged at each step.

There are two means, of models m = 1 ... M with weights w_m that sum to 1:

* of probabilities, p(y) = sum_m w_m p_m(y): a symbol is likely if one model finds it likely;
* of log-probabilities, p(y) = exp(sum_m w_m log p_m(y)) / Z: it is likely if all models do. A symbol that one model
  excludes is excluded.

(Both are in use; Sutskever, Vinyals and Le 2014, "Sequence to sequence learning with neural networks", section 3.6, and
Junczys-Dowmunt, Dwojak and Sennrich 2016, "The AMU-UEDIN submission to the WMT16 news translation task", section 2.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from multihead.decoding.search import Mean, scaled
from multihead.decoding.stepper import Attending, State, Stepper
from multihead.errors import ConfigurationError, ShapeError


@dataclass(frozen=True)
class EnsembleState:
    """The states of all models; row by row they belong to the same hypotheses."""

    states: tuple[Any, ...]
    """One `State` per model."""

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        first: State = self.states[0]
        return first.rows

    def select(self, rows: Int[Tensor, " rows"]) -> EnsembleState:
        """The state of these rows, in this order."""
        return EnsembleState(tuple(state.select(rows) for state in self.states))

    def join(self, other: EnsembleState) -> EnsembleState:
        """The rows of this state followed by those of another."""
        return EnsembleState(tuple(one.join(two) for one, two in zip(self.states, other.states, strict=True)))


class Ensemble:
    """A `Stepper` made of several, of any kind and size, with one vocabulary.

    Args:
        steppers: the models. All read the same source.
        mean: what is averaged.
        weights: a positive weight per model; they are scaled to sum to 1. By default all are equal.

    Raises:
        ConfigurationError: no model, or not one positive weight per model.
    """

    def __init__(
        self,
        steppers: Sequence[Stepper[Any]],
        mean: Mean = "probabilities",
        weights: Sequence[float] | None = None,
    ) -> None:
        self._weights = scaled(weights, len(steppers))
        self._steppers = tuple(steppers)
        self.mean: Mean = mean

    def each(self, change: Callable[[Stepper[Any]], Stepper[Any]]) -> Ensemble:
        """The same mean of the changed models."""
        return Ensemble([change(stepper) for stepper in self._steppers], self.mean, self._weights)

    def start(self, source: Shaped[Tensor, "batch source *features"], lengths: Int[Tensor, " batch"]) -> EnsembleState:
        """The states of all models before the first step."""
        return EnsembleState(tuple(stepper.start(source, lengths) for stepper in self._steppers))

    def step(
        self, tokens: Int[Tensor, " rows"], state: EnsembleState
    ) -> tuple[Float[Tensor, "rows vocab"], EnsembleState]:
        """Step every model and average the predictions.

        Raises:
            ShapeError: their vocabularies differ in size.
        """
        steps = [stepper.step(tokens, own) for stepper, own in zip(self._steppers, state.states, strict=True)]
        return self._mean_of([row for row, _ in steps]), EnsembleState(tuple(own for _, own in steps))

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: EnsembleState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], EnsembleState]:
        """The same, with the mean of the models' attention.

        Raises:
            ShapeError: their vocabularies differ in size.
            ConfigurationError: one of them does not return its attention.
        """
        steps = []
        for stepper, own in zip(self._steppers, state.states, strict=True):
            if not isinstance(stepper, Attending):
                raise ConfigurationError(
                    f"a {type(stepper).__name__} in the ensemble does not say what it looks at (step_attending): leave "
                    "it out, or coverage at 0"
                )
            steps.append(stepper.step_attending(tokens, own))
        attention = sum(weight * looked for weight, (_, looked, _) in zip(self._weights, steps, strict=True))
        assert isinstance(attention, Tensor)
        return self._mean_of([row for row, _, _ in steps]), attention, EnsembleState(tuple(own for *_, own in steps))

    def _mean_of(self, found: list[Tensor]) -> Float[Tensor, "rows vocab"]:
        sizes = [row.shape[1] for row in found]
        if len(set(sizes)) > 1:
            raise ShapeError(f"the models of an ensemble need one vocabulary, got sizes {sizes}")
        rows = torch.stack(found)
        weights = torch.tensor(self._weights, dtype=rows.dtype, device=rows.device)[:, None, None]
        if self.mean == "probabilities":
            return (rows + weights.log()).logsumexp(dim=0)
        return (rows * weights).sum(dim=0).log_softmax(dim=1)
