"""Minimum Bayes risk: the hypothesis with the highest expected utility.

    y* = argmax_h sum_r w_r u(h, r),    u(hypothesis, reference) the utility, sum_r w_r = 1

(Kumar and Byrne 2004, "Minimum Bayes-risk decoding for statistical machine translation", equation 3; Eikema and Aziz
2020, "Is MAP decoding all you need?", section 3, with the references sampled from the model.) With samples as
references the weights are equal, and a text that was drawn twice counts twice; with a beam they are the probabilities.

The utility is an argument; `translating.consensus` has utilities of texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from multihead.errors import ConfigurationError, MultiheadError

Utility = Callable[[str, str], float]
"""(hypothesis, reference) -> quality of the hypothesis if the reference is right; higher is better."""


def expected_utility(
    hypotheses: Sequence[str],
    utility: Utility,
    *,
    references: Sequence[str] | None = None,
    log_probabilities: Sequence[float] | None = None,
) -> list[float]:
    """sum_r w_r u(h, r) for each hypothesis h; the utility of equal pairs is computed once.

    Args:
        hypotheses: the candidates.
        utility: u.
        references: possible truths; by default the hypotheses themselves.
        log_probabilities: of the references; w_r is proportional to their exp. By default all weights are equal.

    Raises:
        ConfigurationError: no reference, or not one log-probability for each.
        MultiheadError: a utility is not a finite number.
    """
    references = hypotheses if references is None else references
    if hypotheses and not references:
        raise ConfigurationError("minimum Bayes risk needs at least one reference")
    weights = _weights(len(references), log_probabilities)
    weight_of: dict[str, float] = {}
    for reference, weight in zip(references, weights, strict=True):
        weight_of[reference] = weight_of.get(reference, 0.0) + weight
    expected: dict[str, float] = {}
    for hypothesis in dict.fromkeys(hypotheses):
        values = [weight * utility(hypothesis, reference) for reference, weight in weight_of.items()]
        expected[hypothesis] = math.fsum(values)
        if not math.isfinite(expected[hypothesis]):
            raise MultiheadError(f"the utility of {hypothesis!r} is {expected[hypothesis]}, expected a finite number")
    return [expected[hypothesis] for hypothesis in hypotheses]


def least_risk(
    hypotheses: Sequence[str],
    utility: Utility,
    *,
    references: Sequence[str] | None = None,
    log_probabilities: Sequence[float] | None = None,
) -> int:
    """The place of the hypothesis with the highest expected utility, the first of equals.

    The arguments are those of `expected_utility`.

    Raises:
        ConfigurationError: no hypothesis, and as `expected_utility`.
        MultiheadError: as `expected_utility`.
    """
    if not hypotheses:
        raise ConfigurationError("minimum Bayes risk needs at least one hypothesis to choose from")
    expected = expected_utility(hypotheses, utility, references=references, log_probabilities=log_probabilities)
    return max(range(len(expected)), key=lambda place: expected[place])


def _weights(count: int, log_probabilities: Sequence[float] | None) -> list[float]:
    """The weight of each reference; they sum to 1."""
    if log_probabilities is None:
        return [1.0 / max(count, 1)] * count
    if len(log_probabilities) != count or not all(math.isfinite(value) for value in log_probabilities):
        raise ConfigurationError(
            f"expected a finite log-probability for each of {count} references, got {list(log_probabilities)}"
        )
    most = max(log_probabilities, default=0.0)
    shares = [math.exp(value - most) for value in log_probabilities]
    return [share / math.fsum(shares) for share in shares]
