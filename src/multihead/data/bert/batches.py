"""Masked batches, on which a BERT is pre-trained (Devlin et al. 2019).

Sections 3.1 and A.1: 15% of the tokens of a row are chosen to be predicted. Of those, 80% are shown as [MASK], 10% as
another entry of the vocabulary, and 10% unchanged, so that the model cannot rely on visible words being right. Special
symbols are neither chosen nor drawn. The choice is a function of seed, epoch and example: it changes from epoch to
epoch, but not with the batch.

Rows come from `sentence_pairs`, their grouping from `data.order`. All of it is a function of seed and epoch, so a
stream started at a position continues as if it had never stopped; the position is found from the order of its epoch
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from multihead.data.bert.sentence_pairs import Example, SentencePairs
from multihead.data.order import Array, batch_order
from multihead.errors import ConfigurationError, InputError

Booleans = npt.NDArray[np.bool_]

SHARE, HIDDEN, OTHER = 0.15, 0.8, 0.1
"""Share of tokens that are chosen; of the chosen, the shares shown as [MASK] and as other entries."""


class Corrupted(NamedTuple):
    """A row with hidden words."""

    shown: Array
    """The ids that the model reads."""
    chosen: Booleans
    """Where the model predicts the original id."""


class Corruption:
    """Hides random words.

    Args:
        hidden_id: the symbol [MASK].
        special: ids that are never chosen and never drawn.
        begins_word: for each entry of the vocabulary, whether it begins a word.
        seed: seed of the random numbers.
        share: share of the tokens of a row that are chosen, rounded, but at least one token.
        whole_words: choose whole words, as many as fit into the share; how a token is shown is still drawn for each
            token.

    Raises:
        ConfigurationError: the share is not in (0, 1], or the vocabulary has no words.
    """

    def __init__(
        self,
        hidden_id: int,
        special: Sequence[int],
        begins_word: Booleans,
        seed: int,
        *,
        share: float = SHARE,
        whole_words: bool = False,
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigurationError(f"the share of words to be hidden is {share}; expected above 0 and at most 1")
        self.hidden_id, self.seed, self.share, self.whole_words = hidden_id, seed, share, whole_words
        self._begins_word = begins_word
        self._is_word = np.ones(len(begins_word), np.bool_)
        self._is_word[list(special)] = False
        self._words = self._is_word.nonzero()[0]
        if not len(self._words):
            raise ConfigurationError("a vocabulary of special symbols alone; expected words to hide")

    def corrupt(self, ids: Array, epoch: int, example: int) -> Corrupted:
        """Hide words of one row.

        Args:
            ids: the row with its special symbols, without padding.
            epoch: number of the epoch, from 0.
            example: number of the row within the epoch.

        Raises:
            InputError: the row has no word.
        """
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(epoch, example))))
        chosen = self._choose(ids, random)
        draws = random.random(len(chosen))
        shown = ids.copy()
        shown[chosen[draws < HIDDEN]] = self.hidden_id
        others = chosen[(draws >= HIDDEN) & (draws < HIDDEN + OTHER)]
        shown[others] = self._words[random.integers(0, len(self._words), len(others))]
        mask = np.zeros(len(ids), np.bool_)
        mask[chosen] = True
        return Corrupted(shown, mask)

    def _choose(self, ids: Array, random: np.random.Generator) -> Array:
        """The places of the chosen tokens."""
        candidates = self._is_word[ids].nonzero()[0]
        if not len(candidates):
            raise InputError("a row without words; expected at least one between its symbols")
        wanted = max(1, round(self.share * len(candidates)))
        if not self.whole_words:
            return random.permutation(candidates)[:wanted]
        # A word also begins after every special symbol.
        begins = self._begins_word[ids[candidates]] | (np.diff(candidates, prepend=-2) > 1)
        words = np.split(candidates, begins.nonzero()[0][1:])
        shuffled = [words[place] for place in random.permutation(len(words))]
        return np.concatenate(_take_fitting(shuffled, wanted))


def _take_fitting(words: list[npt.NDArray[Any]], room: int) -> list[npt.NDArray[Any]]:
    """Take words in order, skipping those that exceed the remaining room; if none fits, the shortest."""
    taken = []
    for word in words:
        if len(word) <= room:
            taken.append(word)
            room -= len(word)
    return taken or [min(words, key=len)]


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Rows with hidden words, padded on the right. Its ``inputs`` are those of `models.bert.network.Bert.loss`.

    Attributes:
        tokens: ids as shown to the model.
        lengths: number of tokens of each row without padding.
        segments: 0 up to the end of the first passage, 1 in the second.
        chosen: where the original id is predicted.
        originals: the original ids.
        follows: 1 = the second passage continues the first, 0 = it does not, -1 = there is no second passage.
        indices: the sentence of the store with which each row begins.
        target_tokens: number of predicted tokens.
    """

    tokens: Int64[Tensor, "batch time"]
    lengths: Int64[Tensor, " batch"]
    segments: Int64[Tensor, "batch time"]
    chosen: Bool[Tensor, "batch time"]
    originals: Int64[Tensor, "batch time"]
    follows: Int64[Tensor, " batch"]
    indices: Array
    target_tokens: int

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments of `Bert.loss`."""
        return self.tokens, self.lengths, self.segments, self.chosen, self.originals, self.follows

    @property
    def source_tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.lengths.sum())

    @property
    def cells(self) -> int:
        """Rows times width, padding included."""
        return self.tokens.numel()

    def part(self, start: int, stop: int) -> MaskedBatch:
        """The rows from ``start`` to ``stop``, without columns that are padding in all of them."""
        rows, width = slice(start, stop), int(self.lengths[start:stop].max())
        return replace(
            self,
            tokens=self.tokens[rows, :width],
            lengths=self.lengths[rows],
            segments=self.segments[rows, :width],
            chosen=self.chosen[rows, :width],
            originals=self.originals[rows, :width],
            follows=self.follows[rows],
            indices=self.indices[rows],
            target_tokens=int(self.chosen[rows].sum()),
        )

    def to(self, device: torch.device | str) -> MaskedBatch:
        """The same batch with its tensors on ``device``."""
        tokens, lengths, segments, chosen, originals, follows = (tensor.to(device) for tensor in self.inputs)
        return replace(
            self,
            tokens=tokens,
            lengths=lengths,
            segments=segments,
            chosen=chosen,
            originals=originals,
            follows=follows,
        )


class Batches:
    """The batches of one epoch, each built when it is indexed.

    Args:
        pairs: source of the rows.
        corruption: hides their words.
        epoch: number of the epoch, from 0.
        batch_tokens: maximum size of a batch: rows times width.
    """

    def __init__(self, pairs: SentencePairs, corruption: Corruption, epoch: int, batch_tokens: int) -> None:
        self._pairs, self._corruption, self._epoch = pairs, corruption, epoch
        self._examples: list[Example] = pairs.examples(epoch)
        lengths = np.array([pairs.length(example) for example in self._examples])
        self._order = batch_order(lengths, lengths, batch_tokens, pairs.seed, epoch)
        self._cells = [len(numbers) * int(lengths[numbers].max()) for numbers in self._order]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> MaskedBatch:
        return self._collate(self._order[place])

    @property
    def largest(self) -> MaskedBatch:
        """The batch with the most cells."""
        return self[self._cells.index(max(self._cells))]

    def _collate(self, numbers: Array) -> MaskedBatch:
        """The batch of the rows with these numbers in the epoch, which also seed their corruption."""
        examples = [self._examples[number] for number in numbers.tolist()]
        lengths = [self._pairs.length(example) for example in examples]
        size = (len(examples), max(lengths))
        originals = np.full(size, self._pairs.symbols.pad, np.int64)
        tokens, segments, chosen = originals.copy(), np.zeros(size, np.int64), np.zeros(size, np.bool_)
        for row, (example, number) in enumerate(zip(examples, numbers.tolist(), strict=True)):
            ids, front = self._pairs.row(example)
            place = slice(0, len(ids))
            originals[row, place] = ids
            tokens[row, place], chosen[row, place] = self._corruption.corrupt(ids, self._epoch, number)
            segments[row, front : len(ids)] = 1
        return MaskedBatch(
            tokens=torch.from_numpy(tokens),
            lengths=torch.tensor(lengths),
            segments=torch.from_numpy(segments),
            chosen=torch.from_numpy(chosen),
            originals=torch.from_numpy(originals),
            follows=torch.tensor([example.follows for example in examples]),
            indices=np.array([example.first[0] for example in examples]),
            target_tokens=int(chosen.sum()),
        )


class MaskedStream:
    """An endless stream of batches, epoch after epoch; its only state is ``position``.

    Args:
        pairs: source of the rows.
        corruption: hides their words.
        batch_tokens: maximum size of a batch: rows times width.
        position: epoch and index within the epoch of the first batch.

    Raises:
        InputError: the epoch has no batch at that position.
    """

    def __init__(
        self, pairs: SentencePairs, corruption: Corruption, batch_tokens: int, position: tuple[int, int] = (0, 0)
    ) -> None:
        self._rows, self._batch_tokens = (pairs, corruption), batch_tokens
        self._epoch, self._place = position
        self._batches = Batches(*self._rows, self._epoch, self._batch_tokens)
        if not 0 <= self._place < len(self._batches):
            raise InputError(
                f"no batch {self._place}, counted from 0: epoch {self._epoch} has {len(self._batches)}; the position "
                "was saved with other data or another batch_tokens; use those again"
            )

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index within the epoch, both from 0, of the next batch."""
        return self._epoch, self._place

    def take(self) -> MaskedBatch:
        """The next batch; advances the position by one."""
        batch = self._batches[self._place]
        self._place += 1
        if self._place == len(self._batches):
            self._epoch, self._place = self._epoch + 1, 0
            self._batches = Batches(*self._rows, self._epoch, self._batch_tokens)
        return batch
