"""Forced decoding: the log-probability of every symbol of a given target.

It steps through the target as a search does, so that it works for every `Stepper` and uses the same cached computation.
(For a loss alone, a model's own teacher-forced pass is faster.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from multihead.decoding.hypothesis import by_row, refuse_nan
from multihead.decoding.search import Symbols
from multihead.decoding.stepper import S, Stepper
from multihead.errors import ShapeError


@torch.no_grad()
def force(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    targets: Sequence[Sequence[int]],
    symbols: Symbols,
) -> list[list[float]]:
    """log p(y_t | y_<t, x) for every symbol of each target and for the end symbol after it.

    A target of n symbols has n + 1 values, whose sum is the log-probability of the finished hypothesis in a search.
    Forbidden symbols are scored like any other.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: number of real symbols of each source.
        targets: one per source, without begin and end.
        symbols: begin and end.

    Raises:
        ShapeError: not one target per source.
        MultiheadError: the model gave NaN.
    """
    batch = source.shape[0]
    if len(targets) != batch:
        raise ShapeError(f"got {len(targets)} targets for {batch} sources: give one target for each source")
    if not batch:
        return []
    wanted, counts = _padded(targets, symbols.end, source.device)
    rows = torch.arange(batch, device=source.device)
    tokens = torch.full_like(rows, symbols.begin)
    state = stepper.start(source, lengths)
    noted: list[tuple[Tensor, Tensor]] = []
    while len(rows):
        log_probabilities, state = stepper.step(tokens, state)
        tokens = wanted[rows, len(noted)]
        noted.append((rows, log_probabilities.gather(1, tokens[:, None]).squeeze(1)))
        kept = (counts[rows] > len(noted)).nonzero().squeeze(1)
        if len(kept) < len(rows):
            rows, tokens = rows[kept], tokens[kept]
            state = state.select(kept) if len(kept) else state
    scores: list[list[float]] = [row.tolist() for row in by_row(noted, batch)]
    refuse_nan(sum(map(sum, scores)))
    return scores


def _padded(
    targets: Sequence[Sequence[int]], end: int, device: torch.device
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """The targets, padded with end symbols; and their lengths, including one end symbol."""
    counts = [len(target) + 1 for target in targets]
    rows = [[*target, *[end] * (max(counts) - len(target))] for target in targets]
    return torch.tensor(rows, device=device), torch.tensor(counts, device=device)
