"""Greedy search: at each step the most probable symbol. Cheap enough for validation during training.

It is beam search with a beam of one that stops at its first end, and gives the same hypotheses to the bit, with less
work a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from multihead.decoding.hypothesis import Hypothesis, Limits, by_row, limit_tensor, make_hypothesis, minimum_tensor
from multihead.decoding.restrictions import Restriction, Rows, restrict
from multihead.decoding.stepper import S, Stepper, Symbols


@torch.no_grad()
def greedy_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    symbols: Symbols,
    *,
    max_lengths: Limits,
    min_lengths: Limits = 0,
    restrictions: Sequence[Restriction] = (),
) -> list[Hypothesis]:
    """y_t = argmax p(y | y_<t, x), until the end symbol or the limit; the first of equally probable symbols.

    Sentences that are finished leave the batch. A hypothesis that reaches its limit without an end symbol is
    handed back as it is, with ``finished=False``. The score is the mean log-probability of a symbol (alpha
    1).

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: how many of them are real.
        symbols: begin, end, and what is never chosen.
        max_lengths: the most symbols of a hypothesis, the end symbol counted: one number, or one a sentence.
        min_lengths: the least symbols before the end symbol, which is forbidden until then: likewise.
        restrictions: what no hypothesis may contain, and what each must begin with.

    Raises:
        ShapeError, ConfigurationError: limits or restrictions that do not fit the batch, limits below 1, or limits
            that leave no room for the end symbol after the minimum.
        MultiheadError: the model gave NaN, or a sentence has nothing that is permitted.
    """
    batch = source.shape[0]
    limits = limit_tensor(max_lengths, batch, source.device)
    minimums = minimum_tensor(min_lengths, limits)
    for restriction in restrictions:
        restriction.check(limits, symbols)
    if not batch:
        return []
    longest_minimum = int(minimums.max())
    forbidden = torch.tensor(symbols.forbidden, dtype=torch.long, device=source.device)
    rows = torch.arange(batch, device=source.device)
    tokens = torch.full_like(rows, symbols.begin)
    totals = torch.zeros(batch, device=source.device)
    history = rows.new_zeros(batch, 0)  # kept for the restrictions alone
    state = stepper.start(source, lengths)
    written: list[tuple[Tensor, Tensor]] = []
    left: list[tuple[Tensor, Tensor]] = []
    while len(rows):
        log_probabilities, state = stepper.step(tokens, state)
        permitted = log_probabilities.index_fill(1, forbidden, -torch.inf)
        if len(written) < longest_minimum:
            permitted[minimums > len(written), symbols.end] = -torch.inf
        permitted = restrict(permitted, Rows(history, rows, log_probabilities), restrictions)
        gains, tokens = permitted.max(dim=1)
        totals = totals + gains
        written.append((rows, tokens))
        history = torch.cat([history, tokens[:, None]], dim=1) if restrictions else history
        done = (tokens == symbols.end) | (limits == len(written))
        if done.any():
            left.append((rows[done], totals[done]))
            kept = (~done).nonzero().squeeze(1)
            rows, tokens, totals = rows[kept], tokens[kept], totals[kept]
            limits, minimums, history = limits[kept], minimums[kept], history[kept]
            state = state.select(kept) if len(kept) else state
    return [
        make_hypothesis(sequence.tolist(), float(total), end=symbols.end, alpha=1.0)
        for sequence, total in zip(by_row(written, batch), by_row(left, batch), strict=True)
    ]
