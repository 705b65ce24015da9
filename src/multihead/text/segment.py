"""BPE-dropout: a new segmentation of the same text in each epoch.

Provilkov, Emelianenko and Voita 2020, section 3, algorithm 1. A piece of text starts as characters. At every step each
possible merge is dropped with probability p; of the rest, the merge learned first is applied, at its leftmost place; a
piece is finished when no merge is left. p = 0 is ordinary byte-pair encoding, p = 1 keeps the characters.

The ``tokenizers`` library implements this too, but its random numbers cannot be seeded. Here they are a function of
seed, epoch, side, key of the sentence, step and place in the sentence only: the other sentences of a batch, their order
and the number of processes make no difference.

The tokenizer cuts texts into pieces and spells characters without entries in bytes. Nothing of this is written to
tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from multihead.errors import ConfigurationError, InputError
from multihead.text.backwards import BackwardsTokenizer, forwards
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer, WrappedTokenizer
from multihead.text.user_symbols import SymbolTokenizer
from multihead.text.vocabulary import FIRST_CHARACTER, Parts

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_STEP = _GOLDEN << 32
"""Counters have the place in the sentence in their lower 32 bits and the step in the upper ones."""
_WORD = (1 << 64) - 1
_LONGEST_PIECE = 1000
"""Maximum number of characters that are merged as one piece. A step merges one pair of each piece and looks at all of
its pairs, so the time grows with the square of a piece's length; a longer one is cut."""
_NEVER = 1 << 31
"""The rank of a pair without a merge."""


def has_merges(tokenizer: Tokenizer) -> bool:
    """Whether a `Segmenter` can draw segmentations of this vocabulary."""
    text = _without_languages(forwards(tokenizer))
    return tokenizer.factors <= 1 and isinstance(text, SymbolTokenizer | BytePairTokenizer)


def _without_languages(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer of the text alone, whose ids are below those of the languages' symbols."""
    return tokenizer.inner if tokenizer.languages and isinstance(tokenizer, WrappedTokenizer) else tokenizer


class Segmenter:
    """Draws segmentations with BPE-dropout.

    Args:
        tokenizer: the tokenizer with the merges.
        dropout: p, the probability that a possible merge is dropped at a step; the paper uses 0.1.
        seed: seed of the random numbers, any integer.

    Raises:
        ConfigurationError: the dropout is not a probability.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float | int, seed: int) -> None:
        if not 0.0 <= dropout <= 1.0:
            raise ConfigurationError(f"bpe_dropout is {dropout}: it is a probability, from 0 to 1")
        if tokenizer.factors > 1:
            raise ConfigurationError("bpe_dropout would cut the pieces of source factors anew: leave it out")
        self._turned = tokenizer.turned if isinstance(tokenizer, BackwardsTokenizer) else None
        tokenizer = forwards(tokenizer)
        text = _without_languages(tokenizer)
        # Ids from here on are symbols of languages, which stay at the start of their sentence; 0 if there are none.
        self._symbols = 0 if text is tokenizer else len(text)
        tokenizer, extra = text, 0
        if isinstance(tokenizer, SymbolTokenizer):
            parts, extra = tokenizer.pairs.parts, len(tokenizer.symbols)
        elif isinstance(tokenizer, BytePairTokenizer):
            parts = tokenizer.parts
        else:
            raise ConfigurationError(
                "bpe_dropout needs a vocabulary of byte-pair merges that multihead learned, and this one came with a "
                "model of another program: leave bpe_dropout out"
            )
        self._tokenizer = tokenizer
        self._seed = seed
        self._threshold = round(dropout * 2**53)
        self._merges = _Merges(parts)
        self._characters = _Characters(parts, extra)

    def segment(self, ids: Sequence[Sequence[int]], keys: Sequence[int], epoch: int, side: int) -> list[list[int]]:
        """A new segmentation of each sentence, which `Tokenizer.decode` maps to the same text.

        Args:
            ids: the sentences, each encoded by `Tokenizer.encode`, without begin and end symbols.
            keys: identifies each sentence (its place in the store); equal keys draw equal random numbers.
            epoch: number of the epoch; every epoch draws other random numbers.
            side: 0 for the source, 1 for the target; equal texts on both sides draw different random numbers.

        Raises:
            InputError: the ids are not what this tokenizer makes of their text, or there is not one key per sentence.
        """
        if len(keys) != len(ids):
            raise InputError(f"got {len(ids)} sentences and {len(keys)} keys, expected one key for each")
        if not self._threshold:
            return [list(sentence) for sentence in ids]
        if self._turned is not None:
            found = self._segment_text(list(map(self._turned, ids)), keys, epoch, side)
            return list(map(self._turned, found))
        return self._segment_text(ids, keys, epoch, side)

    def _segment_text(
        self, ids: Sequence[Sequence[int]], keys: Sequence[int], epoch: int, side: int
    ) -> list[list[int]]:
        """The segmentation of sentences whose ids are in the order of the text."""
        if self._symbols:
            return self._keeping_symbols(ids, keys, epoch, side)
        return self._segment(ids, keys, epoch, side)

    def _keeping_symbols(
        self, ids: Sequence[Sequence[int]], keys: Sequence[int], epoch: int, side: int
    ) -> list[list[int]]:
        marks = [list(sentence[:1]) if sentence and sentence[0] >= self._symbols else [] for sentence in ids]
        rest = [sentence[len(mark) :] for mark, sentence in zip(marks, ids, strict=True)]
        return [[*mark, *cut] for mark, cut in zip(marks, self._segment(rest, keys, epoch, side), strict=True)]

    def _segment(self, ids: Sequence[Sequence[int]], keys: Sequence[int], epoch: int, side: int) -> list[list[int]]:
        tokens, piece, sentence = self._pieces(ids)
        symbols, token = self._characters.look_up(tokens)
        piece, sentence = _cut(piece[token]), sentence[token]
        starts = np.searchsorted(sentence, np.arange(len(ids)))
        place = np.arange(len(symbols)) - starts[sentence]
        streams = scramble(*(_words(part) for part in (self._seed, epoch, side)), _words(keys))
        counters = streams[sentence] + place.astype(np.uint64) * np.uint64(_GOLDEN)
        kept = merge_with_dropout(symbols, piece, counters, self._merges, self._threshold)
        lengths: list[int] = np.bincount(sentence[kept], minlength=len(ids)).tolist()
        flat = symbols[kept].tolist()
        return [flat[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]

    def _pieces(self, ids: Sequence[Sequence[int]]) -> tuple[Integers, Integers, Integers]:
        """The concatenated tokens, and for each the number of its piece over all sentences, and its sentence."""
        found = self._tokenizer.encode_pieces(self._tokenizer.decode_batch(ids))
        for number, (given, (standard, _)) in enumerate(zip(ids, found, strict=True), 1):
            if list(given) != standard:
                raise InputError(
                    f"sentence {number} of {len(ids)}: these ids are not what this tokenizer makes of their text: got "
                    f"{_shown(given)}, expected {_shown(standard)}; segment with the tokenizer that encoded them"
                )
        lengths = np.array([len(standard) for standard, _ in found], dtype=np.int64)
        sentence = np.repeat(np.arange(len(found)), lengths)
        tokens = np.array([i for standard, _ in found for i in standard], dtype=np.int64)
        within = np.array([number for _, numbers in found for number in numbers], dtype=np.int64)
        new = np.ones(len(tokens), dtype=np.int64)
        new[1:] = (within[1:] != within[:-1]) | (sentence[1:] != sentence[:-1])
        return tokens, np.cumsum(new) - 1, sentence


class _Merges:
    """The merges as a sorted table, in which many pairs are looked up at once."""

    def __init__(self, parts: Parts) -> None:
        ids = {token: index for index, token in enumerate(parts.vocabulary)}
        self._size = len(ids)
        table = {
            ids[left] * self._size + ids[right]: (rank, ids[left + right])
            for rank, (left, right) in enumerate(parts.merges)
        }
        rows = sorted((pair, *merge) for pair, merge in table.items())
        # The last row is larger than any pair, so that every search ends within the table.
        columns = np.array([*rows, (np.iinfo(np.int64).max, _NEVER, 0)], dtype=np.int64).T
        self._pairs, self._ranks, self._results = (np.ascontiguousarray(column) for column in columns)

    def look_up(self, left: Integers, right: Integers) -> tuple[Integers, Integers]:
        """The rank of each pair's merge (`_NEVER` if there is none), and the id of its result."""
        pairs = left * self._size + right
        row = np.searchsorted(self._pairs, pairs)
        return np.where(self._pairs[row] == pairs, self._ranks[row], _NEVER), self._results[row]


class _Characters:
    """The characters of all entries, as concatenated ids; each of ``extra`` user-defined symbols is one of its own."""

    def __init__(self, parts: Parts, extra: int) -> None:
        ids = {token: index for index, token in enumerate(parts.vocabulary)}
        spelled = [
            [ids.get(character, index) for character in token] if index >= FIRST_CHARACTER else [index]
            for index, token in enumerate(parts.vocabulary)
        ]
        spelled += [[len(ids) + number] for number in range(extra)]
        self._flat = np.array([character for entry in spelled for character in entry], dtype=np.int64)
        self._counts = np.array([len(entry) for entry in spelled], dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts

    def look_up(self, tokens: Integers) -> tuple[Integers, Integers]:
        """The characters of some tokens, and for each the index of its token."""
        counts = self._counts[tokens]
        token = np.repeat(np.arange(len(tokens)), counts)
        first = self._starts[tokens] - (np.cumsum(counts) - counts)
        return self._flat[first[token] + np.arange(len(token))], token


def _cut(piece: Integers) -> Integers:
    """Ascending numbers of pieces, such that none has more than `_LONGEST_PIECE` characters."""
    new = np.diff(piece, prepend=-1) != 0
    place = np.arange(len(piece))
    within = place - np.maximum.accumulate(np.where(new, place, 0))
    return np.cumsum(new | (within % _LONGEST_PIECE == 0)) - 1


def merge_with_dropout(
    symbols: Integers, piece: Integers, counters: Words, merges: _Merges, threshold: int
) -> NDArray[np.bool_]:
    """Merge the symbols of all pieces in parallel, in place; returns which places still hold a symbol.

    Args:
        symbols: the characters of all pieces, concatenated; afterwards, the ids at the places that still hold a symbol.
        piece: the number of each symbol's piece, ascending.
        counters: the first random counter of each place.
        merges: the possible merges.
        threshold: a merge is dropped if its random number, below 2^53, is below this.
    """
    size = len(symbols)
    alive = np.ones(size, dtype=np.bool_)
    # Linked list of places; an extra place at the end, in a piece of its own, precedes the first and follows the last.
    places = np.arange(size + 1)
    before, after = places - 1, np.minimum(places + 1, size)
    owner = np.append(piece, -1)
    # Rank and result of the merge of each place with the next one in its piece.
    rank, result = np.full((2, size), _NEVER, dtype=np.int64)
    inside = np.flatnonzero(owner[:size] == owner[1:])
    rank[inside], result[inside] = merges.look_up(symbols[inside], symbols[inside + 1])
    possible = inside[rank[inside] < _NEVER]
    step = 0
    while possible.size:
        numbers = scramble(counters[possible] + np.uint64(step * _STEP & _WORD)) >> np.uint64(11)
        kept = possible[numbers >= np.uint64(threshold)]
        if not kept.size:
            break
        # In each piece, the merge of lowest rank, and of those the leftmost.
        new = np.ones(kept.size, dtype=np.bool_)
        new[1:] = piece[kept][1:] != piece[kept][:-1]
        best = np.minimum.reduceat(rank[kept] << 32 | kept, np.flatnonzero(new)) & 0xFFFFFFFF
        joined = after[best]
        symbols[best] = result[best]
        alive[joined] = False
        after[best] = after[joined]
        before[after[joined]] = best
        rank[joined] = rank[best] = _NEVER
        # Look up the pairs on both sides of each new symbol.
        left, right = np.concatenate((before[best], best)), np.concatenate((best, after[best]))
        within = owner[left] == owner[right]
        left, right = left[within], right[within]
        rank[left], result[left] = merges.look_up(symbols[left], symbols[right])
        # A piece in which every possible merge was dropped is finished.
        unfinished = np.zeros(piece[-1] + 1, dtype=np.bool_)
        unfinished[piece[best]] = True
        possible = np.flatnonzero(rank < _NEVER)
        possible = possible[unfinished[piece[possible]]]
        step += 1
    return alive


def scramble(*parts: Words) -> Words:
    """Hash rows of words with the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    word: Words = np.zeros(1, dtype=np.uint64)
    for part in parts:
        word = (word ^ part) + np.uint64(_GOLDEN)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    return word


def _words(numbers: int | Sequence[int]) -> Words:
    """Integers of any magnitude and sign as 64-bit words."""
    row = [numbers] if isinstance(numbers, int) else numbers
    return np.array([number & _WORD for number in row], dtype=np.uint64)


def _shown(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''}]"
