"""Beam search, and the loop that all beam searches share.

A step extends the K hypotheses of each sentence by every symbol and considers the 2K most probable results. Of those,
the ones that end and are among the first K are *finished* and never extended again; the best K that do not end stay
*live*. (At most K of the 2K can end, one for each hypothesis, so K others always exist.) A sentence leaves the batch
when its stopping rule says so (`ranking.py`; usually when no live hypothesis can still be among the n best), when it
reaches its length limit, or when no hypothesis is live. Finished hypotheses are ranked by score (`search.py`).

Which hypotheses survive is decided by log-probability alone: all candidates of a step have the same length. Sums are
kept in single precision at least; rounding preserves the order within a row. So a beam of 1 that stops at its first end
is exactly greedy search.

Beam searches differ only in which extensions they take, which is their `Choice` (`_MostProbable` here, others in
`diverse.py` and `lexical.py`). A *party* is what competes for K places: the hypotheses of a sentence, or of one of its
groups (`diverse.py`). The parties of a sentence stand together and stay until all of them are done.

Nothing is forced at the length limit: a hypothesis without an end symbol is returned as it is with ``finished=False``,
after the finished ones and only where those are too few. So no output is cut without the caller knowing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from multihead.decoding.candidates import Candidates, extend, part
from multihead.decoding.hypothesis import Hypothesis, make_hypothesis, refuse_nan
from multihead.decoding.ranking import Coverage, Progress, stopping_rule
from multihead.decoding.restrictions import Rows, restrict
from multihead.decoding.search import Search
from multihead.decoding.stepper import Attending, S, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError


def beam_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    task: SearchTask,
    search: Search | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence: finished ones before unfinished ones, then by score.

    They are distinct as sequences of symbols. A sentence has fewer where fewer are possible within its limit. With the
    exact stopping rule, the only hypothesis of ``n_best=1`` is the first one of a larger ``n_best``.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: number of real symbols of each source.
        task: the model's symbols, lengths, restrictions and ``n_best``.
        search: how to search; a beam of 5 by default.

    Example:
        ``beam_search(model, source, lengths, SearchTask(symbols, max_lengths=30), Search(beam=4))``

    Raises:
        ShapeError, ConfigurationError: lengths or restrictions do not fit the batch or leave no room for the end
            symbol; ``n_best`` exceeds the beam; coverage with a model that does not attend.
        MultiheadError: the model gave NaN, or a sentence has no permitted continuation.
    """
    search = search or Search()
    return search_beams(stepper, source, lengths, task, search, _MostProbable(search.beam, task.symbols.end))


@dataclass(frozen=True)
class Beams:
    """The parties still in the search, each with the same number of hypotheses: 1 at the start, then always K.

    A hypothesis with the total -inf is dead: it only fills a place.
    """

    numbers: Int[Tensor, " parties"]
    """Sentence * parties per sentence + party: the place of the results."""
    limits: Int[Tensor, " parties"]
    minimums: Int[Tensor, " parties"]
    finished: Int[Tensor, " parties"]
    """Number of finished hypotheses."""
    scores: Float[Tensor, "parties n_best"]
    """Scores of the best finished hypotheses, best first."""
    totals: Float[Tensor, "parties beam"]
    """log p(y_1 ... y_t | x)."""
    history: Int[Tensor, "parties beam time"]
    """begin, y_1 ... y_t."""
    marks: Int[Tensor, "parties beam"] | None = None
    """A number that the choice keeps for each hypothesis."""
    coverage: Coverage | None = None
    """Attention to the source, including the current step."""

    @property
    def length(self) -> int:
        """Number of symbols of the hypotheses after this step; begin is in the history and does not count."""
        return self.history.shape[2]


@runtime_checkable
class Choice(Protocol):
    """Decides which extensions end and which stay live."""

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        """The candidates that end here, and the K of each party that stay live; dead ones fill up.

        Args:
            beams: the hypotheses to extend.
            permitted: log-probabilities of their next symbols; rows are hypotheses, party by party.
        """


@dataclass(frozen=True)
class _MostProbable:
    """Plain beam search: the most probable extensions."""

    beam: int
    end: int

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        return part(extend(beams.totals, permitted, 2 * self.beam, self.end), self.beam, self.end)


@torch.no_grad()
def search_beams(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    task: SearchTask,
    search: Search,
    choice: Choice,
    parties: int = 1,
    marks: Int[Tensor, " batch"] | None = None,
) -> list[list[Hypothesis]]:
    """The n best of each party, party by party.

    Args:
        stepper, source, lengths: as `beam_search` has them.
        task: ``n_best`` is the number per party.
        search: ``beam`` is the number of hypotheses per party.
        choice: which extensions are taken.
        parties: parties per sentence.
        marks: marks of the empty hypotheses, one per sentence.
    """
    task.check_n_best(search)
    if search.coverage and not isinstance(stepper, Attending):
        raise ConfigurationError(
            f"coverage needs a model that says what it looks at (step_attending), and a {type(stepper).__name__} does "
            "not: leave coverage at 0"
        )
    limits, minimums = task.lengths(search, lengths, source.device)
    loop = _Loop(task, search, parties, limits, minimums)
    beams = loop.begin(limits, minimums, marks)
    if search.coverage:
        beams = replace(beams, coverage=Coverage.begin(search.coverage, lengths, source.shape[1], parties))
    state = stepper.start(source, lengths) if len(limits) else None
    while state is not None:
        # Before the first step the parties of a sentence are equal and share one row of the model.
        shared = parties if beams.length == 1 else 1
        tokens = beams.history[::shared, :, -1].flatten()
        log_probabilities, state, beams = _step(stepper, tokens, state, beams, shared)
        log_probabilities = log_probabilities.repeat_interleave(shared, dim=0) if shared > 1 else log_probabilities
        permitted = loop.permit(log_probabilities, beams)
        ending, going = choice.choose(beams, permitted)
        refuse_nan(float(going.totals.sum() + ending.totals.sum()))
        beams = loop.finish(beams, ending)
        staying = loop.retire(beams, going)
        if task.recorder is not None:
            task.recorder.note(beams.numbers, beams.totals, permitted, ending, going, staying, loop.found)
        state = _select_rows(state, beams, going, staying, shared) if len(staying) else None
        beams = _advance(beams, going, staying)
    return [loop.ranked(hypotheses) for hypotheses in loop.found]


class _Loop:
    """What stays the same during a search, and the hypotheses that it has found."""

    def __init__(
        self,
        task: SearchTask,
        search: Search,
        parties: int,
        limits: Int[Tensor, " batch"],
        minimums: Int[Tensor, " batch"],
    ) -> None:
        self._task, self._search, self._parties = task, search, parties
        self._end = task.symbols.end
        self._restrictions = task.effective_restrictions(search)
        self._stop = task.stop or stopping_rule(search)
        self._divisors = task.divisors(search, max(limits.tolist(), default=0), limits.device)
        self._longest_minimum = max(minimums.tolist(), default=0)
        self._forbidden = torch.tensor(task.symbols.forbidden, dtype=torch.long, device=limits.device)
        self.found: list[list[Hypothesis]] = [[] for _ in range(len(limits) * parties)]

    def begin(
        self, limits: Int[Tensor, " batch"], minimums: Int[Tensor, " batch"], marks: Int[Tensor, " batch"] | None
    ) -> Beams:
        """Each party with one hypothesis, which holds the begin symbol."""
        numbers = torch.arange(len(limits) * self._parties, device=limits.device)
        scores = torch.full(
            (len(numbers), self._task.n_best), -torch.inf, dtype=self._divisors.dtype, device=limits.device
        )
        return Beams(
            numbers=numbers,
            limits=limits.repeat_interleave(self._parties),
            minimums=minimums.repeat_interleave(self._parties),
            finished=torch.zeros_like(numbers),
            scores=scores,
            totals=torch.zeros(len(numbers), 1, device=limits.device),
            history=torch.full_like(numbers, self._task.symbols.begin)[:, None, None],
            marks=None if marks is None else marks.repeat_interleave(self._parties)[:, None],
        )

    def permit(self, log_probabilities: Float[Tensor, "rows vocab"], beams: Beams) -> Float[Tensor, "rows vocab"]:
        """The log-probabilities of the permitted symbols, -inf for all others."""
        parties, width = beams.totals.shape
        permitted = log_probabilities.index_fill(1, self._forbidden, -torch.inf)
        if beams.length <= self._longest_minimum:  # later the end is forbidden nowhere
            permitted.view(parties, width, -1)[beams.minimums >= beams.length, :, self._end] = -torch.inf
        if self._restrictions:
            sentences = (beams.numbers // self._parties).repeat_interleave(width)
            rows = Rows(beams.history[:, :, 1:].flatten(0, 1), sentences, log_probabilities)
            permitted = restrict(permitted, rows, self._restrictions)
        return permitted

    def finish(self, beams: Beams, ending: Candidates) -> Beams:
        """File the candidates that end; count them and keep the best scores."""
        ends = ending.totals > -torch.inf
        self._collect(beams, ending, ends)
        scores, _ = torch.cat([beams.scores, self._scores(beams, ending)], dim=1).topk(self._task.n_best, dim=1)
        return replace(beams, finished=beams.finished + ends.sum(dim=1), scores=scores)

    def retire(self, beams: Beams, going: Candidates) -> Int[Tensor, " staying"]:
        """The parties that stay. Where a limit cuts a party with too few finished hypotheses, file unfinished ones."""
        alive = going.totals > -torch.inf
        cut = beams.limits == beams.length
        self._collect(beams, going, alive & (cut & (beams.finished < self._task.n_best))[:, None])
        progress = Progress(
            beam=self._search.beam,
            length=beams.length,
            limits=beams.limits,
            finished=beams.finished,
            settled=beams.scores[:, -1],
            leading=going.totals.amax(dim=1).to(self._divisors.dtype),
            now=self._scores(beams, going).amax(dim=1),
            divisors=self._divisors,
        )
        done = cut | self._stop.done(progress) | ~alive.any(dim=1)
        if self._parties > 1:  # the parties of a sentence leave together
            done = done.view(-1, self._parties).all(dim=1).repeat_interleave(self._parties)
        return (~done).nonzero().squeeze(1)

    def ranked(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The n best of one party, best first."""
        if not hypotheses:
            self._make([self._end], -torch.inf)  # raises the error
        ordered = sorted(hypotheses, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
        return ordered[: self._task.n_best]

    def _scores(self, beams: Beams, candidates: Candidates) -> Float[Tensor, "parties candidates"]:
        """Scores of the candidates if they end here."""
        scores = candidates.totals.to(self._divisors.dtype) / self._divisors[beams.length]
        return scores if beams.coverage is None else scores + beams.coverage.score.gather(1, candidates.parents)

    def _collect(self, beams: Beams, candidates: Candidates, wanted: Bool[Tensor, "parties candidates"]) -> None:
        """Turn the wanted candidates into hypotheses and file them under their parties."""
        if not wanted.any():
            return
        place, rank = wanted.nonzero(as_tuple=True)
        history = beams.history[place, candidates.parents[place, rank], 1:]
        sequences = torch.cat([history, candidates.tokens[place, rank, None]], dim=1).tolist()
        totals = candidates.totals[place, rank].tolist()
        made = [self._make(sequence, total) for sequence, total in zip(sequences, totals, strict=True)]
        if beams.coverage is not None:
            covered = beams.coverage.score[place, candidates.parents[place, rank]].tolist()
            made = [replace(one, score=one.score + more) for one, more in zip(made, covered, strict=True)]
        for number, hypothesis in zip(beams.numbers[place].tolist(), made, strict=True):
            self.found[number].append(hypothesis)

    def _make(self, sequence: list[int], total: float) -> Hypothesis:
        penalty = self._task.penalty or self._search.penalty
        return make_hypothesis(sequence, total, end=self._end, alpha=self._search.alpha, penalty=penalty)


def _step(
    stepper: Stepper[S], tokens: Int[Tensor, " rows"], state: S, beams: Beams, shared: int
) -> tuple[Float[Tensor, "rows vocab"], S, Beams]:
    """Step the model, and update the coverage if there is one. ``shared``: parties per row."""
    if beams.coverage is None:
        return *stepper.step(tokens, state), beams
    assert isinstance(stepper, Attending)
    log_probabilities, attention, state = stepper.step_attending(tokens, state)
    coverage = beams.coverage.grow(attention.repeat_interleave(shared, dim=0))
    return log_probabilities, state, replace(beams, coverage=coverage)


def _select_rows(state: S, beams: Beams, going: Candidates, staying: Int[Tensor, " staying"], shared: int) -> S:
    """The state of the live hypotheses; the same object if its rows do not change."""
    width = beams.totals.shape[1]
    rows = (staying[:, None] * width + going.parents[staying]).flatten() // shared
    unchanged = torch.arange(beams.totals.numel() // shared, device=rows.device)
    return state if torch.equal(rows, unchanged) else state.select(rows)


def _advance(beams: Beams, going: Candidates, staying: Int[Tensor, " staying"]) -> Beams:
    """The parties that stay, with their live hypotheses one symbol longer."""
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
        coverage=None if beams.coverage is None else beams.coverage.select(staying, going.parents[staying]),
    )
