"""The batches that a BERT is pre-trained on: rows of `sentence_pairs` with some words hidden, as padded tensors.

Which rows go together is for `order` to say, what is hidden for `corruption`; both are functions of seed and epoch. So
a run that goes on from a position sees what it would have seen, and the position is found by making the plan of its
epoch, however many batches stand before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from multihead.data.bert.corruption import Corruption
from multihead.data.bert.sentence_pairs import Example, SentencePairs
from multihead.data.order import Array, batch_order
from multihead.errors import InputError


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Rows with hidden words; padding stands on the right. Its ``inputs`` are those of `models.bert.network.Bert.loss`.

    Attributes:
        tokens: ids as they are shown.
        lengths: real tokens of each row.
        segments: 0 up to the end of the first passage, 1 in the second.
        chosen: where the word is to be told.
        originals: the ids that stand there.
        follows: 1 = the second passage goes on where the first ends, 0 = it does not, -1 = there is none.
        indices: the sentence of the store with which each row begins.
        target_tokens: how many words are to be told.
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
        """What `Bert.loss` reads."""
        return self.tokens, self.lengths, self.segments, self.chosen, self.originals, self.follows

    @property
    def source_tokens(self) -> int:
        """Real tokens that are read."""
        return int(self.lengths.sum())

    @property
    def cells(self) -> int:
        """Rows times width."""
        return self.tokens.numel()

    def part(self, start: int, stop: int) -> MaskedBatch:
        """Some rows, without the columns that are padding in all of them."""
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
    """The batches of one epoch, each made when it is asked for.

    Args:
        pairs: where rows come from.
        corruption: what is hidden of them.
        epoch: from 0.
        batch_tokens: the most cells of a batch: rows times width.
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
        return self._collated(self._order[place])

    @property
    def largest(self) -> MaskedBatch:
        """The one with most cells."""
        return self[self._cells.index(max(self._cells))]

    def _collated(self, numbers: Array) -> MaskedBatch:
        """These rows of the epoch; their numbers decide what is hidden of them."""
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
    """Batches without end, epoch after epoch; only ``position`` has to be remembered.

    Args:
        pairs: where rows come from.
        corruption: what is hidden of them.
        batch_tokens: the most cells of a batch.
        position: epoch and place in the epoch of the first batch to be taken.

    Raises:
        InputError: the epoch has no batch at that place.
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
        """Epoch and place in the epoch, both from 0, of the batch that `take` would give next."""
        return self._epoch, self._place

    def take(self) -> MaskedBatch:
        """The next batch; moves the position on by one."""
        batch = self._batches[self._place]
        self._place += 1
        if self._place == len(self._batches):
            self._epoch, self._place = self._epoch + 1, 0
            self._batches = Batches(*self._rows, self._epoch, self._batch_tokens)
        return batch
