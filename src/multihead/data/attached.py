"""Batches with what belongs to their pairs besides the text.

Soft targets of teachers, weights and word links are attached to the batches of a stream; where they come from is up to
`preparing.teachers`, `preparing.weights` and `preparing.alignments`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from multihead.data.ahead import Stream
from multihead.data.batching import Batch, Portion
from multihead.data.order import Array

Attach = Callable[[Batch], Batch]
"""Adds something to a batch, by its pairs (`Batch.indices`)."""


def attached(batch: Batch, attach: Sequence[Attach]) -> Batch:
    """A batch with everything that is attached, one after the other."""
    for add in attach:
        batch = add(batch)
    return batch


class AttachedStream:
    """The batches of another stream, with what is attached to them.

    Args:
        stream: the batches.
        attach: what adds something, one after the other.
        divisor: `Batch.divisor` of the batch of some pairs as they are stored, if weights are attached.
    """

    def __init__(
        self, stream: Stream, attach: Sequence[Attach], divisor: Callable[[Array], float] | None = None
    ) -> None:
        self._stream, self._attach, self._divisor = stream, attach, divisor

    @property
    def position(self) -> tuple[int, int]:
        """As `BatchStream.position`."""
        return self._stream.position

    def take(self) -> Batch:
        """The next batch."""
        return attached(self._stream.take(), self._attach)

    def take_portion(self, rank: int, size: int) -> Portion:
        """As `BatchStream.take_portion`."""
        portion = self._stream.take_portion(rank, size)
        divisor = None
        if self._divisor is not None and portion.tokens is not None:
            divisor = self._divisor(portion.indices)
        return replace(portion, rows=attached(portion.rows, self._attach), divisor=divisor)
