"""What a beam search did, written down while it runs, and read afterwards as a tree.

`Settings.recorder` (`beams.py`) takes a `Recorder`. It only looks: what is found is the same to the bit with one and
without, and without one nothing is done at all. A tree has one node for each hypothesis that was in the beam and for
each that was nearly: the 2K most probable extensions of each step. A node says what became of it, and when:

    extended     it went on
    best         it was handed back; its rank among the n best
    outscored    it ended, but n others scored more
    pruned       K others of its step were more probable, or all that it could become was
    stopped      the search was over: it could no longer be among the n best, or its sentence was at its limit

so that the paths from the root to the nodes called best are what the search found, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.decoding.candidates import Candidates, extend
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Symbols

Fate = Literal["extended", "best", "outscored", "pruned", "stopped"]

Extension = tuple[int, int, float]
"""Which hypothesis of the party, by which symbol, and log p of the result."""


@dataclass
class Node:
    """A hypothesis: the symbols on the way from the root."""

    parent: int | None
    """Its place in the tree; None of the root."""
    symbol: int
    """The last one; of the root the begin symbol."""
    step: int
    """How many symbols; 0 of the root."""
    party: int
    """The group of the beam that it is in."""
    log_probability: float
    """log p(y_1 ... y_t | x)."""
    fate: Fate = "extended"
    when: int = 0
    """The step in which that was decided."""
    place: int | None = None
    """Its place in the beam, counted from 1; None of one that never was in it."""
    score: float | None = None
    """Of one that ended or was handed back."""
    rank: int | None = None
    """Among the n best, counted from 1."""


@dataclass(frozen=True)
class Tree:
    """The hypotheses of one sentence; the first node is the root, and every parent stands before its children."""

    nodes: list[Node]

    def path(self, place: int) -> tuple[int, ...]:
        """The symbols on the way from the root to a node."""
        symbols: list[int] = []
        node = self.nodes[place]
        while node.parent is not None:
            symbols.append(node.symbol)
            node = self.nodes[node.parent]
        return tuple(reversed(symbols))

    def best(self) -> list[int]:
        """The nodes that were handed back, best first."""
        return [place for _, place in sorted((node.rank, at) for at, node in enumerate(self.nodes) if node.rank)]


@dataclass(frozen=True)
class _Step:
    """One step of one party: each list by place, None where there is nothing."""

    considered: list[Extension | None]
    ending: list[Extension | None]
    going: list[Extension | None]
    stays: bool


@dataclass
class Recorder:
    """What the search of a batch does.

    Args:
        symbols: those of the search.
    """

    symbols: Symbols
    _steps: dict[int, list[_Step]] = field(default_factory=dict)
    _found: Sequence[Sequence[Hypothesis]] = ()

    def note(
        self,
        numbers: Int[Tensor, " parties"],
        totals: Float[Tensor, "parties beam"],
        permitted: Float[Tensor, "rows vocab"],
        ending: Candidates,
        going: Candidates,
        staying: Int[Tensor, " staying"],
        found: Sequence[Sequence[Hypothesis]],
    ) -> None:
        """One step of the search.

        Args:
            numbers: the parties.
            totals: log p of their hypotheses.
            permitted: log-probabilities of the next symbols, party by party.
            ending: the extensions that ended.
            going: those that go on.
            staying: the parties that are still searched after this step.
            found: what has ended so far, of every party; the search goes on filling it.
        """
        near = extend(totals, permitted, 2 * going.totals.shape[1], self.symbols.end)
        stay = set(staying.tolist())
        parties = zip(numbers.tolist(), *map(_extensions, (near, ending, going)), strict=True)
        for row, (number, considered, ended, on) in enumerate(parties):
            self._steps.setdefault(number, []).append(_Step(considered, ended, on, row in stay))
        self._found = found

    def tree(self, found: Sequence[Hypothesis], sentence: int = 0, parties: int = 1) -> Tree:
        """The tree of a sentence.

        Args:
            found: what the search handed back for it.
            sentence: which one of the batch.
            parties: groups of the beam.
        """
        nodes = [Node(None, self.symbols.begin, 0, 0, 0.0)]
        for party in range(parties):
            _grow(nodes, self._steps.get(sentence * parties + party, []), party)
        tree = Tree(nodes)
        ended = [one for own in self._found[sentence * parties :][:parties] for one in own if one.finished]
        scores = {(*one.tokens, self.symbols.end): one.score for one in ended}
        for place, node in enumerate(nodes):
            node.score = scores[tree.path(place)] if node.fate == "outscored" else None
        leaves = {
            (tree.path(place), node.fate): node
            for place, node in reversed([*enumerate(nodes)])
            if node.fate in ("outscored", "stopped")
        }
        for rank, one in enumerate(found, 1):
            end = (self.symbols.end,) if one.finished else ()
            node = leaves[(*one.tokens, *end), "outscored" if one.finished else "stopped"]
            node.fate, node.rank, node.score = "best", rank, one.score
        return tree


def _extensions(candidates: Candidates) -> Iterator[list[Extension | None]]:
    """Of each party."""
    each = (side.tolist() for side in (candidates.parents, candidates.tokens, candidates.totals))
    for parents, tokens, totals in zip(*each, strict=True):
        yield [one if one[2] > -torch.inf else None for one in zip(parents, tokens, totals, strict=True)]


def _grow(nodes: list[Node], steps: Sequence[_Step], party: int) -> None:
    """The nodes of a party, step by step."""
    beam: list[int | None] = [0]
    for number, step in enumerate(steps, 1):
        made: dict[tuple[int, int], int] = {}
        fates: tuple[tuple[Fate, list[Extension | None]], ...] = (
            ("pruned", step.considered),
            ("outscored", step.ending),
            ("extended" if step.stays else "stopped", step.going),
        )
        following: list[int | None] = []
        for fate, extensions in fates:
            following = [_node(nodes, beam, made, one, Node(None, 0, number, party, 0.0)) for one in extensions]
            for place, node in enumerate(following, 1):
                if node is not None:
                    nodes[node].fate, nodes[node].when = fate, number
                    nodes[node].place = place if fate in ("extended", "stopped") else None
        going = {nodes[node].parent for node in made.values() if nodes[node].fate != "pruned"}
        for node in beam:
            if node is not None and node not in going:
                nodes[node].fate, nodes[node].when = "pruned", number
        beam = following


def _node(
    nodes: list[Node], beam: list[int | None], made: dict[tuple[int, int], int], one: Extension | None, blank: Node
) -> int | None:
    """The node of an extension, made where there is none yet."""
    if one is None:
        return None
    slot, symbol, total = one
    if (slot, symbol) not in made:
        made[slot, symbol] = len(nodes)
        nodes.append(replace(blank, parent=beam[slot], symbol=symbol, log_probability=total))
    return made[slot, symbol]
