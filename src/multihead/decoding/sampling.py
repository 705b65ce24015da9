"""Sampling from a model's distribution, sharpened or truncated.

    q(y) = p(y)^(1/T) / Z over the symbols that are permitted and kept,    y_t ~ q(. | y_<t, x)

Truncations (`top_k`, `top_p`, `min_p`, `epsilon`) cut off the unreliable tail of a distribution: for each row of
log-probabilities they say which symbols to keep. The most probable one is always kept. Each is a function of one
distribution, so they combine with ``&`` in any order.

The random number behind a symbol is a function of (seed, key of the sentence, number of the sample, step) only. So
samples do not depend on the other sentences of the batch, on their order or on the device, and the first of ten samples
is the only one of one. y_t is the first symbol, in the order of ids, at which the running sum of q exceeds the number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from multihead.decoding.candidates import best
from multihead.decoding.hypothesis import Hypothesis, make_hypothesis, refuse_nan
from multihead.decoding.restrictions import Restriction, Rows, restrict
from multihead.decoding.search import Search, Symbols
from multihead.decoding.sharpening import Sharpening, streams
from multihead.decoding.stepper import S, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, MultiheadError, ShapeError
from multihead.platforms import widest_float
from multihead.text.segment import scramble


def top_k(log_probabilities: Float[Tensor, "rows vocab"], count: int) -> Bool[Tensor, "rows vocab"]:
    """Keep the ``count`` most probable symbols, of equally probable ones the first (Fan, Lewis and Dauphin 2018,
    "Hierarchical neural story generation", section 4.3)."""
    _, indices = best(log_probabilities, count)
    return torch.zeros_like(log_probabilities, dtype=torch.bool).scatter(1, indices, True)


def top_p(log_probabilities: Float[Tensor, "rows vocab"], mass: float) -> Bool[Tensor, "rows vocab"]:
    """Keep the fewest most probable symbols with a total probability of at least ``mass`` (Holtzman et al. 2020,
    "The curious case of neural text degeneration", equation 2: the nucleus)."""
    ordered, indices = log_probabilities.sort(dim=1, descending=True, stable=True)
    # the probability of the more probable ones
    above = ordered.to(widest_float(ordered.device)).exp().cumsum(dim=1).roll(1, dims=1)
    above[:, 0] = -torch.inf  # the first is always kept
    return torch.zeros_like(log_probabilities, dtype=torch.bool).scatter(1, indices, above < mass)


def min_p(log_probabilities: Float[Tensor, "rows vocab"], share: float) -> Bool[Tensor, "rows vocab"]:
    """Keep the symbols with p >= share * max p (Nguyen et al. 2024, "Turning up the heat: min-p sampling for creative
    and coherent LLM outputs", section 3)."""
    return log_probabilities >= log_probabilities.max(dim=1, keepdim=True).values + math.log(share)


def epsilon(log_probabilities: Float[Tensor, "rows vocab"], least: float) -> Bool[Tensor, "rows vocab"]:
    """Keep the symbols with p >= least, and the most probable (Hewitt, Manning and Liang 2022, "Truncation sampling as
    language model desmoothing", section 4.2)."""
    return (log_probabilities >= math.log(least)) | top_k(log_probabilities, 1)


def sharpen(how: Sharpening, permitted: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """log q of each symbol, in the device's widest type; NaN in a row without permitted symbols."""
    scores = (permitted.to(widest_float(permitted.device)) / how.temperature).log_softmax(dim=1)
    stays: Bool[Tensor, "rows vocab"] = scores > -torch.inf
    if how.top_k is not None:
        stays = stays & top_k(scores, how.top_k)
    if how.top_p is not None:
        stays = stays & top_p(scores, how.top_p)
    if how.min_p is not None:
        stays = stays & min_p(scores, how.min_p)
    if how.epsilon is not None:
        stays = stays & epsilon(scores, how.epsilon)
    return scores.masked_fill(~stays, -torch.inf).log_softmax(dim=1)


@dataclass(frozen=True)
class _Samples:
    """The sentences still in the search, each with the same number of samples: 1 row at the start, then always n."""

    sentences: Int[Tensor, " sentences"]
    limits: Int[Tensor, " sentences"]
    minimums: Int[Tensor, " sentences"]
    totals: Float[Tensor, "sentences samples"]
    history: Int[Tensor, "sentences samples time"]
    done: Bool[Tensor, "sentences samples"]

    def select(self, staying: Int[Tensor, " staying"]) -> _Samples:
        return _Samples(**{name: value[staying] for name, value in vars(self).items()})


@torch.no_grad()
def sample(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    task: SearchTask,
    search: Search | None = None,
    *,
    seed: int = 0,
    keys: Sequence[int] | None = None,
    sharpening: Sharpening | None = None,
) -> list[list[Hypothesis]]:
    """``task.n_best`` samples of each sentence, in the order of their numbers; equal ones are possible.

    Their log-probabilities are the model's own. A sample that reaches its limit without an end symbol has
    ``finished=False``.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: number of real symbols of each source.
        task: the model's symbols, lengths, restrictions and the number of samples; the rest of it is ignored.
        search: lengths and length penalty; the rest of it is ignored. By default the score is the mean log-probability
            of a symbol.
        seed: of the random numbers, any integer.
        keys: a number for each sentence, so that it draws the same random numbers in any batch; by default its place.
        sharpening: what to draw from; by default the model's distribution over the permitted symbols.

    Raises:
        ShapeError, ConfigurationError: lengths, restrictions or keys do not fit the batch; fewer than one sample.
        MultiheadError: the model gave NaN, or a sample has no permitted continuation.
    """
    batch, samples, search = source.shape[0], task.n_best, search or Search()
    keys = range(batch) if keys is None else keys
    limits, minimums = task.lengths(search, lengths, source.device)
    _check(batch, samples, keys)
    found: list[list[Hypothesis]] = [[]] * batch
    if not batch:
        return found
    restrictions = task.effective_restrictions(search)
    numbered = streams(seed, keys, samples)
    now = _begin(limits, minimums, task.symbols.begin)
    state = stepper.start(source, lengths)
    while len(now.sentences):
        log_probabilities, state = stepper.step(now.history[:, :, -1].flatten(), state)
        wide = now.totals.shape[1] == samples
        permitted = _permit(log_probabilities, now, task.symbols, restrictions)
        q = sharpen(sharpening or Sharpening(), permitted).view(len(now.sentences), -1, permitted.shape[1])
        numbers = _uniform(numbered[now.sentences.cpu().numpy()], now.history.shape[2] - 1)
        below_one = 1 - torch.finfo(q.dtype).eps / 2
        tokens = _draw(q, numbers.to(q.dtype).clamp_(max=below_one).to(q.device))
        now = _append(now, tokens, permitted.view(q.shape), task.symbols.end)
        leaving = now.done.all(dim=1)
        _collect(now, leaving, task, search, found)
        staying = (~leaving).nonzero().squeeze(1)
        if len(staying) and (len(staying) < len(leaving) or not wide):
            width = samples if wide else 1
            rows = staying[:, None] * width + torch.arange(samples, device=staying.device) % width
            state = state.select(rows.flatten())
        now = now.select(staying)
    return found


def _check(batch: int, samples: int, keys: Sequence[int]) -> None:
    if samples < 1:
        raise ConfigurationError(f"expected at least 1 sample of each sentence, got {samples}")
    if len(keys) != batch:
        raise ShapeError(f"got {len(keys)} keys for {batch} sentences: give one each")


def _begin(limits: Int[Tensor, " sentences"], minimums: Int[Tensor, " sentences"], begin: int) -> _Samples:
    """Each sentence with one row, which holds the begin symbol."""
    sentences = torch.arange(len(limits), device=limits.device)
    return _Samples(
        sentences=sentences,
        limits=limits,
        minimums=minimums,
        totals=torch.zeros(len(limits), 1, device=limits.device),
        history=torch.full_like(sentences, begin)[:, None, None],
        done=torch.zeros(len(limits), 1, dtype=torch.bool, device=limits.device),
    )


def _permit(
    log_probabilities: Float[Tensor, "rows vocab"],
    now: _Samples,
    symbols: Symbols,
    restrictions: Sequence[Restriction],
) -> Float[Tensor, "rows vocab"]:
    """The log-probabilities of the permitted symbols; a row that is done ends again, at no cost."""
    sentences, width = now.totals.shape
    forbidden = torch.tensor(symbols.forbidden, dtype=torch.long, device=log_probabilities.device)
    permitted = log_probabilities.index_fill(1, forbidden, -torch.inf)
    early = now.minimums >= now.history.shape[2]  # begin is in the history
    permitted.view(sentences, width, -1)[early, :, symbols.end] = -torch.inf
    rows = Rows(now.history[:, :, 1:].flatten(0, 1), now.sentences.repeat_interleave(width), log_probabilities)
    permitted = restrict(permitted, rows, restrictions)
    done = now.done.flatten()
    permitted[done] = -torch.inf
    permitted[done, symbols.end] = 0.0
    refuse_nan(float(permitted.sum()))
    if bool((permitted == -torch.inf).all(dim=1).any()):
        raise MultiheadError(
            "the model gives every permitted symbol the probability 0: check its log-probabilities, the forbidden "
            "symbols and the restrictions of the search"
        )
    return permitted


def _draw(
    q: Float[Tensor, "sentences rows vocab"], numbers: Float[Tensor, "sentences samples"]
) -> Int[Tensor, "sentences samples"]:
    """The first symbol at which the running sum of probabilities exceeds a number.

    In the first step a sentence has one row, from which all its samples are drawn; later each sample has its own.
    """
    sums = q.exp().cumsum(dim=2)
    # Scaled by the rounded total, so that the sum always exceeds a number below 1, and at a possible symbol.
    thresholds = numbers[:, :, None] * sums[:, :, -1:]
    if q.shape[1] == 1:
        return torch.searchsorted(sums[:, 0], thresholds[:, :, 0].contiguous(), right=True)
    return torch.searchsorted(sums, thresholds, right=True).squeeze(2)


def _append(
    now: _Samples,
    tokens: Int[Tensor, "sentences samples"],
    permitted: Float[Tensor, "sentences rows vocab"],
    end: int,
) -> _Samples:
    """Each sample with its next symbol; history and total of those that are done are ignored."""
    samples = tokens.shape[1]
    gains = permitted.expand(-1, samples, -1).gather(2, tokens[:, :, None]).squeeze(2)
    history = torch.cat([now.history.expand(-1, samples, -1), tokens[:, :, None]], dim=2)
    cut = (now.limits == now.history.shape[2])[:, None]
    return replace(now, totals=now.totals + gains, history=history, done=now.done | (tokens == end) | cut)


def _collect(
    now: _Samples, leaving: Bool[Tensor, " sentences"], task: SearchTask, search: Search, found: list[list[Hypothesis]]
) -> None:
    """File the samples of the sentences that leave."""
    end, penalty = task.symbols.end, task.penalty or search.penalty
    sentences, totals = now.sentences[leaving].tolist(), now.totals[leaving].tolist()
    for sentence, rows, sums in zip(sentences, now.history[leaving, :, 1:].tolist(), totals, strict=True):
        whole = [row[: row.index(end) + 1] if end in row else row for row in rows]
        found[sentence] = [
            make_hypothesis(row, total, end=end, alpha=search.alpha, penalty=penalty)
            for row, total in zip(whole, sums, strict=True)
        ]


def _uniform(
    streams: np.ndarray[tuple[int, ...], np.dtype[np.uint64]], step: int
) -> Float64[Tensor, "sentences samples"]:
    """Uniform numbers in [0, 1): multiples of 2^-53."""
    words = scramble(streams, np.array([step], dtype=np.uint64)) >> np.uint64(11)
    return torch.from_numpy(words.astype(np.float64) * 2.0**-53)
