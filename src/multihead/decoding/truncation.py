"""Which symbols a sample may be drawn from: of a distribution's unreliable tail, several ways cut a part away.

Each function here says, for each row of log-probabilities, which symbols stay. The most probable one always does. They
are functions of one distribution, so they can be combined with ``&`` in any order.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.decoding.ranking import best


def top_k(log_probabilities: Float[Tensor, "rows vocab"], count: int) -> Bool[Tensor, "rows vocab"]:
    """The ``count`` most probable symbols, of equally probable ones the first (Fan, Lewis and Dauphin 2018,
    "Hierarchical neural story generation", section 4.3)."""
    _, indices = best(log_probabilities, count)
    return torch.zeros_like(log_probabilities, dtype=torch.bool).scatter(1, indices, True)


def top_p(log_probabilities: Float[Tensor, "rows vocab"], mass: float) -> Bool[Tensor, "rows vocab"]:
    """The fewest most probable symbols that together have at least the probability ``mass`` (Holtzman et al. 2020,
    "The curious case of neural text degeneration", equation 2: the nucleus)."""
    ordered, indices = log_probabilities.sort(dim=1, descending=True, stable=True)
    above = ordered.double().exp().cumsum(dim=1).roll(1, dims=1)  # what the more probable ones have
    above[:, 0] = -torch.inf  # the first always stays
    return torch.zeros_like(log_probabilities, dtype=torch.bool).scatter(1, indices, above < mass)


def min_p(log_probabilities: Float[Tensor, "rows vocab"], share: float) -> Bool[Tensor, "rows vocab"]:
    """The symbols with p >= share * max p (Nguyen et al. 2024, "Turning up the heat: min-p sampling for creative and
    coherent LLM outputs", section 3)."""
    return log_probabilities >= log_probabilities.max(dim=1, keepdim=True).values + math.log(share)


def epsilon(log_probabilities: Float[Tensor, "rows vocab"], least: float) -> Bool[Tensor, "rows vocab"]:
    """The symbols with p >= least, and the most probable (Hewitt, Manning and Liang 2022, "Truncation sampling as
    language model desmoothing", section 4.2)."""
    return (log_probabilities >= math.log(least)) | top_k(log_probabilities, 1)
