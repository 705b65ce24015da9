"""Initial values of a network's parameters, in one place.

every matrix        Xavier uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010)
of a state's past   orthogonal, each gate by itself (Saxe et al. 2014), in GRU and LSTM
embeddings          N(0, 1/D), so that sqrt(D) E[x] has unit variance and tied logits start small; or Xavier too
padding row         zero, and it stays zero: its gradient is never used
biases, norms       zero; one and zero; an LSTM forgets with a bias of 1 (Jozefowicz et al. 2015)

What every translator's network offers, whatever it is made of: to training, to search, to pictures of attention.

Training asks for `Network.loss` alone; a search for `Network.start` and `Network.step` (`multihead.decoding.stepper`);
whoever draws attention for the weights of a forward pass. Which network a configuration makes is in
`bundle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention import PackedLinear
from multihead.kernels.linear_cross_entropy import Loss, linear_cross_entropy
from multihead.models.config import NetworkConfig
from multihead.models.layers import Weights


def initialize(model: nn.Module, build_embeddings: Literal["normal", "xavier"] = "normal") -> None:
    """Draws every parameter of ``model`` from PyTorch's current generator.

    Args:
        model: whose layers are drawn, in their order.
        embeddings: how the embeddings are, those of learned positions too.
    """
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            if build_embeddings == "xavier":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.GRU, nn.LSTM)):
            _initialize_recurrent(module)


@torch.no_grad()
def _initialize_recurrent(layers: nn.GRU | nn.LSTM) -> None:
    """Each gate's matrices by themselves: stored as one, they would be drawn as one."""
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
    """A row that is zero stays zero: its gradient is dropped, whoever uses the matrix.

    An embedding drops the gradient of its padding row by itself, but not what comes from an output projection that is
    the same matrix. Copies of the parameter have to be told again.
    """
    weight.register_post_accumulate_grad_hook(partial(_drop_gradient, row=row))  # type: ignore[no-untyped-call]


def _drop_gradient(weight: Tensor, row: int) -> None:
    assert weight.grad is not None
    weight.grad[row].zero_()


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


def build_embeddings(config: NetworkConfig) -> tuple[nn.Embedding, nn.Embedding]:
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
