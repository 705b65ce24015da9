"""What training asks of a model and of a batch: the loss, as sums over the tokens that are to be predicted.

How it is computed is the model's business (`models.network.token_loss` for translators), what it is computed from the
batch's; nothing here knows one of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from multihead.data.order import Array
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
