"""Lexically constrained beam search: given phrases must appear.

A *phrase* is one or several alternatives, each a sequence of symbols; it has appeared when one of them stands somewhere
in the hypothesis. Phrases may overlap: "a b" and "b c" have both appeared in "a b c". All alternatives of a sentence
make one automaton (Aho and Corasick 1975, "Efficient string matching: an aid to bibliographic search"): its node is the
longest suffix of the hypothesis that begins an alternative. The node together with the set of phrases that have
appeared is a *state*. For every state the minimum number of symbols still needed is computed once.

Two rules make the phrases appear. A hypothesis may end only when all phrases have appeared. It may be extended by a
symbol only if what is then still needed, and the end symbol, fit into the length limit, so that no hypothesis runs out
of room, and at the last moment a phrase is forced. Long before that, the K places of a sentence are divided among
*banks*, one for each number of symbols still needed, so that hypotheses which have begun a phrase need not compete with
those that postpone it. Places that a bank cannot fill go to the most probable other hypotheses. (Post and Vilar 2018,
"Fast lexically constrained decoding with dynamic beam allocation for neural machine translation", section 3; Hu et al.
2019, "Improved lexically constrained decoding for translation and monolingual rewriting", section 3, for the trie. They
count symbols met; counting symbols still needed also covers alternatives, overlaps and repeated beginnings.)

Without phrases it is `beam.beam_search`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from multihead.decoding.beam import Beams, search_beams
from multihead.decoding.candidates import Candidates, add, best
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search, Symbols
from multihead.decoding.stepper import S, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, ShapeError

Phrase = Sequence[Sequence[int]]
"""The alternatives of a phrase."""

_Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_MAX_ENTRIES = 1 << 22
"""Maximum size of the transition table of one sentence."""


class TooManyPhrasesError(ConfigurationError):
    """The phrases of a sentence need a table that is too large."""


@dataclass(frozen=True)
class Automaton:
    """State = node * sets + set, where bit i of the set says that phrase i has appeared. The first state is 0."""

    alphabet: tuple[int, ...]
    """The symbols of the phrases; class 1 + n is the n-th of them, class 0 every other symbol."""
    following: Int[Tensor, "states classes"]
    """The state after one more symbol."""
    needed: Int[Tensor, " states"]
    """Minimum number of symbols until all phrases have appeared."""


def automaton(phrases: Sequence[Phrase]) -> Automaton:
    """The automaton of one sentence.

    Raises:
        ConfigurationError: a phrase has no alternatives, an alternative has no symbols, or the table of states would be
            too large.
    """
    nodes, appeared, alphabet = _checked(phrases)
    sets = 1 << len(phrases)
    after = _transitions(nodes, appeared, alphabet)  # [nodes, classes]
    gained = np.array(appeared)[after]  # [nodes, classes]: bits of the phrases that appear with this symbol
    before = np.arange(sets)[None, :, None]
    following = after[:, None] * sets + (before | gained[:, None])  # [nodes, sets, classes]
    following = following.reshape(len(nodes) * sets, -1)
    return Automaton(alphabet, torch.from_numpy(following), torch.from_numpy(_distances(following, len(phrases))))


def _distances(following: _Array, phrases: int) -> _Array:
    """The number of symbols from each state to one with all bits set.

    Bits are never lost, so the sets are done from the largest to the smallest: a state needs those of its own set and
    of larger ones. Within a set, distances are shortened by one symbol per pass until nothing changes, which takes
    about as many passes as a phrase has symbols.
    """
    sets = np.arange(len(following)) % (1 << phrases)
    sizes = np.array([number.bit_count() for number in range(1 << phrases)])[sets]
    needed = np.where(sizes == phrases, 0, np.iinfo(np.int32).max)
    for size in range(phrases - 1, -1, -1):
        (own,) = np.nonzero(sizes == size)
        after = following[own]
        while True:
            nearer = np.minimum(needed[own], needed[after].min(axis=1) + 1)
            if (nearer == needed[own]).all():
                break
            needed[own] = nearer
    return needed


def fewest_symbols(phrases: Sequence[Phrase], most: int, before: Sequence[int] = ()) -> int:
    """The minimum number of symbols until all phrases have appeared; if it is at most ``most``, a number up to that.

    The shortest alternatives one after the other are an upper bound. The automaton, which takes long with many phrases,
    is only made where that bound does not fit.

    Args:
        phrases: those of a sentence.
        most: symbols for which there is room.
        before: symbols that are written already, in which phrases may have appeared or begun.

    Raises:
        ConfigurationError: as `automaton`.
    """
    _checked(phrases)
    bound = sum(min(map(len, phrase)) for phrase in phrases)
    if bound <= most:
        return bound
    own, state = automaton(phrases), 0
    classes = {symbol: number for number, symbol in enumerate(own.alphabet, 1)}
    for symbol in before:
        state = int(own.following[state, classes.get(symbol, 0)])
    return int(own.needed[state])


def table_size(phrases: Sequence[Phrase]) -> int:
    """An upper bound of the entries of the table of states."""
    symbols = sum(len(alternative) for phrase in phrases for alternative in phrase)
    return (symbols + 1) ** 2 << len(phrases)


def _checked(phrases: Sequence[Phrase]) -> tuple[list[dict[int, int]], list[int], tuple[int, ...]]:
    """The trie of phrases (`_trie`) and their symbols.

    Raises:
        ConfigurationError: as `automaton`.
    """
    for number, phrase in enumerate(phrases, 1):
        if not phrase or not all(phrase):
            raise ConfigurationError(f"phrase {number}: expected one or more alternatives of one or more symbols each")
    nodes, appeared = _trie(phrases)
    alphabet = tuple(sorted({symbol for node in nodes for symbol in node}))
    if len(nodes) * (len(alphabet) + 1) << len(phrases) > _MAX_ENTRIES:
        raise TooManyPhrasesError(
            f"{len(phrases)} phrases of {len(alphabet)} different symbols are too many for one sentence: give fewer"
        )
    return nodes, appeared, alphabet


def _trie(phrases: Sequence[Phrase]) -> tuple[list[dict[int, int]], list[int]]:
    """The children of each node, and the phrases that end at it, as bits (without those that end at its suffixes)."""
    nodes: list[dict[int, int]] = [{}]
    appeared = [0]
    for number, phrase in enumerate(phrases):
        for alternative in phrase:
            node = 0
            for symbol in alternative:
                if symbol not in nodes[node]:
                    nodes[node][symbol] = len(nodes)
                    nodes.append({})
                    appeared.append(0)
                node = nodes[node][symbol]
            appeared[node] |= 1 << number
    return nodes, appeared


def _transitions(nodes: list[dict[int, int]], appeared: list[int], alphabet: tuple[int, ...]) -> _Array:
    """The node after each class of symbols, breadth first; adds to ``appeared`` the phrases that end at suffixes."""
    after = np.zeros((len(nodes), len(alphabet) + 1), dtype=np.int64)
    suffix = [0] * len(nodes)  # the node of the longest proper suffix
    waiting = deque([0])
    while waiting:
        node = waiting.popleft()
        appeared[node] |= appeared[suffix[node]]
        for place, symbol in enumerate(alphabet, 1):
            child = nodes[node].get(symbol)
            by_suffix = after[suffix[node], place] if node else 0
            after[node, place] = by_suffix if child is None else child
            if child is not None:
                suffix[child] = int(by_suffix)
                waiting.append(child)
    return after


def lexical_beam_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    phrases: Sequence[Sequence[Phrase]],
    task: SearchTask,
    search: Search | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence that contain all its phrases, ranked as `beam_search` ranks them.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: number of real symbols of each source.
        phrases: those of each sentence, each with its alternatives; a phrase given twice counts once.
        task: as `beam_search` has it. Restrictions take precedence over phrases, and can make them impossible.
        search: how to search; by default a beam of 10. The beam should exceed the number of symbols of the phrases.

    Raises:
        ShapeError, ConfigurationError: as `beam_search`; not one list of phrases per sentence; phrases that contain
            forbidden symbols, or that do not fit into the sentence's limit with the end symbol.
        MultiheadError: as `beam_search`; model and restrictions leave no way to write the phrases.
    """
    search = search or Search(beam=10)
    limits, _ = task.lengths(search, lengths, source.device)
    automata = _automata(phrases, limits, task.symbols)
    choice = _Banks.build(automata, search.beam, task.symbols.end, source.device)
    return search_beams(stepper, source, lengths, task, search, choice, marks=torch.zeros_like(limits))


def _automata(phrases: Sequence[Sequence[Phrase]], limits: Int[Tensor, " batch"], symbols: Symbols) -> list[Automaton]:
    """One automaton per sentence; raises an error if phrases are impossible."""
    if len(phrases) != len(limits):
        raise ShapeError(
            f"got phrases of {len(phrases)} sentences for {len(limits)}: give one list for each, [] for none"
        )
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
        needed = len(symbols.forced) + int(own.needed[0])
        if needed >= limit:
            raise ConfigurationError(
                f"sentence {number}: its phrases need {needed} symbols, which with the end symbol do not fit into a "
                f"length limit of {limit}: raise the limit to {needed + 1}"
            )
    return automata


@dataclass(frozen=True)
class _Banks:
    """The extensions by the two rules and the banks above; the automata of all sentences as padded tensors.

    The mark of a hypothesis (`Beams.marks`) is its state.
    """

    alphabets: Int[Tensor, "sentences alphabet"]
    """-1 where a sentence has fewer symbols."""
    following: Int[Tensor, "sentences states classes"]
    needed: Int[Tensor, "sentences states"]
    beam: int
    end: int

    @classmethod
    def build(cls, automata: list[Automaton], beam: int, end: int, device: torch.device) -> _Banks:
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
        candidates = self._extend(beams, permitted)
        banks, places = self._banks(beams, candidates)
        ends, alive = candidates.tokens == self.end, candidates.totals > -torch.inf
        ending = candidates.only(ends & (_rank(banks, alive) < self.beam))
        going = alive & ~ends
        within = _rank(banks, going) < places
        # Three classes: within the bank's share, the other live ones, the dead. The sort is stable and the candidates
        # are in order of probability, so each class stays in that order.
        order = torch.where(going, torch.where(within, 0, 1), 2).argsort(dim=1, stable=True)[:, : self.beam]
        return ending, candidates.only(going).take(order)

    def _extend(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> Candidates:
        """Each hypothesis by every symbol of the phrases and by its 2K best other symbols, most probable first.

        2K other symbols suffice: all of them lead a hypothesis to the same state. In the shapes below, P is parties,
        K hypotheses per party, A the alphabet, C = A + 1 classes, V the vocabulary and M = min(2 * beam, V).
        """
        assert beams.marks is not None
        parties, width = beams.totals.shape  # [P, K]
        sentence = beams.numbers[:, None]  # [P, 1], indexes the tables of its sentence
        permitted = permitted.view(parties, width, -1)  # [P, K, V]

        # What the hypothesis still needs after a symbol of each class must leave room for the end symbol.
        states = self.following[sentence, beams.marks]  # [P, K, C]
        needed = self.needed[sentence[:, :, None], states]  # [P, K, C]
        room = (beams.limits - beams.length)[:, None, None]  # [P, 1, 1], including the end symbol
        fits = (needed == 0) | (needed < room)  # [P, K, C]

        # Symbols of the phrases: every one of them is a candidate.
        alphabet = self.alphabets[beams.numbers]  # [P, A]
        real, symbols = alphabet >= 0, alphabet.clamp(min=0)
        by_phrase = permitted.gather(2, symbols[:, None].expand(-1, width, -1))  # [P, K, A]
        by_phrase = by_phrase.masked_fill(~(real[:, None] & fits[:, :, 1:]), -torch.inf)

        # All other symbols are class 0; the end symbol is one of them, allowed only in a complete hypothesis.
        in_phrases = symbols.new_zeros(parties, permitted.shape[2]).scatter_add(1, symbols, real.long()) > 0  # [P, V]
        others = permitted.masked_fill(in_phrases[:, None] | ~fits[:, :, :1], -torch.inf)  # [P, K, V]
        complete = self.needed[sentence, beams.marks] == 0  # [P, K]
        others[:, :, self.end] = others[:, :, self.end].masked_fill(~complete, -torch.inf)
        gains, tokens = best(others.flatten(0, 1), 2 * self.beam)  # [P * K, M]
        count = gains.shape[1]

        # Both kinds side by side, [P, K, M + A], then all of a party in one row, [P, K * (M + A)], best first.
        gains = torch.cat([gains.view(parties, width, count), by_phrase], dim=2)
        tokens = torch.cat([tokens.view(parties, width, count), symbols[:, None].expand(-1, width, -1)], dim=2)
        states = torch.cat([states[:, :, :1].expand(-1, -1, count), states[:, :, 1:]], dim=2)
        parents = torch.arange(width, device=tokens.device)[None, :, None].expand_as(tokens)
        totals, order = best(add(beams.totals, gains), tokens[0].numel())
        missing = (0, max(self.beam - order.shape[1], 0))  # padding: at least K candidates, dead ones at the end
        return Candidates(
            totals=pad(totals, missing, value=-torch.inf),
            parents=pad(parents.flatten(1).gather(1, order), missing),
            tokens=pad(tokens.flatten(1).gather(1, order), missing, value=self.end),
            marks=pad(states.flatten(1).gather(1, order), missing),
        )

    def _banks(
        self, beams: Beams, candidates: Candidates
    ) -> tuple[Int[Tensor, "parties candidates"], Int[Tensor, "parties candidates"]]:
        """The bank of each candidate, 0 for complete ones; and the number of places of its bank.

        If K is smaller than the number of symbols that the phrases need, neighboring numbers share a bank.
        """
        assert candidates.marks is not None
        sentence = beams.numbers[:, None]
        needed = self.needed[sentence, candidates.marks]  # [parties, candidates]
        most = self.needed[sentence, 0]  # [parties, 1], what the empty hypothesis needs
        count = (most + 1).clamp(max=self.beam)  # banks of the sentence
        banks = torch.where(needed == 0, 0, 1 + (needed - 1) * (count - 1) // most.clamp(min=1))
        share = self.beam // count
        return banks, torch.where(banks == 0, self.beam - share * (count - 1), share)


def _rank(
    banks: Int[Tensor, "parties candidates"], counted: Bool[Tensor, "parties candidates"]
) -> Int[Tensor, "parties candidates"]:
    """The number of counted candidates before each candidate in its bank."""
    one_hot = torch.nn.functional.one_hot(banks) * counted[:, :, None]  # [parties, candidates, banks]
    return (one_hot.cumsum(dim=1) - one_hot).gather(2, banks[:, :, None]).squeeze(2)
