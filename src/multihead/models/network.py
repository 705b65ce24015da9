"""What every translator's network offers, whatever it is made of: to training, to search, to pictures of attention.

Training asks for `Network.loss` alone; a search for `Network.start` and `Network.step` (`multihead.decoding.stepper`);
whoever draws attention for the weights of a forward pass. Which network a configuration makes is in
`models.architectures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.kernels.linear_cross_entropy import Loss, linear_cross_entropy
from multihead.models.initialize import keep_row_zero
from multihead.models.layers import Weights
from multihead.models.network_config import NetworkConfig


class AttentionWeights(NamedTuple):
    """Every layer's weights, first layer first, each ``[batch, heads, query, key]``; empty where a network has none."""

    encoder: tuple[Weights, ...]
    decoder: tuple[Weights, ...]
    cross: tuple[Weights, ...]


class Output(NamedTuple):
    """What a whole forward pass gives."""

    logits: Float[Tensor, "batch target vocab"]
    weights: AttentionWeights | None


class Network(nn.Module, ABC):
    """An encoder and a decoder whose states are projected to the target vocabulary."""

    config: NetworkConfig
    output: nn.Linear
    """Projects states to the logits of the target vocabulary; has no bias."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What `copy.deepcopy` and pickle end with: a copied parameter has lost its hook."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._guard_padding()

    def _tie_output(self, target: nn.Embedding) -> None:
        """Makes the target embedding the output projection, if the settings say so; the last step of a constructor."""
        if self.config.tie_output:
            self.output.weight = target.weight
        self._guard_padding()

    def _guard_padding(self) -> None:
        """A tied projection would train the padding row, which is nobody's embedding."""
        if self.config.tie_output:
            keep_row_zero(self.output.weight, self.config.padding_id)

    @property
    def max_positions(self) -> int | None:
        """Positions told apart: of a longer sentence the network does not see the whole order; None = no limit."""
        return None

    @abstractmethod
    def forward(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
        *,
        need_weights: bool = False,
    ) -> Output:
        """Logits of the token after each target position (teacher forcing), and all weights on request.

        Args:
            source: ids, padded on the right.
            source_lengths: real ids in each row.
            target: ids from the begin symbol on; padded on the right, where the logits mean nothing.
            need_weights: also return what attended to what.
        """

    @abstractmethod
    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """The states before the output projection: ``forward(...).logits == output(hidden(...))``."""

    def loss(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        *,
        smoothing: float,
    ) -> Loss:
        """Label-smoothed cross-entropy of each next token, summed over the real tokens of ``target_output``."""
        states = self.hidden(source, source_lengths, target_input)
        return token_loss(states, self.output.weight, target_output, self.config.padding_id, smoothing)

    @abstractmethod
    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> Any:
        """The state before anything is decoded, one row a sentence: a `multihead.decoding.stepper.State`."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, " rows"], state: Any) -> tuple[Float[Tensor, "rows vocab"], Any]:
        """Log-probabilities of the token after ``tokens``, which are each row's latest; and the state after them."""


def embeddings(config: NetworkConfig) -> tuple[nn.Embedding, nn.Embedding]:
    """E of source and target: one and the same, if the settings say so."""
    source = nn.Embedding(config.source_vocab, config.width, padding_idx=config.padding_id)
    if config.tie_embeddings:
        return source, source
    return source, nn.Embedding(config.target_vocab, config.width, padding_idx=config.padding_id)


def token_loss(
    states: Float[Tensor, "batch target width"],
    weight: Float[Tensor, "vocab width"],
    target_output: Int[Tensor, "batch target"],
    padding_id: int,
    smoothing: float,
) -> Loss:
    """Label-smoothed cross-entropy of ``softmax(states weight^T)``, summed over what is not padding."""
    real = target_output != padding_id
    return linear_cross_entropy(states[real], weight, target_output[real], smoothing)
