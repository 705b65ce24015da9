"""What training asks of a model and of a batch: the loss, as sums over the tokens that are to be predicted.

How it is computed is the model's business (`models.network.token_loss` for translators), what it is computed from the
batch's; nothing here knows one of either.

Batches that do not fit into memory: taken in pieces of rows, one after the other, to the same gradient.

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

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from multihead.data.order import Array
from multihead.errors import SurroundingsError
from multihead.kernels.linear_cross_entropy import Loss

Own = TypeVar("Own")  # typing.Self, which the shape checker does not take


@runtime_checkable
class Examples(Protocol):
    """A batch, as training sees it: rows that do not know each other. `data.batching.Batch` is a translator's."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the model's ``loss`` reads, in its order."""

    @property
    def target_tokens(self) -> int:
        """What is to be predicted: the loss is a mean over so many."""

    @property
    def source_tokens(self) -> int:
        """Real tokens that are read."""

    @property
    def indices(self) -> Array:
        """Which examples of the store these are, one a row."""

    @property
    def cells(self) -> int:
        """The size of a batch in memory: its tokens, padding included."""

    def __len__(self) -> int:
        """Rows."""

    def part(self: Own, start: int, stop: int) -> Own:
        """Some rows."""

    def to(self: Own, device: torch.device | str) -> Own:
        """The same batch with its tensors on ``device``."""


@runtime_checkable
class Trainable(Protocol):
    """A model that can be trained: one thing of its own, the rest from `torch.nn.Module`."""

    @property
    def loss(self) -> Callable[..., Loss]:
        """``loss(*inputs, smoothing)``: summed over what is to be predicted; its randomness is PyTorch's generator's.

        ``inputs`` are those of its batches (`Examples.inputs`): of a sequence-to-sequence model the source, its
        lengths, what stands before each token that is to be predicted, and these tokens. The share ``smoothing`` of a
        token's probability is spread over all.
        """

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As in `torch.nn.Module`: a shared parameter once."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As in `torch.nn.Module`."""

    def modules(self) -> Iterator[nn.Module]:
        """As in `torch.nn.Module`: itself and all parts."""

    def train(self, mode: bool = True) -> object:
        """As in `torch.nn.Module`."""

    def eval(self) -> object:
        """As in `torch.nn.Module`."""


Model = TypeVar("Model", bound=Trainable)


def sequence_loss(model: Trainable, batch: Examples, smoothing: float) -> Loss:
    """Sums of the loss over what is to be predicted: ``batch.target_tokens`` of it."""
    return model.loss(*batch.inputs, smoothing=smoothing)


T = TypeVar("T")


def split_to_fit(batch: Examples, room: int | None) -> list[Examples]:
    """The rows of a batch in order, in halves of halves until each has at most ``room`` cells, or is a single row."""
    rows = len(batch)
    if room is None or batch.cells <= room or rows == 1:
        return [batch]
    middle = rows // 2
    return [*split_to_fit(batch.part(0, middle), room), *split_to_fit(batch.part(middle, rows), room)]


def halved_limit(batches: Sequence[Examples], room: int | None) -> int | None:
    """Half of what the largest piece of ``batches`` has under ``room``; None where all are single rows already."""
    found = [piece for batch in batches for piece in split_to_fit(batch, room)]
    cut = [piece.cells for piece in found if len(piece) > 1]
    return max(cut) // 2 if cut else None


def retry_in_pieces(
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
        room = halved_limit(batches, room)
        if room is None:
            longest = max(batches, key=lambda batch: batch.cells / len(batch))
            raise SurroundingsError(
                f"a single pair does not fit into memory: {name(longest)}. Train a smaller model, leave out long pairs "
                "(max_tokens) or free memory; nothing that was saved is lost"
            )


def can_probe_memory(device: str) -> bool:
    """Whether trying a batch says that it fits: on a GPU; a processor's memory is given out before it is there."""
    return device.startswith("cuda")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory was too small, on a GPU or (where the system says so at all) on a processor."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
