"""How hard the machine works: operations of an update over those of nothing but matrix products in the same time.

A weight of a matrix takes two operations for each token that passes it, and four more on the way back (Kaplan et al.
2020, 2.1), so an update takes about

    6 (N_encoder source tokens + N_decoder target tokens)

where N counts the weights of matrices; embeddings count where they are the output projection, attention's products of
queries and keys do not (2% of a small model's, at 20 tokens a sentence). The peak is measured once, with products of
the size and precision at hand: the share says what is lost to everything that is no matrix product.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

_SIDE = 1024
"""Rows and columns of the matrices of the measurement."""
_SECONDS = 0.15


@dataclass(frozen=True)
class Effort:
    """What a token costs, and what the machine could do."""

    source: float
    """Operations a source token takes."""
    target: float
    """Operations a target token takes."""
    peak: float
    """Operations a second of matrix products alone."""

    def share_of_peak(self, source_tokens: int, target_tokens: int, seconds: float) -> float:
        """Operations that so many tokens took, over those that the time would have been enough for."""
        return (self.source * source_tokens + self.target * target_tokens) / (seconds * self.peak)


def effort_of(model: nn.Module, output: nn.Linear, device: str, precision: str) -> Effort:
    """The effort of training a translator on this machine; takes a fraction of a second.

    Args:
        model: its parameters whose names begin with ``encoder`` are passed by source tokens, others by target tokens.
        output: its output projection.
        device: where it is trained.
        precision: of its matrix products.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    counts = [output.weight.numel(), 0]
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and id(parameter) not in tables | {id(output.weight)}:
            counts[name.startswith("encoder")] += parameter.numel()
    return Effort(6.0 * counts[1], 6.0 * counts[0], peak(device, precision))


@torch.no_grad()
def peak(device: str, precision: str) -> float:
    """Operations a second of products of two square matrices, the best of some rounds."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    one, other = (torch.full((_SIDE, _SIDE), 1.0 / _SIDE, dtype=dtype, device=device) for _ in range(2))
    best, ends = float("inf"), time.perf_counter() + _SECONDS
    rounds = 0
    while time.perf_counter() < ends or rounds < 3:
        started = time.perf_counter()
        torch.mm(one, other)
        if one.is_cuda:
            torch.cuda.synchronize()
        best, rounds = min(best, time.perf_counter() - started), rounds + 1
    return 2.0 * _SIDE**3 / max(best, 1e-9)
