"""Diverse beam search: groups that avoid each other's symbols.

(Vijayakumar et al. 2018, "Diverse beam search for improved description of complex scenes", algorithm 1 and equation 2,
with Hamming diversity.) The K hypotheses of a sentence are G groups of K / G. Within a step the groups choose one after
the other, each as in `beam.py`, but by

    log p(y_1 ... y_t | x) - strength * (how often the earlier groups have chosen the symbol y_t in this step).

The cost of earlier steps is forgotten: only probabilities are summed, so that log-probabilities, scores and stopping
are those of any other beam search. With one group, or a strength of 0, it is beam search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, zip_longest

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from multihead.decoding.beam import Beams, search_beams
from multihead.decoding.candidates import Candidates, extend, part
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.decoding.stepper import S, Stepper
from multihead.decoding.task import SearchTask


def diverse_beam_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    task: SearchTask,
    search: Search,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence: the best one of every group, then the second ones, and so on.

    Those of one rank are ordered by finished and score. What several groups found is returned once, and the next ones
    take its place: there are fewer than ``n_best`` only where all groups together have fewer.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: number of real symbols of each source.
        task: as `beam_search` has it; a sentence is done when all its groups are.
        search: ``beam`` is K, over all groups; ``groups`` is G, which divides K; ``diversity`` is the strength, the
            cost of a symbol for each time that an earlier group chose it. The paper finds 0.2 to 0.8.

    Raises:
        ShapeError, ConfigurationError, MultiheadError: as `beam_search`.
    """
    task.check_n_best(search)
    groups, strength = search.groups, search.diversity
    per_group = search.model_copy(update={"beam": search.beam // groups, "groups": 1})
    choice = _GroupByGroup(per_group.beam, groups, strength, task.symbols.end)
    own = replace(task, n_best=min(task.n_best, per_group.beam))  # groups that agree would leave too few otherwise
    found = search_beams(stepper, source, lengths, own, per_group, choice, parties=groups)
    return [_interleave(found[first : first + groups])[: task.n_best] for first in range(0, len(found), groups)]


@dataclass(frozen=True)
class _GroupByGroup:
    """The extensions of each group, chosen after those of the earlier groups."""

    beam: int
    groups: int
    strength: float
    end: int

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        width, vocabulary = beams.totals.shape[1], permitted.shape[1]
        totals = beams.totals.view(-1, self.groups, width)
        rows = permitted.view(-1, self.groups, width, vocabulary)
        chosen = permitted.new_zeros(len(totals), vocabulary)
        choices = []
        for group in range(self.groups):
            own = rows[:, group]
            cost = self.strength * chosen[:, None]
            costly = extend(totals[:, group], (own - cost).flatten(0, 1), 2 * self.beam, self.end)
            gains = own.flatten(1).gather(1, costly.parents * vocabulary + costly.tokens)
            sums = totals[:, group].gather(1, costly.parents) + gains
            dead = costly.totals == -torch.inf
            choice = part(
                Candidates(sums.masked_fill(dead, -torch.inf), costly.parents, costly.tokens), self.beam, self.end
            )
            for each in choice:
                chosen = chosen.scatter_add(1, each.tokens, (each.totals > -torch.inf).to(chosen.dtype))
            choices.append(choice)
        return _stack([ending for ending, _ in choices]), _stack([going for _, going in choices])


def _stack(groups: list[Candidates]) -> Candidates:
    """The candidates of all groups, sentence by sentence: [sentences * groups, candidates]."""
    stacked = [
        torch.stack([getattr(group, name) for group in groups], dim=1) for name in ("totals", "parents", "tokens")
    ]
    return Candidates(*(field.flatten(0, 1) for field in stacked))


def _interleave(groups: list[list[Hypothesis]]) -> list[Hypothesis]:
    """The best of all groups, then the second ones, without duplicates."""
    ranks = zip_longest(*groups)
    ordered = (sorted(filter(None, rank), key=lambda h: (not h.finished, -h.score)) for rank in ranks)
    return list({(h.tokens, h.finished): h for h in chain.from_iterable(ordered)}.values())
