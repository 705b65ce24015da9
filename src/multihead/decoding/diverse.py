"""Diverse beam search: groups of hypotheses that keep away from each other (Vijayakumar et al. 2018, "Diverse beam
search for improved description of complex scenes", algorithm 1 and equation 2, with Hamming diversity).

The K hypotheses of a sentence are G groups of K / G. Within a step the groups choose one after the other, each as
`beam.py` does, but by

    log p(y_1 ... y_t | x) - strength * (how often the earlier groups have chosen the symbol y_t in this step).

What a group paid for its symbols in earlier steps is not remembered: only probabilities are summed, so that log-
probabilities, scores and stopping are those of any other beam search. With one group, or the strength 0, it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from multihead.decoding.beams import Beams, Settings, check, search_beams
from multihead.decoding.candidates import Candidates, extend, part
from multihead.decoding.hypothesis import Hypothesis, Limits
from multihead.decoding.length_penalty import LengthPenalty, power
from multihead.decoding.recording import Recorder
from multihead.decoding.restrictions import Restriction
from multihead.decoding.stepper import S, Stepper, Symbols
from multihead.decoding.stopping import Stop, usual_stop
from multihead.errors import ConfigurationError


def diverse_beam_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    symbols: Symbols,
    *,
    max_lengths: Limits,
    min_lengths: Limits = 0,
    beam: int = 6,
    groups: int = 3,
    strength: float = 0.5,
    alpha: float = 1.0,
    penalty: LengthPenalty = power,
    n_best: int = 1,
    stop: Stop | None = None,
    restrictions: Sequence[Restriction] = (),
    coverage: float = 0.0,
    recorder: Recorder | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` hypotheses of each sentence: the best one of every group, then the second ones, and so on.

    Those of one rank are ordered by finished and score; what several groups found is there once, so that there can be
    fewer than asked for.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: how many of them are real.
        symbols: begin, end, and what is never chosen.
        max_lengths: the most symbols of a hypothesis, the end symbol counted: one number, or one a sentence.
        min_lengths: the least symbols before the end symbol, which is forbidden until then: likewise.
        beam: K, the hypotheses of a sentence, those of all groups together.
        groups: G, which divides K.
        strength: lambda, what a symbol costs for each time that an earlier group chose it; the paper finds 0.2 to 0.8.
        alpha: how strongly length counts in the score.
        penalty: in which form.
        n_best: how many hypotheses to hand back, at most ``beam``.
        stop: when a group has what it needs; a sentence is done when all its groups are. As `beam_search` has it.
        restrictions: what no hypothesis may contain, and what each must begin with.
        coverage: as `beam_search` has it.
        recorder: writes down what happens.

    Raises:
        ShapeError, ConfigurationError, MultiheadError: as `beam_search`; groups that do not divide the beam, or a
            strength that is negative or no number.
    """
    if groups < 1 or beam % groups:
        raise ConfigurationError(f"groups must divide the beam, which is {beam}, got {groups}")
    if not 0 <= strength < float("inf"):
        raise ConfigurationError(f"strength must be a number that is not negative, got {strength}")
    check(Settings(symbols, beam, n_best))
    each = beam // groups
    settings = Settings(
        symbols,
        each,
        -(-n_best // groups),
        alpha,
        penalty,
        stop or usual_stop(each),
        restrictions,
        groups,
        coverage,
        recorder,
    )
    choice = _OneAfterTheOther(each, groups, strength, symbols.end)
    found = search_beams(stepper, source, lengths, max_lengths, min_lengths, settings, choice)
    return [_together(found[first : first + groups])[:n_best] for first in range(0, len(found), groups)]


@dataclass(frozen=True)
class _OneAfterTheOther:
    """The rule above."""

    beam: int
    groups: int
    strength: float
    end: int

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        """The choice of each group, knowing those of the earlier ones."""
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
        return _side_by_side([ending for ending, _ in choices]), _side_by_side([going for _, going in choices])


def _side_by_side(groups: list[Candidates]) -> Candidates:
    """The candidates of all groups, sentence by sentence."""
    stacked = [
        torch.stack([getattr(group, name) for group in groups], dim=1) for name in ("totals", "parents", "tokens")
    ]
    return Candidates(*(field.flatten(0, 1) for field in stacked))


def _together(groups: list[list[Hypothesis]]) -> list[Hypothesis]:
    """The best of all groups, then the second ones; each sequence once."""
    ranks = zip_longest(*groups)
    ordered = (sorted(filter(None, rank), key=lambda h: (not h.finished, -h.score)) for rank in ranks)
    return list({(h.tokens, h.finished): h for h in chain.from_iterable(ordered)}.values())
