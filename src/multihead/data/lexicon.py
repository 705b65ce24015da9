"""Which symbols of the target a symbol of the source becomes: IBM's model 1, from pairs of token ids.

    p(y_j | x) = 1 / (|x| + 1) sum_{i=0..|x|} t(y_j | x_i)        x_0: an empty word

and t is made likelier by expectation and maximisation (Brown et al. 1993, "The mathematics of statistical machine
translation", section 4.1). It begins with all t equal, so that the first round counts what stands together; its
likelihood has one maximum, so that nothing depends on where it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multihead.data.store import Int64, ParallelStore

_CELLS = 4_000_000
"""Pairs of a source and a target symbol that are looked at together: memory."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lexicon:
    """t of the symbols that stand together somewhere, in the order of source and target symbol.

    The source symbol ``source_vocab`` is the empty word.
    """

    source: Int64
    target: Int64
    probability: Floats
    """t(target | source)"""


def learn(store: ParallelStore, source_vocab: int, target_vocab: int, rounds: int = 5, pairs: int = 100_000) -> Lexicon:
    """t after some rounds.

    Args:
        store: the pairs, without begin and end symbols.
        source_vocab: entries of the source's vocabulary.
        target_vocab: of the target's.
        rounds: of expectation and maximisation.
        pairs: how many are looked at, at most, evenly spread.
    """
    chosen = np.arange(0, len(store), max(1, -(-len(store) // pairs)), dtype=np.int64)
    keys = np.empty(0, dtype=np.int64)
    for cells, _ in _cells(store, chosen, source_vocab, target_vocab):
        keys = np.union1d(keys, cells)
    source, target = np.divmod(keys, target_vocab)
    probability: Floats = np.ones(len(keys))
    for _ in range(rounds):
        counts = np.zeros(len(keys))
        for cells, words in _cells(store, chosen, source_vocab, target_vocab):
            places = np.searchsorted(keys, cells)
            shares = probability[places]
            shares /= np.bincount(words, shares)[words]
            counts += np.bincount(places, shares, len(keys))
        totals = np.bincount(source, counts, source_vocab + 1)
        probability = counts / totals[source]
    return Lexicon(source, target, probability)


def _cells(store: ParallelStore, chosen: Int64, source_vocab: int, target_vocab: int) -> Iterator[tuple[Int64, Int64]]:
    """Every source symbol, the empty word first, with every target symbol of its pair, some pairs at a time.

    Given are source * target_vocab + target, and the number of the target word that it explains.
    """
    sizes = (store.source.lengths[chosen].astype(np.int64) + 1) * store.target.lengths[chosen]
    parts = np.searchsorted(np.cumsum(sizes), np.arange(_CELLS, int(sizes.sum()) + _CELLS, _CELLS), side="right")
    for some in np.split(chosen, np.unique(np.clip(parts, 1, len(chosen)))):
        if not len(some):
            continue
        (source, read), (target, written) = store.source.gather(some), store.target.gather(some)
        each = np.repeat(read + 1, written)  # of every target word
        words = np.repeat(np.arange(len(target)), each)
        place = np.arange(len(words)) - np.repeat(np.cumsum(each) - each, each)  # in its source; 0 is the empty word
        first = np.repeat(np.cumsum(read) - read, written)[words]
        known = np.append(source, source_vocab)  # for the place before the very first
        symbols = np.where(place == 0, source_vocab, known[first + place - 1])
        yield symbols * target_vocab + target[words], words
