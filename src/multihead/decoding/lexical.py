"""Beam search in which given phrases must appear, each in one of its alternatives.

Two rules make it so. A hypothesis may end only when all phrases have appeared, and it may go on with a symbol only if
what is then still needed, and the end symbol, fit into the length limit; so none runs out of room, and at the last
moment a phrase is forced. Long before that, the K places of a sentence are shared out: each number of symbols still
needed is a *bank* that has its part of them, so that hypotheses which have begun a phrase need not compete with those
that put it off. Places that a bank cannot fill go to the most probable of the rest. (Post and Vilar 2018, "Fast
lexically constrained decoding with dynamic beam allocation for neural machine translation", section 3; Hu et al. 2019,
"Improved lexically constrained decoding for translation and monolingual rewriting", section 3, for the trie. They count
symbols met; here symbols still needed are counted, which also says what to do about alternatives, overlaps and repeated
beginnings.)

With no phrases it is `beam.beam_search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from multihead.decoding.beams import Beams, Settings, search_beams
from multihead.decoding.candidates import Candidates, add, best
from multihead.decoding.hypothesis import Hypothesis, Limits, limit_tensor
from multihead.decoding.length_penalty import LengthPenalty, power
from multihead.decoding.phrases import Automaton, Phrase, automaton
from multihead.decoding.recording import Recorder
from multihead.decoding.restrictions import Restriction
from multihead.decoding.stepper import S, Stepper, Symbols
from multihead.decoding.stopping import Stop, usual_stop
from multihead.errors import ConfigurationError, ShapeError


def lexical_beam_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    symbols: Symbols,
    phrases: Sequence[Sequence[Phrase]],
    *,
    max_lengths: Limits,
    min_lengths: Limits = 0,
    beam: int = 10,
    alpha: float = 1.0,
    penalty: LengthPenalty = power,
    n_best: int = 1,
    stop: Stop | None = None,
    restrictions: Sequence[Restriction] = (),
    coverage: float = 0.0,
    recorder: Recorder | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` hypotheses of each sentence in which all its phrases appear, as `beam_search` orders them.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: how many of them are real.
        symbols: begin, end, and what is never chosen.
        phrases: of each sentence, each with its alternatives; a phrase given twice is one.
        max_lengths: the most symbols of a hypothesis, the end symbol counted: one number, or one a sentence.
        min_lengths: the least symbols before the end symbol, which is forbidden until then: likewise.
        beam: K, the hypotheses of a sentence that go on after each step; best more than the symbols of its phrases.
        alpha: how strongly length counts in the score.
        penalty: in which form.
        n_best: how many hypotheses to hand back, at most ``beam``.
        stop: as `beam_search` has it.
        coverage: as `beam_search` has it.
        recorder: writes down what happens.
        restrictions: what no hypothesis may contain, and what each must begin with. They are stronger than phrases, and
            can make them impossible.

    Raises:
        ShapeError, ConfigurationError: as `beam_search`; phrases that are not one list a sentence, that contain symbols
            which are never chosen, or that do not fit into the sentence's limit with the end symbol.
        MultiheadError: as `beam_search`: also where model and restrictions leave no way to write the phrases.
    """
    limits = limit_tensor(max_lengths, source.shape[0], source.device)
    automata = _automata(phrases, limits, symbols)
    settings = Settings(
        symbols, beam, n_best, alpha, penalty, stop or usual_stop(beam), restrictions, 1, coverage, recorder
    )
    choice = _Banks.of(automata, beam, symbols.end, source.device)
    marks = torch.zeros_like(limits)
    return search_beams(stepper, source, lengths, max_lengths, min_lengths, settings, choice, marks)


def _automata(phrases: Sequence[Sequence[Phrase]], limits: Int[Tensor, " batch"], symbols: Symbols) -> list[Automaton]:
    """One a sentence; refuses what cannot be met."""
    if len(phrases) != len(limits):
        raise ShapeError(f"got phrases of {len(phrases)} sentences for {len(limits)}: give each a list, if only []")
    automata = [automaton(own) for own in phrases]
    never = {symbols.begin, symbols.end, *symbols.forbidden}
    for number, (own, limit) in enumerate(zip(automata, limits.tolist(), strict=True), 1):
        unwritable = sorted(never.intersection(own.alphabet))
        if unwritable:
            raise ConfigurationError(
                f"sentence {number}: its phrases contain symbols that are never chosen: {unwritable}"
            )
        if min(own.alphabet, default=0) < 0:
            raise ConfigurationError(f"sentence {number}: symbols are ids counted from 0, got {own.alphabet[0]}")
        needed = int(own.needed[0])
        if needed >= limit:
            raise ConfigurationError(
                f"sentence {number}: its phrases need {needed} symbols, which with the end symbol do not fit into a "
                f"length limit of {limit}: raise the limit to {needed + 1}"
            )
    return automata


@dataclass(frozen=True)
class _Banks:
    """The rules above, on tensors: of all sentences, padded."""

    alphabets: Int[Tensor, "sentences alphabet"]
    """-1 where a sentence has fewer symbols."""
    following: Int[Tensor, "sentences states classes"]
    needed: Int[Tensor, "sentences states"]
    beam: int
    end: int

    @classmethod
    def of(cls, automata: list[Automaton], beam: int, end: int, device: torch.device) -> _Banks:
        symbols = max((len(own.alphabet) for own in automata), default=0)
        states = max((len(own.needed) for own in automata), default=0)
        alphabets = torch.full((len(automata), symbols), -1)
        following = torch.zeros(len(automata), states, symbols + 1, dtype=torch.long)
        needed = torch.zeros(len(automata), states, dtype=torch.long)
        for place, own in enumerate(automata):
            alphabets[place, : len(own.alphabet)] = torch.tensor(own.alphabet, dtype=torch.long)
            following[place, : len(own.needed), : len(own.alphabet) + 1] = own.following
            needed[place, : len(own.needed)] = own.needed
        return cls(alphabets.to(device), following.to(device), needed.to(device), beam, end)

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        """Of each bank those that end and are among its first K; and the K that go on."""
        candidates = self._extend(beams, permitted)
        banks, places = self._banks(beams, candidates)
        ends, alive = candidates.tokens == self.end, candidates.totals > -torch.inf
        ending = candidates.only(ends & (_rank(banks, alive) < self.beam))
        going = alive & ~ends
        within = _rank(banks, going) < places
        # Stable, so that the most probable come first: those within their bank's share, the others, the dead.
        order = torch.where(going, torch.where(within, 0, 1), 2).argsort(dim=1, stable=True)[:, : self.beam]
        return ending, candidates.only(going).take(order)

    def _extend(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> Candidates:
        """Each hypothesis by each symbol of the phrases and by its 2K best others, most probable first.

        More of the others are never needed: of one hypothesis all of them lead to the same state.
        """
        assert beams.marks is not None
        parties, width = beams.totals.shape
        own = beams.numbers[:, None]
        permitted = permitted.view(parties, width, -1)
        states = self.following[own, beams.marks]
        needed = self.needed[own[:, :, None], states]
        room = (beams.limits - beams.length)[:, None, None]  # after this symbol, the end symbol counted
        fits = (needed == 0) | (needed < room)
        alphabet = self.alphabets[beams.numbers]
        real, symbols = alphabet >= 0, alphabet.clamp(min=0)
        written = permitted.gather(2, symbols[:, None].expand(-1, width, -1))
        written = written.masked_fill(~(real[:, None] & fits[:, :, 1:]), -torch.inf)
        in_phrases = symbols.new_zeros(parties, permitted.shape[2]).scatter_add(1, symbols, real.long()) > 0
        others = permitted.masked_fill(in_phrases[:, None] | ~fits[:, :, :1], -torch.inf)
        complete = self.needed[own, beams.marks] == 0
        others[:, :, self.end] = others[:, :, self.end].masked_fill(~complete, -torch.inf)
        gains, tokens = best(others.flatten(0, 1), 2 * self.beam)
        each = gains.shape[1]
        gains = torch.cat([gains.view(parties, width, each), written], dim=2)
        tokens = torch.cat([tokens.view(parties, width, each), symbols[:, None].expand(-1, width, -1)], dim=2)
        states = torch.cat([states[:, :, :1].expand(-1, -1, each), states[:, :, 1:]], dim=2)
        parents = torch.arange(width, device=tokens.device)[None, :, None].expand_as(tokens)
        totals, order = best(add(beams.totals, gains), tokens[0].numel())
        spare = (0, max(self.beam - order.shape[1], 0))
        return Candidates(
            totals=torch.nn.functional.pad(totals, spare, value=-torch.inf),
            parents=torch.nn.functional.pad(parents.flatten(1).gather(1, order), spare),
            tokens=torch.nn.functional.pad(tokens.flatten(1).gather(1, order), spare, value=self.end),
            marks=torch.nn.functional.pad(states.flatten(1).gather(1, order), spare),
        )

    def _banks(
        self, beams: Beams, candidates: Candidates
    ) -> tuple[Int[Tensor, "parties candidates"], Int[Tensor, "parties candidates"]]:
        """The bank of each candidate, 0 for those that need nothing more; and the places that its bank has.

        Where K is less than the symbols that the phrases need, neighbouring numbers share a bank.
        """
        assert candidates.marks is not None
        own = beams.numbers[:, None]
        needed, most = self.needed[own, candidates.marks], self.needed[own, 0]
        count = (most + 1).clamp(max=self.beam)
        banks = torch.where(needed == 0, 0, 1 + (needed - 1) * (count - 1) // most.clamp(min=1))
        share = self.beam // count
        return banks, torch.where(banks == 0, self.beam - share * (count - 1), share)


def _rank(
    banks: Int[Tensor, "parties candidates"], counted: Bool[Tensor, "parties candidates"]
) -> Int[Tensor, "parties candidates"]:
    """How many of those that are counted stand before each candidate in its bank."""
    one_hot = torch.nn.functional.one_hot(banks) * counted[:, :, None]
    return (one_hot.cumsum(dim=1) - one_hot).gather(2, banks[:, :, None]).squeeze(2)
