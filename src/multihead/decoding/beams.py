"""What all beam searches have in common: hypotheses are extended, some end, some go on, a sentence leaves when done.

They differ in which extensions they take: that is their `Choice` (`beam.py`, `diverse.py`, `lexical.py`). Here is the
rest: stepping the model, keeping its rows in order, collecting what is finished, stopping.

A *party* is what competes for K places: the hypotheses of a sentence, or of one of its groups, where it has several
(`diverse.py`). The parties of a sentence stand together, and stay until all of them are done.

At the limit nothing is forced: a hypothesis without an end symbol is handed back as it is and says
``finished=False``, after the finished ones and only where those are too few, so that no output is cut without
the caller knowing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from multihead.decoding import coverage
from multihead.decoding.candidates import Candidates
from multihead.decoding.coverage import Coverage
from multihead.decoding.hypothesis import (
    Hypothesis,
    Limits,
    limit_tensor,
    make_hypothesis,
    minimum_tensor,
    refuse_nan,
)
from multihead.decoding.length_penalty import LengthPenalty, divisors, power
from multihead.decoding.recording import Recorder
from multihead.decoding.restrictions import Restriction, Rows, restrict
from multihead.decoding.stepper import Attending, S, Stepper, Symbols
from multihead.decoding.stopping import Exact, Standing, Stop
from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class Settings:
    """What stays the same during one search."""

    symbols: Symbols
    beam: int
    """K, the hypotheses of a party that go on after each step."""
    n_best: int = 1
    """How many of a party are handed back."""
    alpha: float = 1.0
    penalty: LengthPenalty = power
    stop: Stop = field(default_factory=Exact)
    restrictions: Sequence[Restriction] = ()
    parties: int = 1
    """Of each sentence."""
    coverage: float = 0.0
    """beta of `coverage.py`; 0: nobody asks what the model looks at."""
    recorder: Recorder | None = None
    """Writes down what happens; None: nobody does, and it costs nothing."""


@dataclass(frozen=True)
class Beams:
    """The parties still in the search, all with as many hypotheses: 1 at the start, then always K.

    A hypothesis with the total -inf is dead: it fills a place.
    """

    numbers: Int[Tensor, " parties"]
    """Sentence * parties + party: where what is found is filed."""
    limits: Int[Tensor, " parties"]
    minimums: Int[Tensor, " parties"]
    finished: Int[Tensor, " parties"]
    """How many hypotheses of each are finished."""
    scores: Float[Tensor, "parties n_best"]
    """Of the best finished ones, best first."""
    totals: Float[Tensor, "parties beam"]
    """log p(y_1 ... y_t | x)."""
    history: Int[Tensor, "parties beam time"]
    """begin, y_1 ... y_t."""
    marks: Int[Tensor, "parties beam"] | None = None
    """What a choice notes of each hypothesis."""
    coverage: Coverage | None = None
    """What each has looked at, the step under way included."""

    @property
    def length(self) -> int:
        """Of the hypotheses when they are extended by one more symbol; begin is in the history and does not count."""
        return self.history.shape[2]


@runtime_checkable
class Choice(Protocol):
    """Which extensions end, and which go on."""

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        """Those that end here, and the K of each party that go on; dead ones fill up.

        Args:
            beams: the hypotheses to extend.
            permitted: log-probabilities of their next symbols, party by party.
        """


@torch.no_grad()
def search_beams(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    max_lengths: Limits,
    min_lengths: Limits,
    settings: Settings,
    choice: Choice,
    marks: Int[Tensor, " sentences"] | None = None,
) -> list[list[Hypothesis]]:
    """The n best of each party, party by party; ``marks``: what the choice notes of the empty hypotheses.

    Raises:
        ShapeError, ConfigurationError: limits or restrictions that do not fit the batch, settings outside their range.
        MultiheadError: the model gave NaN, or a sentence has nothing that is permitted.
    """
    check(settings, stepper)
    limits = limit_tensor(max_lengths, source.shape[0], source.device)
    minimums = minimum_tensor(min_lengths, limits)
    for restriction in settings.restrictions:
        restriction.check(limits, settings.symbols)
    longest, least = max(limits.tolist(), default=0), max(minimums.tolist(), default=0)
    table = divisors(settings.penalty, settings.alpha, longest, source.device)
    forbidden = torch.tensor(settings.symbols.forbidden, dtype=torch.long, device=source.device)
    beams = _begin(limits, minimums, marks, settings)
    if settings.coverage:
        covered = coverage.begin(settings.coverage, lengths, source.shape[1], settings.parties)
        beams = replace(beams, coverage=covered)
    found: list[list[Hypothesis]] = [[] for _ in range(len(beams.numbers))]
    state = stepper.start(source, lengths) if found else None
    while state is not None:
        # At first the parties of a sentence are one row.
        shared = settings.parties if beams.length == 1 else 1
        tokens = beams.history[::shared, :, -1].flatten()
        log_probabilities, state, beams = _step(stepper, tokens, state, beams, shared)
        log_probabilities = log_probabilities.repeat_interleave(shared, dim=0) if shared > 1 else log_probabilities
        permitted = _permit(log_probabilities, beams, forbidden, least, settings)
        ending, going = choice.choose(beams, permitted)
        refuse_nan(float(going.totals.sum() + ending.totals.sum()))
        beams = _finish(beams, ending, table, settings, found)
        staying = _retire(beams, going, table, settings, found)
        if settings.recorder is not None:
            settings.recorder.note(beams.numbers, beams.totals, permitted, ending, going, staying, found)
        state = _follow(state, beams, going, staying, shared) if len(staying) else None
        beams = _advance(beams, going, staying)
    return [_rank(hypotheses, settings) for hypotheses in found]


def check(settings: Settings, stepper: Stepper[Any] | None = None) -> None:
    """Refuse settings outside their ranges, or that ask for more than the model can."""
    coverage.check(settings.coverage)
    if settings.coverage and stepper is not None and not isinstance(stepper, Attending):
        raise ConfigurationError(
            f"coverage needs a model that says what it looks at (step_attending), and a {type(stepper).__name__} does "
            "not: leave coverage at 0"
        )
    if settings.beam < 1:
        raise ConfigurationError(f"beam must be at least 1, got {settings.beam}")
    if not 1 <= settings.n_best <= settings.beam:
        raise ConfigurationError(
            f"n_best must be from 1 to the beam of {settings.beam}, got {settings.n_best}: widen the beam or ask for "
            "fewer"
        )


def _begin(
    limits: Int[Tensor, " sentences"],
    minimums: Int[Tensor, " sentences"],
    marks: Int[Tensor, " sentences"] | None,
    settings: Settings,
) -> Beams:
    """Each party with one hypothesis, which holds the begin symbol."""
    parties = settings.parties
    numbers = torch.arange(len(limits) * parties, device=limits.device)
    return Beams(
        numbers=numbers,
        limits=limits.repeat_interleave(parties),
        minimums=minimums.repeat_interleave(parties),
        finished=torch.zeros_like(numbers),
        scores=torch.full((len(numbers), settings.n_best), -torch.inf, dtype=torch.float64, device=limits.device),
        totals=torch.zeros(len(numbers), 1, device=limits.device),
        history=torch.full_like(numbers, settings.symbols.begin)[:, None, None],
        marks=None if marks is None else marks.repeat_interleave(parties)[:, None],
    )


def _step(
    stepper: Stepper[S], tokens: Int[Tensor, " rows"], state: S, beams: Beams, shared: int
) -> tuple[Float[Tensor, "rows vocab"], S, Beams]:
    """The model's step; what it looked at is noted where somebody asks. ``shared``: parties a row."""
    if beams.coverage is None:
        return *stepper.step(tokens, state), beams
    assert isinstance(stepper, Attending)
    log_probabilities, attention, state = stepper.step_attending(tokens, state)
    covered = beams.coverage.grow(attention.repeat_interleave(shared, dim=0))
    return log_probabilities, state, replace(beams, coverage=covered)


def _permit(
    log_probabilities: Float[Tensor, "rows vocab"],
    beams: Beams,
    forbidden: Int[Tensor, " forbidden"],
    least: int,
    settings: Settings,
) -> Float[Tensor, "rows vocab"]:
    """What each hypothesis may go on with; ``least``: after so many symbols no sentence's end is forbidden."""
    parties, width = beams.totals.shape
    permitted = log_probabilities.index_fill(1, forbidden, -torch.inf)
    if beams.length <= least:
        permitted.view(parties, width, -1)[beams.minimums >= beams.length, :, settings.symbols.end] = -torch.inf
    if settings.restrictions:
        sentences = (beams.numbers // settings.parties).repeat_interleave(width)
        rows = Rows(beams.history[:, :, 1:].flatten(0, 1), sentences, log_probabilities)
        permitted = restrict(permitted, rows, settings.restrictions)
    return permitted


def _finish(
    beams: Beams,
    ending: Candidates,
    table: Float[Tensor, " lengths"],
    settings: Settings,
    found: list[list[Hypothesis]],
) -> Beams:
    """Keep the candidates that end; count them and note the best scores."""
    ends = ending.totals > -torch.inf
    _collect(beams, ending, ends, settings, found)
    ended = _scores(beams, ending, table)
    scores, _ = torch.cat([beams.scores, ended], dim=1).topk(settings.n_best, dim=1)
    return replace(beams, finished=beams.finished + ends.sum(dim=1), scores=scores)


def _scores(
    beams: Beams, candidates: Candidates, table: Float[Tensor, " lengths"]
) -> Float[Tensor, "parties candidates"]:
    """Of the candidates, if they end here."""
    scores = candidates.totals.double() / table[beams.length]
    return scores if beams.coverage is None else scores + beams.coverage.score.gather(1, candidates.parents)


def _retire(
    beams: Beams,
    going: Candidates,
    table: Float[Tensor, " lengths"],
    settings: Settings,
    found: list[list[Hypothesis]],
) -> Int[Tensor, " staying"]:
    """The parties that stay; of those that their limit cuts, keep what is unfinished where it is needed."""
    alive = going.totals > -torch.inf
    cut = beams.limits == beams.length
    _collect(beams, going, alive & (cut & (beams.finished < settings.n_best))[:, None], settings, found)
    standing = Standing(
        beam=settings.beam,
        length=beams.length,
        limits=beams.limits,
        finished=beams.finished,
        settled=beams.scores[:, -1],
        leading=going.totals.amax(dim=1).double(),
        now=_scores(beams, going, table).amax(dim=1),
        divisors=table,
    )
    done = cut | settings.stop.done(standing) | ~alive.any(dim=1)
    if settings.parties > 1:
        done = done.view(-1, settings.parties).all(dim=1).repeat_interleave(settings.parties)
    return (~done).nonzero().squeeze(1)


def _collect(
    beams: Beams,
    candidates: Candidates,
    wanted: Bool[Tensor, "parties considered"],
    settings: Settings,
    found: list[list[Hypothesis]],
) -> None:
    """Turn the wanted ones among the candidates into hypotheses and file them under their parties."""
    if not wanted.any():
        return
    place, rank = wanted.nonzero(as_tuple=True)
    history = beams.history[place, candidates.parents[place, rank], 1:]
    sequences = torch.cat([history, candidates.tokens[place, rank, None]], dim=1).tolist()
    totals = candidates.totals[place, rank].tolist()
    made = [_make(sequence, total, settings) for sequence, total in zip(sequences, totals, strict=True)]
    if beams.coverage is not None:
        covered = beams.coverage.score[place, candidates.parents[place, rank]].tolist()
        made = [replace(one, score=one.score + more) for one, more in zip(made, covered, strict=True)]
    for number, hypothesis in zip(beams.numbers[place].tolist(), made, strict=True):
        found[number].append(hypothesis)


def _make(sequence: list[int], total: float, settings: Settings) -> Hypothesis:
    return make_hypothesis(sequence, total, end=settings.symbols.end, alpha=settings.alpha, penalty=settings.penalty)


def _follow(state: S, beams: Beams, going: Candidates, staying: Int[Tensor, " staying"], shared: int) -> S:
    """The state of the hypotheses that go on, left alone where those are the ones it has."""
    width = beams.totals.shape[1]
    rows = (staying[:, None] * width + going.parents[staying]).flatten() // shared
    unchanged = torch.arange(beams.totals.numel() // shared, device=rows.device)
    return state if torch.equal(rows, unchanged) else state.select(rows)


def _advance(beams: Beams, going: Candidates, staying: Int[Tensor, " staying"]) -> Beams:
    """The parties that stay, with the hypotheses that go on."""
    history = beams.history[staying[:, None], going.parents[staying]]
    return Beams(
        numbers=beams.numbers[staying],
        limits=beams.limits[staying],
        minimums=beams.minimums[staying],
        finished=beams.finished[staying],
        scores=beams.scores[staying],
        totals=going.totals[staying],
        history=torch.cat([history, going.tokens[staying, :, None]], dim=2),
        marks=None if going.marks is None else going.marks[staying],
        coverage=None if beams.coverage is None else beams.coverage.follow(staying, going.parents[staying]),
    )


def _rank(hypotheses: list[Hypothesis], settings: Settings) -> list[Hypothesis]:
    """The best of one party, best first."""
    if not hypotheses:
        _make([settings.symbols.end], -torch.inf, settings)
    ordered = sorted(hypotheses, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
    return ordered[: settings.n_best]
