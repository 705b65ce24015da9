"""Which of the phrases that must appear a hypothesis has written, and how many symbols it still needs.

A *phrase* is one or several alternatives, each a sequence of symbols; it has appeared when one of them stands somewhere
in the hypothesis. Phrases may overlap: "a b" and "b c" have both appeared in "a b c".

All alternatives of a sentence make one automaton (Aho and Corasick 1975, "Efficient string matching: an aid to
bibliographic search"): its node is the longest end of what was written that begins an alternative. With the set of
phrases that have appeared the node is a *state*. The fewest symbols from a state to one in which all have appeared is
found once for every state, so that a search knows at each step what it can still afford.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from multihead.errors import ConfigurationError

Phrase = Sequence[Sequence[int]]
"""The alternatives of a phrase."""

_MOST_ENTRIES = 1 << 22
"""Of the table of one sentence."""


@dataclass(frozen=True)
class Automaton:
    """State = node * sets + set, where bit i of the set says that phrase i has appeared. The first is 0."""

    alphabet: tuple[int, ...]
    """The symbols of the phrases; class 1 + n is the n-th of them, class 0 every other symbol."""
    following: Int[Tensor, "states classes"]
    """The state after one more symbol."""
    needed: Int[Tensor, " states"]
    """The fewest symbols until all phrases have appeared."""


def automaton(phrases: Sequence[Phrase]) -> Automaton:
    """The automaton of one sentence.

    Raises:
        ConfigurationError: a phrase without alternatives, an alternative without symbols, or more phrases than the
            table of states can hold.
    """
    for number, phrase in enumerate(phrases, 1):
        if not phrase or not all(phrase):
            raise ConfigurationError(f"phrase {number}: expected one or more alternatives of one or more symbols each")
    nodes, appeared = _trie(phrases)
    alphabet = tuple(sorted({symbol for node in nodes for symbol in node}))
    sets = 1 << len(phrases)
    if len(nodes) * sets * (len(alphabet) + 1) > _MOST_ENTRIES:
        raise ConfigurationError(
            f"{len(phrases)} phrases of {len(alphabet)} different symbols are too many for one sentence: give fewer"
        )
    after = _transitions(nodes, appeared, alphabet)
    gained = np.array(appeared)[after]  # [nodes, classes]
    before = np.arange(sets)[None, :, None]
    following = (after[:, None] * sets + (before | gained[:, None])).reshape(len(nodes) * sets, -1)
    needed = np.where(np.arange(len(following)) % sets == sets - 1, 0, np.iinfo(np.int32).max)
    while True:
        nearer = np.minimum(needed, needed[following].min(axis=1) + 1)
        if (nearer == needed).all():
            return Automaton(alphabet, torch.from_numpy(following), torch.from_numpy(needed))
        needed = nearer


def _trie(phrases: Sequence[Phrase]) -> tuple[list[dict[int, int]], list[int]]:
    """The children of each node, and the phrases that have appeared on reaching it (not yet those by a shorter end)."""
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


def _transitions(
    nodes: list[dict[int, int]], appeared: list[int], alphabet: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The node after each class of symbols, breadth first; completes ``appeared`` by what shorter ends bring."""
    after = np.zeros((len(nodes), len(alphabet) + 1), dtype=np.int64)
    shorter = [0] * len(nodes)  # the node of the longest proper end
    waiting = deque([0])
    while waiting:
        node = waiting.popleft()
        appeared[node] |= appeared[shorter[node]]
        for place, symbol in enumerate(alphabet, 1):
            child = nodes[node].get(symbol)
            by_end = after[shorter[node], place] if node else 0
            after[node, place] = by_end if child is None else child
            if child is not None:
                shorter[child] = int(by_end)
                waiting.append(child)
    return after
