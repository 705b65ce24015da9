"""Base class of translation networks: loss and stepping; initialization.

Training needs `Network.loss`; search needs `Network.start` and `Network.step` (`decoding.stepper`); plots of attention
need the weights of a forward pass. `bundle.build_network` makes the network that a configuration describes.

`initialize` draws the parameters of every network of this package:

    matrices            Xavier uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010)
    recurrent matrices  orthogonal, each gate separately (Saxe et al. 2014), in GRU and LSTM
    embeddings          N(0, 1/D), so that sqrt(D) E[x] has unit variance and tied logits start small; or Xavier
    padding row         zero; its gradient is dropped, so it stays zero
    biases              zero; the forget gate of an LSTM starts with a bias of 1 (Jozefowicz et al. 2015)
    norms               gain one, shift zero
    relative biases     zero; Shaw's vectors of distances Xavier uniform
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from multihead.attention import PackedLinear, RelativePositions
from multihead.attention.multihead import HeadNorm
from multihead.errors import ConfigurationError
from multihead.kernels.guided import Links
from multihead.kernels.linear import Loss, linear_cross_entropy
from multihead.kernels.soft_targets import SoftTargets
from multihead.models.config import NetworkConfig, TransformerConfig
from multihead.models.factors import FactoredEmbedding
from multihead.models.layers import Weights


class AttentionWeights(NamedTuple):
    """Attention weights per layer, each ``[batch, heads, query, key]``; empty if the network has no such attention."""

    encoder: tuple[Weights, ...]
    decoder: tuple[Weights, ...]
    cross: tuple[Weights, ...]


class Output(NamedTuple):
    """The result of a forward pass."""

    logits: Float[Tensor, "batch target vocab"]
    weights: AttentionWeights | None


class Network(nn.Module, ABC):
    """An encoder-decoder network with a projection to the target vocabulary."""

    config: NetworkConfig
    output: nn.Linear
    """Projection of states to logits."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called at the end of `copy.deepcopy` and unpickling, which lose the hooks of parameters."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.guard_padding()

    def _tie_output(self, target: nn.Embedding) -> None:
        """Share the target embedding with the output projection if the settings say so; constructors end with this."""
        if self.config.tie_output:
            self.output.weight = target.weight
        self.guard_padding()

    def guard_padding(self) -> None:
        """Keep the padding row zero, which a tied output projection would train."""
        if self.config.tie_output and self.output.weight.requires_grad:
            keep_row_zero(self.output.weight, self.config.padding_id)

    def zero_rows(self) -> list[tuple[Tensor, int]]:
        """The rows of weights that stay zero, which `keep_row_zero` guards in weights that are not divided."""
        return [(self.output.weight, self.config.padding_id)] if self.config.tie_output else []

    @property
    def max_positions(self) -> int | None:
        """Number of positions that the network distinguishes; None = no limit."""
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
        """Logits of the token after each target position (teacher forcing), and attention weights on request.

        Args:
            source: ids, padded on the right.
            source_lengths: real ids in each row.
            target: ids from the begin symbol on; padded on the right, where the logits are undefined.
            need_weights: also return the attention weights.
        """

    @abstractmethod
    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """The input of the output projection: ``forward(...).logits == output(hidden(...))``."""

    def loss(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        soft: SoftTargets | None = None,
        weights: Float[Tensor, " batch"] | None = None,
        links: Links | None = None,
        *,
        smoothing: float,
    ) -> Loss:
        """Label-smoothed cross-entropy of each next token, summed over the real tokens of ``target_output``.

        Args:
            source: ids, padded on the right.
            source_lengths: real ids in each row.
            target_input: the begin symbol, then ids.
            target_output: ids, then the end symbol.
            soft: a row for each real token, sentence after sentence.
            weights: by what the loss of each sentence is multiplied.
            links: the alignment that a head of the network learns (`kernels.guided`).
            smoothing: label smoothing.

        Raises:
            ConfigurationError: links for a network that has no head to learn them.
        """
        if links is not None:
            raise ConfigurationError(
                "guided alignment needs a Transformer with an alignment_layer; train without links"
            )
        states = self.hidden(source, source_lengths, target_input)
        return token_loss(states, self.output, target_output, self.config.padding_id, smoothing, soft, weights)

    def states_at(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
        real: Bool[Tensor, "batch target"],
    ) -> Float[Tensor, "tokens width"]:
        """`hidden` at the real positions of the target, row after row; in each row they come before the padding."""
        return self.hidden(source, source_lengths, target)[real]

    @abstractmethod
    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> Any:
        """The state before the first step, with one row per sentence: a `decoding.stepper.State`."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, " rows"], state: Any) -> tuple[Float[Tensor, "rows vocab"], Any]:
        """Log-probabilities of the next token of each row, whose last token is in ``tokens``; and the next state."""


def build_embeddings(config: NetworkConfig) -> tuple[nn.Embedding | FactoredEmbedding, nn.Embedding]:
    """The embeddings of source and target; one module if they are tied."""
    if isinstance(config, TransformerConfig) and config.factors > 1:
        factored = FactoredEmbedding(config.source_vocab, config.factors, config.width, config.padding_id)
        return factored, nn.Embedding(config.target_vocab, config.width, padding_idx=config.padding_id)
    source = nn.Embedding(config.source_vocab, config.width, padding_idx=config.padding_id)
    if config.tie_embeddings:
        return source, source
    return source, nn.Embedding(config.target_vocab, config.width, padding_idx=config.padding_id)


def token_loss(
    states: Float[Tensor, "batch target width"],
    output: nn.Linear,
    target_output: Int[Tensor, "batch target"],
    padding_id: int,
    smoothing: float,
    soft: SoftTargets | None = None,
    weights: Float[Tensor, " batch"] | None = None,
) -> Loss:
    """Label-smoothed cross-entropy of ``softmax(output(states))``, summed over the tokens that are not padding.

    ``weights`` multiply the loss of each row.
    """
    real = target_output != padding_id  # [batch, target]; indexing with it gives [tokens, width]
    factors = per_token(weights, real)
    return linear_cross_entropy(states[real], output.weight, target_output[real], smoothing, output.bias, soft, factors)


def per_token(
    weights: Float[Tensor, " batch"] | None, real: Bool[Tensor, "batch target"]
) -> Float[Tensor, " tokens"] | None:
    """The weight of each real token, which is that of its sentence; None without weights."""
    return None if weights is None else weights[:, None].expand_as(real)[real]


def initialize(model: nn.Module, embeddings: Literal["normal", "xavier"] = "normal") -> None:
    """Draw every parameter of ``model`` from PyTorch's current generator.

    Args:
        model: initialized layer by layer, in the order of ``model.modules()``.
        embeddings: distribution of all embeddings, including learned positions.
    """
    for module in model.modules():
        if isinstance(module, (PackedLinear, RelativePositions)):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            if embeddings == "xavier":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.RMSNorm, HeadNorm)):
            nn.init.ones_(module.weight)
        elif isinstance(module, (nn.GRU, nn.LSTM)):
            _initialize_recurrent(module)


@torch.no_grad()
def _initialize_recurrent(layers: nn.GRU | nn.LSTM) -> None:
    """Initialize each gate separately: PyTorch stores the gates as one matrix, whose fan-out would be too large."""
    for name, parameter in layers.named_parameters():
        gates = parameter.split(layers.hidden_size)  # type: ignore[no-untyped-call]
        if name.startswith("weight_ih"):
            for gate in gates:
                nn.init.xavier_uniform_(gate)
        elif name.startswith("weight_hh"):
            for gate in gates:
                nn.init.orthogonal_(gate)
        else:
            parameter.zero_()
            if isinstance(layers, nn.LSTM) and name.startswith("bias_ih"):
                gates[1].fill_(1.0)


def keep_row_zero(weight: Tensor, row: int) -> None:
    """Drop the gradient of one row, so that a zero row stays zero.

    `torch.nn.Embedding` drops the gradient of its padding row, but not the one from an output projection that shares
    the matrix. The hook is lost when the parameter is copied.
    """
    weight.register_post_accumulate_grad_hook(partial(_drop_gradient, row=row))  # type: ignore[no-untyped-call]


def _drop_gradient(weight: Tensor, row: int) -> None:
    assert weight.grad is not None
    weight.grad[row].zero_()
