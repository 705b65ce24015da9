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
from typing import TypeVar

import torch

from multihead.errors import SurroundingsError
from multihead.training.loss import Examples

T = TypeVar("T")


def pieces(batch: Examples, room: int | None) -> list[Examples]:
    """The rows of a batch in order, in halves of halves until each has at most ``room`` cells, or is a single row."""
    rows = len(batch)
    if room is None or batch.cells <= room or rows == 1:
        return [batch]
    middle = rows // 2
    return [*pieces(batch.part(0, middle), room), *pieces(batch.part(middle, rows), room)]


def less_room(batches: Sequence[Examples], room: int | None) -> int | None:
    """Half of what the largest piece of ``batches`` has under ``room``; None where all are single rows already."""
    found = [piece for batch in batches for piece in pieces(batch, room)]
    cut = [piece.cells for piece in found if len(piece) > 1]
    return max(cut) // 2 if cut else None


def with_room(
    attempt: Callable[[int | None], T], batches: Sequence[Examples], room: int | None, name: Callable[[Examples], str]
) -> tuple[T, int | None]:
    """``attempt(room)``, again with less and less room until it fits; what it gave, and the room it was given.

    Args:
        attempt: works on ``batches``; runs out of memory or does not, and leaves nothing half done.
        batches: what is to be cut; of several processes the parts of all, so that all come to the same room.
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
            longest = max(batches, key=lambda batch: batch.cells / len(batch))
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
