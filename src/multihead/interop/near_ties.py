"""Near ties: decisions of a search that rounding alone can turn.

Two programs that run the same model give each token log-probabilities that differ by at most delta, which a
certificate measures. After n tokens, the log-probabilities of two hypotheses differ by at most n delta each, so a
decision of the search at step n can only turn out differently if its margin is at most

    2 n delta        for greedy search 2 delta, because it compares single tokens

If every decision of our search has a larger margin, both programs must find the same translation, by induction over the
steps. So a different translation without such a near tie is an error of one of the programs, never rounding. The
decisions of a beam search with K hypotheses are:

    live        the K most probable extensions that do not end stay; the next one is pruned
    ends        an extension that ends is finished if it is among the K most probable ones
    stop        the stopping rule compares finished hypotheses with live ones
    rank        the best score of a finished hypothesis; the margin of scores is compared with the sum of
                n delta / penalty(n) of both
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.candidates import Candidates
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.ranking import Ahead, Patience, Progress, Stop, stopping_rule
from multihead.decoding.recording import Recorder
from multihead.decoding.scoring import force
from multihead.decoding.search import Search
from multihead.decoding.stepper import Stepper
from multihead.decoding.task import SearchTask


@dataclass(frozen=True)
class Decision:
    """A decision of a search, and how far it is from turning out differently."""

    kind: Literal["token", "live", "ends", "stop", "rank"]
    step: int
    """Number of tokens of the hypotheses, counted from 1."""
    margin: float
    slack: float
    """The margin, in units of delta, up to which the decision is a near tie."""

    def is_near_tie(self, delta: float) -> bool:
        """Whether rounding of at most ``delta`` for each token can turn it."""
        return self.margin <= self.slack * delta

    def explain(self, delta: float) -> str:
        """One line for the certificate."""
        what = {
            "token": "two tokens",
            "live": "the last live hypothesis and the first pruned one",
            "ends": "a hypothesis that ends and the end of the beam",
            "stop": "the two sides of the stopping rule",
            "rank": "the two best scores",
        }[self.kind]
        return f"near tie at token {self.step}: {what} differ by {self.margin:.2g}, at most {self.slack * delta:.2g}"


def closest_decision(
    model: Stepper[Any], source: Sequence[int], task: SearchTask, search: Search, pad: int
) -> Decision:
    """The decision of our beam search for one sentence that is closest to turning out differently.

    Args:
        model: our model.
        source: ids with the end symbol.
        task: of the search.
        search: its settings, with a beam of at least 2.
        pad: the id of padding.
    """
    recorder = _Margins(task.symbols)
    stop = _WatchedStop(task.stop or stopping_rule(search), recorder.decisions)
    tensors = collate_source([list(source[:-1])], pad, source[-1])
    beam_search(model, *tensors, replace(task, recorder=recorder, stop=stop), search)
    divisors = task.divisors(search, 1 + max(len(one.tokens) for one in recorder.hypotheses))
    recorder.decisions += _ranking(recorder.hypotheses, divisors)
    return min(recorder.decisions, key=lambda decision: decision.margin / max(decision.slack, 1e-30))


def token_decision(
    model: Stepper[Any], source: Sequence[int], ours: Sequence[int], theirs: Sequence[int], task: SearchTask, pad: int
) -> Decision:
    """The greedy decision at the first token in which two translations of a source differ.

    Args:
        model: our model.
        source: ids with the end symbol.
        ours, theirs: two translations, of which neither is the beginning of the other, with end symbols.
        task: of the search.
        pad: the id of padding.
    """
    place = next(i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
    targets = [[*ours[: place + 1]], [*ours[:place], theirs[place]]]
    tensors = collate_source([list(source[:-1])] * 2, pad, source[-1])
    chosen, rejected = (row[place] for row in force(model, *tensors, targets, task.symbols))
    return Decision("token", place + 1, abs(chosen - rejected), 2.0)


@dataclass
class _Margins(Recorder):
    """Notes the closest decision of each step of one sentence."""

    decisions: list[Decision] = field(default_factory=list)
    hypotheses: Sequence[Hypothesis] = ()
    """All that the search found for the sentence."""
    steps: int = 0

    def note(
        self,
        numbers: Int[Tensor, " parties"],  # noqa: ARG002
        totals: Float[Tensor, "parties beam"],
        permitted: Float[Tensor, "rows vocab"],
        ending: Candidates,  # noqa: ARG002
        going: Candidates,
        staying: Int[Tensor, " staying"],  # noqa: ARG002
        found: Sequence[Sequence[Hypothesis]],
    ) -> None:
        self.hypotheses, self.steps = found[0], self.steps + 1
        beam, step = going.totals.shape[1], self.steps
        sums = totals[0, :, None].double() + permitted.double()
        ends = torch.zeros_like(sums, dtype=torch.bool)
        ends[:, self.symbols.end] = True
        others = sums[~ends].sort(descending=True).values
        if len(others) > beam and others[beam] > -torch.inf:
            self._add("live", step, others[beam - 1] - others[beam])
        ranked = sums.flatten().sort(descending=True).values
        if len(ranked) > beam and ranked[beam] > -torch.inf:
            for value in sums[ends][sums[ends] > -torch.inf]:
                inside = value >= ranked[beam - 1]
                self._add("ends", step, value - ranked[beam] if inside else ranked[beam - 1] - value)

    def _add(self, kind: Literal["live", "ends"], step: int, margin: Tensor) -> None:
        self.decisions.append(Decision(kind, step, float(margin), 2.0 * step))


@dataclass(frozen=True)
class _WatchedStop(Stop):
    """A stopping rule whose margins are noted."""

    rule: Stop
    decisions: list[Decision]

    def done(self, progress: Progress) -> Bool[Tensor, " parties"]:
        """As the rule."""
        settled, length = float(progress.settled[0]), progress.length
        if isinstance(self.rule, Ahead):
            compared = float(progress.now[0])
        else:
            compared = float(progress.leading[0] / progress.divisors[progress.limits[0]])
        if not isinstance(self.rule, Patience) and min(settled, compared) > -torch.inf:
            lengths = torch.arange(1, length + 1, device=progress.divisors.device)
            slack = float(2 * (lengths / progress.divisors[1 : length + 1]).max())
            self.decisions.append(Decision("stop", length, abs(settled - compared), slack))
        return self.rule.done(progress)


def _ranking(found: Sequence[Hypothesis], divisors: Tensor) -> list[Decision]:
    """The decision between the best hypothesis and each other one."""
    ranked = sorted(found, key=lambda one: -one.score)
    first, steps = ranked[0], [len(one.tokens) + one.finished for one in ranked]
    per_token = [n / float(divisors[n]) for n in steps]
    return [
        Decision("rank", steps[0], first.score - other.score, per_token[0] + more)
        for other, more in zip(ranked[1:], per_token[1:], strict=True)
    ]
