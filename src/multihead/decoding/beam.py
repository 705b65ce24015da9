"""Beam search over a batch of sentences.

A step extends the K hypotheses of each sentence by every symbol and looks at the 2K most probable results. Of
those, the ones that end, and are among the first K, are *finished* and never extended again; the best K that
do not end go on. (At most K of the 2K can end, one for each hypothesis extended, so K others are always
there.) A sentence is done, and leaves the batch, when K hypotheses are finished and the n best of them score
at least as much as the best one that goes on would if it ended here; when its length limit is reached; or
when nothing possible is left. The finished ones are then ordered by their score, log p(y | x) / |y| ** alpha
(hypothesis.py).

K finished ones alone would not do: where the model is sure, the K best candidates are the right one and
several hopeless ones, ends among them, and the search would stop at K hopeless ends. What a hypothesis that
goes on may yet gain by its length is not waited for; with alpha = 0 it can gain nothing.

At the limit nothing is forced: a hypothesis without an end symbol is handed back as it is and says
``finished=False``, after the finished ones and only where those are too few, so that no output is cut without
the caller knowing.

Which hypotheses survive is decided by log-probability alone: within a step all candidates are equally long.
Sums are kept in single precision at least; rounding keeps the order within a row, so a beam of 1 is exactly
greedy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.decoding.hypothesis import (
    Hypothesis,
    Limits,
    limit_tensor,
    make_hypothesis,
    minimum_tensor,
    refuse_nan,
)
from multihead.decoding.ranking import best
from multihead.decoding.stepper import S, Stepper, Symbols
from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class _Settings:
    """What stays the same during one search."""

    beam: int
    alpha: float
    n_best: int
    end: int
    forbidden: Int[Tensor, " forbidden"]
    longest_minimum: int  # on the host: after so many symbols no sentence's end is forbidden


@dataclass(frozen=True)
class _Beams:
    """The sentences still in the search, all with as many hypotheses: 1 at the start, then always K.

    A hypothesis with the total -inf is dead: it fills a place.
    """

    sentences: Int[Tensor, " sentences"]  # their places in the caller's batch
    limits: Int[Tensor, " sentences"]
    minimums: Int[Tensor, " sentences"]
    finished: Int[Tensor, " sentences"]  # how many hypotheses of each are finished
    scores: Float[Tensor, "sentences n_best"]  # of the best finished ones, best first
    totals: Float[Tensor, "sentences beam"]  # log p(y_1 ... y_t | x)
    history: Int[Tensor, "sentences beam time"]  # begin, y_1 ... y_t


@dataclass(frozen=True)
class _Candidates:
    """Extensions of the beams by one symbol, the most probable of each sentence first."""

    totals: Float[Tensor, "sentences candidates"]
    parents: Int[Tensor, "sentences candidates"]  # which hypothesis of the sentence is extended
    tokens: Int[Tensor, "sentences candidates"]


@torch.no_grad()
def beam_search(
    stepper: Stepper[S],
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"],
    symbols: Symbols,
    *,
    max_lengths: Limits,
    min_lengths: Limits = 0,
    beam: int = 5,
    alpha: float = 1.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The ``n_best`` hypotheses of each sentence: finished ones before unfinished ones, then by score.

    They are distinct as sequences of symbols. A sentence can have fewer, where fewer are possible within its limit.
    Asking for more than one lets the search go on until those, too, are settled: the best one is then at least as
    good as the only one.

    Args:
        stepper: the model.
        source: symbols of the sources, padded at the end.
        lengths: how many of them are real.
        symbols: begin, end, and what is never chosen.
        max_lengths: the most symbols of a hypothesis, the end symbol counted: one number, or one a sentence.
        min_lengths: the least symbols before the end symbol, which is forbidden until then: likewise.
        beam: K, the hypotheses of a sentence that go on after each step.
        alpha: the exponent of the length in the score.
        n_best: how many hypotheses to hand back, at most ``beam``.

    Raises:
        ShapeError, ConfigurationError: limits that do not fit the batch or leave no room for the end symbol after
            the minimum, or settings outside their ranges.
        MultiheadError: the model gave NaN, or nothing but forbidden symbols.
    """
    _check(beam, alpha, n_best)
    limits = limit_tensor(max_lengths, source.shape[0], source.device)
    minimums = minimum_tensor(min_lengths, limits)
    forbidden = torch.tensor(symbols.forbidden, dtype=torch.long, device=source.device)
    longest_minimum = max(minimums.tolist(), default=0)
    settings = _Settings(beam, alpha, n_best, symbols.end, forbidden, longest_minimum)
    found: list[list[Hypothesis]] = [[] for _ in range(len(limits))]
    beams = _begin(limits, minimums, symbols.begin, n_best)
    state = stepper.start(source, lengths) if found else None
    while state is not None:
        log_probabilities, state = stepper.step(beams.history[:, :, -1].flatten(), state)
        candidates = _extend(beams, log_probabilities, settings)
        beams = _finish(beams, candidates, settings, found)
        going = _continue(candidates, settings)
        staying = _retire(beams, going, settings, found)
        state = _follow(state, beams, going, staying) if len(staying) else None
        beams = _advance(beams, going, staying)
    return [_rank(hypotheses, settings) for hypotheses in found]


def _check(beam: int, alpha: float, n_best: int) -> None:
    """Refuse settings outside their ranges."""
    if beam < 1:
        raise ConfigurationError(f"beam must be at least 1, got {beam}")
    if not 1 <= n_best <= beam:
        raise ConfigurationError(
            f"n_best must be from 1 to the beam of {beam}, got {n_best}: widen the beam or ask for fewer"
        )
    if not 0 <= alpha < float("inf"):
        raise ConfigurationError(f"alpha must be a number that is not negative, got {alpha}")


def _begin(limits: Int[Tensor, " sentences"], minimums: Int[Tensor, " sentences"], begin: int, n_best: int) -> _Beams:
    """Each sentence with one hypothesis, which holds the begin symbol."""
    sentences = torch.arange(len(limits), device=limits.device)
    return _Beams(
        sentences=sentences,
        limits=limits,
        minimums=minimums,
        finished=torch.zeros_like(sentences),
        scores=torch.full((len(limits), n_best), -torch.inf, device=limits.device),
        totals=torch.zeros(len(limits), 1, device=limits.device),
        history=torch.full_like(sentences, begin)[:, None, None],
    )


def _extend(beams: _Beams, log_probabilities: Float[Tensor, "rows vocab"], settings: _Settings) -> _Candidates:
    """The 2K best extensions of each sentence; where there are fewer, the rest are dead.

    The 2K best of a sentence are among the 2K best of each of its rows, so that the sums are made for few.
    """
    sentences, width = beams.totals.shape
    permitted = log_probabilities.index_fill(1, settings.forbidden, -torch.inf)
    written = beams.history.shape[2] - 1  # begin is in the history
    if written < settings.longest_minimum:
        permitted.view(sentences, width, -1)[beams.minimums > written, :, settings.end] = -torch.inf
    gains, tokens = best(permitted, 2 * settings.beam)
    each = tokens.shape[1]
    totals = (beams.totals[:, :, None] + gains.view(sentences, width, each)).flatten(1)
    totals, order = best(totals, 2 * settings.beam)
    refuse_nan(float(totals[:, 0].sum()))  # NaN sorts before every number
    tokens = tokens.view(sentences, width * each).gather(1, order)
    spare = (0, 2 * settings.beam - order.shape[1])
    return _Candidates(
        totals=torch.nn.functional.pad(totals, spare, value=-torch.inf),
        parents=torch.nn.functional.pad(order // each, spare),
        tokens=torch.nn.functional.pad(tokens, spare, value=settings.end),
    )


def _finish(beams: _Beams, candidates: _Candidates, settings: _Settings, found: list[list[Hypothesis]]) -> _Beams:
    """Keep the candidates that end among the first K; count them and note the best scores."""
    totals = candidates.totals[:, : settings.beam]
    ends = (candidates.tokens[:, : settings.beam] == settings.end) & (totals > -torch.inf)
    _collect(beams, candidates, ends, settings, found)
    ended = _score(totals.masked_fill(~ends, -torch.inf), beams, settings)
    scores, _ = torch.cat([beams.scores, ended], dim=1).topk(settings.n_best, dim=1)
    return replace(beams, finished=beams.finished + ends.sum(dim=1), scores=scores)


def _score(totals: Float[Tensor, "*any"], beams: _Beams, settings: _Settings) -> Float[Tensor, "*any"]:
    """The scores of hypotheses that end with the symbol just chosen."""
    length = beams.history.shape[2]  # begin is in the history, the symbol just chosen is not
    return totals / float(length**settings.alpha)


def _continue(candidates: _Candidates, settings: _Settings) -> _Candidates:
    """The best K candidates that do not end; where there are fewer, the rest are dead."""
    ends = candidates.tokens == settings.end
    order = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, : settings.beam]
    return _Candidates(
        totals=candidates.totals.masked_fill(ends, -torch.inf).gather(1, order),
        parents=candidates.parents.gather(1, order),
        tokens=candidates.tokens.gather(1, order),
    )


def _retire(
    beams: _Beams,
    going: _Candidates,
    settings: _Settings,
    found: list[list[Hypothesis]],
) -> Int[Tensor, " staying"]:
    """The sentences that stay; of those that their limit cuts, keep what is unfinished where it is needed."""
    alive = going.totals > -torch.inf
    cut = beams.limits == beams.history.shape[2]  # begin is in the history, the symbol just chosen is not
    _collect(beams, going, alive & (cut & (beams.finished < settings.n_best))[:, None], settings, found)
    beaten = beams.scores[:, -1] >= _score(going.totals[:, 0], beams, settings)
    done = cut | ((beams.finished >= settings.beam) & beaten) | ~alive.any(dim=1)
    return (~done).nonzero().squeeze(1)


def _collect(
    beams: _Beams,
    candidates: _Candidates,
    wanted: Bool[Tensor, "sentences considered"],
    settings: _Settings,
    found: list[list[Hypothesis]],
) -> None:
    """Turn the wanted ones among the first candidates into hypotheses and file them under their sentences."""
    if not wanted.any():
        return
    place, rank = wanted.nonzero(as_tuple=True)
    history = beams.history[place, candidates.parents[place, rank], 1:]
    sequences = torch.cat([history, candidates.tokens[place, rank, None]], dim=1).tolist()
    totals = candidates.totals[place, rank].tolist()
    for sentence, sequence, total in zip(beams.sentences[place].tolist(), sequences, totals, strict=True):
        found[sentence].append(make_hypothesis(sequence, total, end=settings.end, alpha=settings.alpha))


def _follow(state: S, beams: _Beams, going: _Candidates, staying: Int[Tensor, " staying"]) -> S:
    """The state of the hypotheses that go on, left alone where those are the ones it has."""
    width = beams.totals.shape[1]
    rows = (staying[:, None] * width + going.parents[staying]).flatten()
    unchanged = torch.arange(beams.totals.numel(), device=rows.device)
    return state if torch.equal(rows, unchanged) else state.select(rows)


def _advance(
    beams: _Beams,
    going: _Candidates,
    staying: Int[Tensor, " staying"],
) -> _Beams:
    """The sentences that stay, with the hypotheses that go on."""
    history = beams.history[staying[:, None], going.parents[staying]]
    return _Beams(
        sentences=beams.sentences[staying],
        limits=beams.limits[staying],
        minimums=beams.minimums[staying],
        finished=beams.finished[staying],
        scores=beams.scores[staying],
        totals=going.totals[staying],
        history=torch.cat([history, going.tokens[staying, :, None]], dim=2),
    )


def _rank(hypotheses: list[Hypothesis], settings: _Settings) -> list[Hypothesis]:
    """The best of one sentence, best first."""
    if not hypotheses:
        make_hypothesis([settings.end], -torch.inf, end=settings.end, alpha=settings.alpha)
    ordered = sorted(hypotheses, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
    return ordered[: settings.n_best]
