"""The steps of a beam search, recorded while it runs, as a tree.

`SearchTask.recorder` takes a `Recorder`. Recording does not change the result, and costs nothing if it is off. The tree
has a node for each hypothesis that was in the beam, and for the other extensions among the 2K most probable ones of
each step. A node says what happened to it, and in which step:

    extended     it stayed live
    best         it was returned; its rank among the n best
    outscored    it ended, but n others scored more
    pruned       K others of its step were more probable, or all its extensions were pruned
    stopped      the search stopped: it could no longer be among the n best, or its sentence reached the limit

The paths from the root to the nodes called best are the result of the search.
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
"""(hypothesis of the party that is extended, symbol, log p of the result)"""


@dataclass
class Node:
    """A hypothesis: the symbols on the path from the root."""

    parent: int | None
    """Place of the parent in the tree; None for the root."""
    symbol: int
    """The last symbol; for the root the begin symbol."""
    step: int
    """Number of symbols; 0 for the root."""
    party: int
    """Its group of the beam."""
    log_probability: float
    """log p(y_1 ... y_t | x)."""
    fate: Fate = "extended"
    when: int = 0
    """The step in which its fate was decided."""
    place: int | None = None
    """Its place in the beam, counted from 1; None if it never was in it."""
    score: float | None = None
    """Its score if it ended or was returned."""
    rank: int | None = None
    """Its rank among the n best, counted from 1."""


@dataclass(frozen=True)
class Tree:
    """The hypotheses of one sentence; the first node is the root, and parents come before their children."""

    nodes: list[Node]

    def path(self, place: int) -> tuple[int, ...]:
        """The symbols on the path from the root to a node."""
        symbols: list[int] = []
        node = self.nodes[place]
        while node.parent is not None:
            symbols.append(node.symbol)
            node = self.nodes[node.parent]
        return tuple(reversed(symbols))

    def best(self) -> list[int]:
        """The nodes that were returned, best first."""
        return [place for _, place in sorted((node.rank, at) for at, node in enumerate(self.nodes) if node.rank)]


@dataclass(frozen=True)
class _Step:
    """One step of one party; None marks a dead candidate."""

    considered: list[Extension | None]
    ending: list[Extension | None]
    going: list[Extension | None]
    stays: bool


@dataclass
class Recorder:
    """Records the search of a batch.

    Args:
        symbols: of the search.
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
        """Record one step of the search.

        Args:
            numbers: the parties.
            totals: log p of their hypotheses.
            permitted: log-probabilities of the next symbols, party by party.
            ending: the extensions that ended.
            going: the extensions that stay live.
            staying: the parties that stay in the search.
            found: finished hypotheses of every party; the search keeps appending to it.
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
            found: what the search returned for it.
            sentence: its place in the batch.
            parties: number of groups of the beam.
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
    """The candidates of each party as lists."""
    each = (side.tolist() for side in (candidates.parents, candidates.tokens, candidates.totals))
    for parents, tokens, totals in zip(*each, strict=True):
        yield [one if one[2] > -torch.inf else None for one in zip(parents, tokens, totals, strict=True)]


def _grow(nodes: list[Node], steps: Sequence[_Step], party: int) -> None:
    """Append the nodes of a party, step by step."""
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
    """The node of an extension, which is appended if it is new."""
    if one is None:
        return None
    slot, symbol, total = one
    if (slot, symbol) not in made:
        made[slot, symbol] = len(nodes)
        nodes.append(replace(blank, parent=beam[slot], symbol=symbol, log_probability=total))
    return made[slot, symbol]
