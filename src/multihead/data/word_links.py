"""Word alignments of pairs, and the tokens that they link.

An alignment links words, which are what white space separates; a model's tokens are parts of words. `WordNumbers` says
to which word each token belongs, from the bytes of the vocabulary's entries alone, so that links hold for every way of
cutting the words (BPE-dropout). `WordLinks` makes the links of a batch (`kernels.guided.Links`): each token of a target
word is linked to all tokens of the source words that the word is linked to, in equal shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from multihead.data.batching import Batch
from multihead.data.store import Int64
from multihead.kernels.guided import Links
from multihead.text.vocabulary import ends_word, starts_with_space

Found = tuple[Int64, Int64, Int64]
"""For each link: the pair's place in the batch, the source word and the target word, counted from 0."""


class WordNumbers:
    """The word of each token of a text.

    Args:
        entries: the bytes of each entry of the vocabulary. An entry that begins with white space begins a word, and so
            does what follows one that ends with it, as those of a list of pieces do (`text.word_pieces`), or what is
            the first text.
    """

    def __init__(self, entries: Sequence[bytes]) -> None:
        self._begins = np.array([*starts_with_space(entries)])
        self._ends = np.array([ends_word(entry) for entry in entries])
        self._spelled = np.array([bool(entry) for entry in entries])
        self._blank = np.array([entry.decode("utf-8", "replace").isspace() for entry in entries])

    def __call__(self, ids: Int64, lengths: Int64) -> Int64:
        """The number of the word of each token, from 0; -1 before the first word.

        Args:
            ids: the tokens of texts, one text after the other.
            lengths: number of tokens of each text.
        """
        begins = self._begins[ids]
        if len(ids):
            starts = np.cumsum(lengths) - lengths
            follows = np.append(begins[1:], False)
            follows[starts[1:][lengths[1:] > 0] - 1] = False  # the next token is one of the next text
            begins = begins & ~(self._blank[ids] & follows)  # of several spaces, the last one begins the word
            spelled, firsts = self._spelled[ids], starts[lengths > 0]
            after = np.append(False, self._ends[ids][:-1])  # the token before ends a word
            after[firsts] = False
            passed = np.append(0, np.cumsum(spelled)[:-1])  # tokens with text before each, in all texts
            first = passed == np.repeat(passed[firsts], lengths[lengths > 0])
            begins |= spelled & ~self._blank[ids] & (after | first)
        total = np.cumsum(begins)
        before = np.concatenate(([0], total))[np.cumsum(lengths) - lengths]
        numbers: Int64 = total - np.repeat(before, lengths) - 1
        return numbers


class WordLinks:
    """The links of the pairs of a store.

    Args:
        find: the links of words of some pairs.
        source: numbers the words of sources.
        target: likewise of targets.
        weight: as in `Links`.
    """

    def __init__(self, find: Callable[[Int64], Found], source: WordNumbers, target: WordNumbers, weight: float) -> None:
        self._find, self._source, self._target, self._weight = find, source, target, weight

    def attached(self, batch: Batch) -> Batch:
        """A batch with the links of its tokens."""
        return replace(batch, links=self.of(batch))

    def of(self, batch: Batch) -> Links:
        """The links between the tokens of a batch; its end symbols have none."""
        rows, from_words, to_words = self._find(batch.indices)
        sources = _Side(self._source, batch.source.numpy(), batch.source_lengths.numpy())
        targets = _Side(self._target, batch.target_output.numpy(), batch.target_lengths.numpy())
        places, sizes = zip(sources.tokens(rows, from_words), targets.tokens(rows, to_words), strict=True)
        counts = sizes[0] * sizes[1]  # token links of each word link
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        width = np.repeat(sizes[0], counts)
        source = np.repeat(places[0], counts) + within % np.maximum(width, 1)
        target = np.repeat(places[1], counts) + within // np.maximum(width, 1)
        shares = 1.0 / np.bincount(target, minlength=1)[target] if len(target) else np.empty(0)
        return Links(
            torch.from_numpy(targets.rows[target]),
            torch.from_numpy(targets.positions[target]),
            torch.from_numpy(sources.positions[source]),
            torch.from_numpy(shares.astype(np.float32)),
            self._weight,
        )


class _Side:
    """The tokens of words of one side of a batch, without end symbols."""

    def __init__(self, numbers: WordNumbers, padded: npt.NDArray[Any], ended: Int64) -> None:
        lengths = ended - 1
        real = np.arange(padded.shape[1]) < lengths[:, None]
        self.rows, self.positions = real.nonzero()
        words = numbers(padded[real], lengths)
        self._span = int(words.max(initial=0)) + 2
        # Ascending: rows are, and words within a row. Tokens before the first word have a key of their own.
        self._keys = self.rows * self._span + words + 1

    def tokens(self, rows: Int64, words: Int64) -> tuple[Int64, Int64]:
        """The place of the first token of some words, and how many tokens they have: 0 for words that are not there."""
        wanted = rows * self._span + np.minimum(words, self._span) + 1
        first = np.searchsorted(self._keys, wanted)
        sizes = np.searchsorted(self._keys, wanted, side="right") - first
        return first, np.where(words + 1 < self._span, sizes, 0)
