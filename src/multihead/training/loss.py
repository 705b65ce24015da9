"""What training asks of a model: the loss of a batch, as sums over its real target tokens.

How it is computed is the model's business (`models.network.token_loss` for translators); nothing here knows one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Int, Shaped
from torch import Tensor, nn

from multihead.data.batching import Batch
from multihead.kernels.linear_cross_entropy import Loss


@runtime_checkable
class Trainable(Protocol):
    """A sequence-to-sequence model that can be trained: one thing of its own, the rest from `torch.nn.Module`."""

    def loss(
        self,
        source: Shaped[Tensor, "batch source *features"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        *,
        smoothing: float,
    ) -> Loss:
        """The loss summed over the real tokens of ``target_output``; all that is random comes from PyTorch's generator.

        Args:
            source: ids, or real numbers, padded on the right.
            source_lengths: how many are real in each row.
            target_input: what stands before each token that is to be predicted.
            target_output: those tokens, padded on the right.
            smoothing: this share of a token's probability is spread over all.
        """

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As in `torch.nn.Module`: a shared parameter once."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As in `torch.nn.Module`."""

    def train(self, mode: bool = True) -> object:
        """As in `torch.nn.Module`."""

    def eval(self) -> object:
        """As in `torch.nn.Module`."""


Model = TypeVar("Model", bound=Trainable)


def sequence_loss(model: Trainable, batch: Batch, smoothing: float) -> Loss:
    """Sums of the loss over the real tokens of ``batch.target_output``: ``batch.target_tokens`` of them."""
    return model.loss(batch.source, batch.source_lengths, batch.target_input, batch.target_output, smoothing=smoothing)
