"""Batches that do not fit into memory: taken in pieces of rows, one after the other, to the same gradient.

The loss of a batch is a sum over its rows, and rows do not talk (contract 4), so the gradients of its pieces add up to
its own. Equal with and without pieces are therefore the pairs of an update, the tokens it is divided by, the masks that
`kernels.random` draws (each is told where its rows stand in the whole batch), and so loss and gradient but for
rounding.
Not equal is what is drawn from PyTorch's own generator: dropout of attention weights, dropout on a GPU, positions that
a recurrent network draws; each piece draws for itself there, again as a function of seed, step, part and first row.

Which batches are cut stands in the state of the run (`RunState.room`), so a run that goes on from a checkpoint cuts the
same ones; what became known after it was written, memory has to say again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from multihead.data.batching import Batch
from multihead.errors import SurroundingsError

T = TypeVar("T")


def cells(batch: Batch) -> int:
    """The size of a batch: rows times the longer of its two widths, as `TrainingConfig.batch_tokens` counts."""
    return len(batch.source_lengths) * max(batch.source.shape[1], batch.target_input.shape[1])


def pieces(batch: Batch, room: int | None) -> list[Batch]:
    """The rows of a batch in order, in halves of halves until each has at most ``room`` cells, or is a single row."""
    rows = len(batch.source_lengths)
    if room is None or cells(batch) <= room or rows == 1:
        return [batch]
    middle = rows // 2
    return [*pieces(_rows(batch, 0, middle), room), *pieces(_rows(batch, middle, rows), room)]


def less_room(batches: Sequence[Batch], room: int | None) -> int | None:
    """Half of what the largest piece of ``batches`` has under ``room``; None where all are single rows already."""
    found = [piece for batch in batches for piece in pieces(batch, room)]
    cut = [cells(piece) for piece in found if len(piece.source_lengths) > 1]
    return max(cut) // 2 if cut else None


def with_room(
    attempt: Callable[[int | None], T], batches: Sequence[Batch], room: int | None, name: Callable[[Batch], str]
) -> tuple[T, int | None]:
    """``attempt(room)``, again with less and less room until it fits; what it gave, and the room it was given.

    Args:
        attempt: works on ``batches``; runs out of memory or does not, and leaves nothing half done.
        batches: what is to be cut.
        room: what is known to fit; None where nothing is known not to.
        name: says which pairs are in a batch.

    Raises:
        SurroundingsError: single pairs do not fit.
    """
    while True:
        try:
            return attempt(room), room
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what is next is of other sizes
        room = less_room(batches, room)
        if room is None:
            longest = max(batches, key=lambda batch: cells(batch) / len(batch.source_lengths))
            raise SurroundingsError(
                f"a single pair does not fit into memory: {name(longest)}. Train a smaller model, leave out long pairs "
                "(max_tokens) or free memory; nothing that was saved is lost"
            )


def probes(device: str) -> bool:
    """Whether trying a batch says that it fits: on a GPU; a processor's memory is given out before it is there."""
    return device.startswith("cuda")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory was too small, on a GPU or (where the system says so at all) on a processor."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _rows(batch: Batch, start: int, stop: int) -> Batch:
    """Some rows of a batch, without the columns that are padding in all of them."""
    place = slice(start, stop)
    source_lengths, target_lengths = batch.source_lengths[place], batch.target_lengths[place]
    source_width, target_width = int(source_lengths.max()), int(target_lengths.max())
    return replace(
        batch,
        source=batch.source[place, :source_width],
        source_lengths=source_lengths,
        target_input=batch.target_input[place, :target_width],
        target_output=batch.target_output[place, :target_width],
        target_lengths=target_lengths,
        target_tokens=int(target_lengths.sum()),
        indices=batch.indices[place],
    )
