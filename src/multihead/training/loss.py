"""The loss of a batch: label-smoothed cross-entropy a token, padding left out.

Anything can be trained here that gives states before its output projection: see `Trainable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.data.batching import Batch
from multihead.kernels.linear_cross_entropy import Loss, linear_cross_entropy


@runtime_checkable
class Trainable(Protocol):
    """What training asks of a sequence-to-sequence model: two things of its own, the rest from `torch.nn.Module`."""

    output: nn.Linear
    """Projects states to the logits of the target vocabulary; has no bias."""

    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """The states from which the token after each target position is predicted."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As in `torch.nn.Module`: a shared parameter once."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As in `torch.nn.Module`."""

    def train(self, mode: bool = True) -> object:
        """As in `torch.nn.Module`."""

    def eval(self) -> object:
        """As in `torch.nn.Module`."""


Model = TypeVar("Model", bound=Trainable)


def sequence_loss(model: Trainable, batch: Batch, padding_id: int, smoothing: float) -> Loss:
    """Sums of the loss over the real tokens of ``batch.target_output``: ``batch.target_tokens`` of them."""
    states = model.hidden(batch.source, batch.source_lengths, batch.target_input)
    real = batch.target_output != padding_id
    return linear_cross_entropy(states[real], model.output.weight, batch.target_output[real], smoothing)
