r"""Word alignment by IBM Model 1, learned from the training text.

    p(f, a | e) = prod_j  t(f_j | e_{a_j}) / (l + 1)        e_0: the empty word; l: the number of words of e

(Brown et al. 1993, "The mathematics of statistical machine translation", section 4.) Expectation maximization begins
with equal t and repeats

    c(f | e) = sum over pairs  sum_j [f_j = f]  sum_i [e_i = e]  t(f | e) / sum_i' t(f | e_i')
    t(f | e) = c(f | e) / sum_f' c(f' | e)

The best link of f_j is argmax_i t(f_j | e_i), the one nearest to the diagonal among equals; none if it is the empty
word. The model is learned in both directions, and the links that both find are kept (Och & Ney 2003, intersection):
few, but reliable, which suits training: a word without links is not guided. `grown` keeps more of them
(`preparing.symmetrization`).

Everything is computed on arrays of *cells*, the pairs of a word of e and a word of f that occur in one sentence pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.data.store import Int64
from multihead.preparing.symmetrization import Link, grow_diag_final_and

Float = npt.NDArray[np.float64]

ROUNDS = 5
"""Rounds of expectation maximization."""
CELLS = 20_000_000
"""Cells that a model is learned from: some 2 GB of memory. Of more text, sentence pairs at equal distances are used."""
_SMALL = 1e-7
"""What is added to t for links near the diagonal; decides between equals only."""


class Words(NamedTuple):
    """Sentences as numbers of words, one after the other."""

    words: Int64
    """From 0; of target and source separately."""
    lengths: Int64
    """Words of each sentence."""

    def of(self, sentences: Int64) -> Words:
        """Some of the sentences."""
        lengths = self.lengths[sentences]
        starts = (np.cumsum(self.lengths) - self.lengths)[sentences]
        places = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        return Words(self.words[places], lengths)


class _Cells(NamedTuple):
    """The cells of sentence pairs, pair after pair, and for each word of f one with the empty word."""

    given: Int64
    """The word of e, from 1; 0 is the empty word."""
    made: Int64
    """The word of f."""
    token: Int64
    """Which word of f of the text it is: the cells of a token are adjacent."""
    pair: Int64
    place: Int64
    """Of the word of e in its sentence, from 0; -1 for the empty word."""
    made_place: Int64
    """Of the word of f in its sentence."""


def _cells_of(given: Words, made: Words) -> _Cells:
    """The cells of f ``made`` from e ``given``."""
    pairs = np.repeat(np.arange(len(made.lengths)), made.lengths)
    made_places = np.arange(len(pairs)) - (np.cumsum(made.lengths) - made.lengths)[pairs]
    widths = given.lengths[pairs] + 1  # with the empty word
    token = np.repeat(np.arange(len(pairs)), widths)
    place = np.arange(len(token)) - (np.cumsum(widths) - widths)[token] - 1
    starts = np.cumsum(given.lengths) - given.lengths
    empty = place < 0
    index = np.where(empty, 0, starts[pairs[token]] + place)
    words = np.where(empty, 0, given.words[index] + 1 if len(given.words) else 0)
    return _Cells(words, made.words[token], token, pairs[token], place, made_places[token])


@dataclass(frozen=True, eq=False)
class Model1:
    """The probabilities t(f | e) of the words that occur together.

    Attributes:
        keys: of each two words, ascending.
        values: t(f | e).
        size: number of words f.
    """

    keys: Int64
    values: Float
    size: int

    def t(self, given: Int64, made: Int64) -> Float:
        """t(made | given); 0 for words that never occurred together. ``given`` is 0 for the empty word, else e + 1."""
        wanted = given * self.size + made
        places = np.minimum(np.searchsorted(self.keys, wanted), max(len(self.keys) - 1, 0))
        found: Float = np.where(self.keys[places] == wanted, self.values[places], 0.0)
        return found

    def links(self, given: Words, made: Words) -> tuple[Int64, Int64, Int64]:
        """The best link of each word of f that has one: the pair, the place of e and the place of f."""
        cells = _cells_of(given, made)
        if not len(cells.token):
            return cells.pair, cells.place, cells.made_place
        lengths = np.maximum(np.stack((given.lengths, made.lengths)), 1)[:, cells.pair]
        off = np.abs((cells.place + 0.5) / lengths[0] - (cells.made_place + 0.5) / lengths[1])
        scores = self.t(cells.given, cells.made)
        scores = scores + np.where(scores > 0, _SMALL * (1 - off), 0.0)
        starts = np.flatnonzero(np.diff(cells.token, prepend=-1))
        best = np.maximum.reduceat(scores, starts)
        is_best = np.flatnonzero((scores == best[cells.token]) & (scores > 0))
        first = is_best[np.unique(cells.token[is_best], return_index=True)[1]]
        first = first[cells.place[first] >= 0]
        return cells.pair[first], cells.place[first], cells.made_place[first]


def learn(
    given: Words,
    made: Words,
    rounds: int = ROUNDS,
    after_round: Callable[[], None] = lambda: None,
) -> Model1:
    """Learn t(f | e) by expectation maximization.

    Args:
        given: the sentences e.
        made: the sentences f.
        rounds: of expectation and maximization.
        after_round: called after each; may raise.
    """
    cells = _cells_of(given, made)
    size = int(made.words.max(initial=-1)) + 1
    keys, index = np.unique(cells.given * size + cells.made, return_inverse=True)
    words = keys // max(size, 1)
    values = np.ones(len(keys))
    for _ in range(rounds):
        t = values[index]
        expected = t / np.bincount(cells.token, t, minlength=1)[cells.token]
        counts = np.bincount(index, expected, minlength=len(keys))
        values = counts / np.bincount(words, counts, minlength=1)[words]
        after_round()
    return Model1(keys, values, size)


def intersection(source: Words, target: Words, forward: Model1, backward: Model1) -> tuple[Int64, Int64, Int64]:
    """The links that both directions find: pair, place of the source word and of the target word, sorted.

    Args:
        source: sentences.
        target: their translations.
        forward: t(target word | source word).
        backward: t(source word | target word).
    """
    pair, i, j = forward.links(source, target)
    other_pair, other_j, other_i = backward.links(target, source)
    wide, high = (int(side.lengths.max(initial=0)) + 1 for side in (source, target))
    kept = np.isin((pair * wide + i) * high + j, (other_pair * wide + other_i) * high + other_j)
    order = np.lexsort((j[kept], i[kept], pair[kept]))
    return pair[kept][order], i[kept][order], j[kept][order]


def grown(source: Words, target: Words, forward: Model1, backward: Model1) -> tuple[Int64, Int64, Int64]:
    """The links of grow-diag-final-and (`preparing.symmetrization`), as those of `intersection`."""
    pairs = len(source.lengths)
    rows: list[tuple[list[Link], list[Link]]] = [([], []) for _ in range(pairs)]
    for pair, i, j in zip(*map(np.ndarray.tolist, forward.links(source, target)), strict=True):
        rows[pair][0].append((i, j))
    for pair, j, i in zip(*map(np.ndarray.tolist, backward.links(target, source)), strict=True):
        rows[pair][1].append((i, j))
    found = [(pair, i, j) for pair, both in enumerate(rows) for i, j in grow_diag_final_and(*both)]
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def sample(source: Words, target: Words, cells: int = CELLS) -> Int64:
    """The sentence pairs to learn from: all, or at equal distances as many as have so many cells."""
    sizes = source.lengths * target.lengths
    step = max(-(-int(sizes.sum()) // cells), 1)
    return np.arange(0, len(sizes), step)


def parts(count: int, size: int) -> Iterator[Int64]:
    """Sentence pairs, ``size`` at a time."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))
