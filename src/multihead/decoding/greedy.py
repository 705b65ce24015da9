"""Greedy search: the most probable symbol at each step.

It equals beam search with a beam of one that stops at its first end, to the last bit, with less work per step: cheap
enough for validation during training.
"""

from __future__ import annotations

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from multihead.decoding.hypothesis import Hypothesis, by_row, make_hypothesis
from multihead.decoding.restrictions import Rows, restrict
from multihead.decoding.search import Search
from multihead.decoding.stepper import S, Stepper
from multihead.decoding.task import SearchTask


@torch.no_grad()
def greedy_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    task: SearchTask,
    search: Search | None = None,
) -> list[Hypothesis]:
    """y_t = argmax p(y | y_<t, x), until the end symbol or the limit; of equally probable symbols the first.

    Finished sentences leave the batch. A hypothesis that reaches its limit without an end symbol is returned as it is,
    with ``finished=False``.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: number of real symbols of each source.
        task: the model's symbols, lengths and restrictions; the rest of it is ignored.
        search: lengths and length penalty; the rest of it is ignored. By default the score is the mean log-probability
            of a symbol.

    Raises:
        ShapeError, ConfigurationError: lengths or restrictions do not fit the batch, limits below 1, or limits without
            room for the end symbol after the minimum.
        MultiheadError: the model gave NaN, or a sentence has no permitted continuation.
    """
    batch, search = source.shape[0], search or Search()
    symbols, restrictions = task.symbols, task.effective_restrictions(search)
    limits, minimums = task.lengths(search, lengths, source.device)
    if not batch:
        return []
    longest_minimum = int(minimums.max())
    forbidden = torch.tensor(symbols.forbidden, dtype=torch.long, device=source.device)
    rows = torch.arange(batch, device=source.device)
    tokens = torch.full_like(rows, symbols.begin)
    totals = torch.zeros(batch, device=source.device)
    history = rows.new_zeros(batch, 0)  # only the restrictions need it
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
        make_hypothesis(
            sequence.tolist(), float(total), end=symbols.end, alpha=search.alpha, penalty=task.penalty or search.penalty
        )
        for sequence, total in zip(by_row(written, batch), by_row(left, batch), strict=True)
    ]
