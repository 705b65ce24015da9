"""The words of a padded batch end to end in one row: what a network learns from, without the padding.

Every position alike is what norms, products and feed-forward networks do, so padding costs them as much as words. In
one row there is none but a rest behind the last word, which keeps the lengths of rows few (`ROUND`): libraries prepare
code for each size of a product. Attention keeps the sentences apart (`EndToEnd`), and dropout draws for each word what
it draws in the padded batch (`kernels.random.packed_at`), so loss and gradients are those of the batch.

The encoder-decoder Transformer (Vaswani et al. 2017, Figure 1): for training, packed or padded, and step by step.

Layers come from `models.layers`, embeddings from `models.layers`; what decoding remembers is in `models.state`.
What it shares with every network, the loss among it, is `models.network`'s. Search stands in `multihead.decoding`: it
knows `start` and `step` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from multihead.attention import Causal, EndToEnd, Mask, Padding
from multihead.attention.backends.short import LONGEST, WIDEST
from multihead.kernels import random
from multihead.kernels.linear_cross_entropy import Loss, linear_cross_entropy
from multihead.kernels.native import TYPES, library_for
from multihead.models.config import TransformerConfig
from multihead.models.layers import DecoderLayer, Embedding, EncoderLayer, LayerNorm, Weights
from multihead.models.network import AttentionWeights, Network, Output, build_embeddings, initialize, token_loss
from multihead.models.state import Memory, TransformerState

ROUND = 128
"""Rows have a multiple of so many positions."""


class Packed(NamedTuple):
    """The words of a batch, row after row."""

    tokens: Int64[Tensor, " packed"]
    """Their ids; behind them padding."""
    rows: Int64[Tensor, " packed"]
    """Where each stood: in this row of the batch,"""
    positions: Int64[Tensor, " packed"]
    """at this position."""
    lengths: Int64[Tensor, " batch"]
    """Words in each row."""
    words: int
    """In all."""

    def placed(self) -> AbstractContextManager[None]:
        """Inside, dropout draws for these tokens."""
        return random.packed_at(self.rows, self.positions)


def pack(tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"], padding_id: int) -> Packed:
    """The first ``lengths[b]`` tokens of each row."""
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    rows, positions = real.nonzero().unbind(1)
    words = len(rows)
    rest = -words % ROUND
    found = torch.cat((tokens[real], tokens.new_full((rest,), padding_id)))
    nowhere = rows.new_zeros(rest)
    return Packed(found, torch.cat((rows, nowhere)), torch.cat((positions, nowhere)), lengths.long(), words)


class Transformer(Network):
    """Figure 1, whole.

    Args:
        config: its sizes; parameters are drawn from PyTorch's current generator.
    """

    config: TransformerConfig
    compiled: bool = False
    """Whether `loss` has PyTorch compile what gives the states; for GPUs, where it fuses what stands between products.

    Copies of a model share the code. Dropout is PyTorch's own in it, whose masks are others than ours.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        source, target = build_embeddings(config)
        self.source_embedding = Embedding(source, config)
        self.target_embedding = Embedding(target, config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = _last_norm(config), _last_norm(config)
        self.output = nn.Linear(config.width, config.target_vocab, bias=False)
        self.output_scale = config.width**-0.5 if config.embedding_scale == "projection" else 1.0
        initialize(self, config.initialization)
        self._tie_output(target)

    @property
    def max_positions(self) -> int | None:
        """Positions told apart: in longer sentences those beyond share the last one's vector; None = no limit."""
        return self.config.max_positions if self.config.positions == "learned" else None

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
            need_weights: also return what every head of every layer attended to.
        """
        states, weights = self._run(source, source_lengths, target, need_weights)
        return Output(self.output(states), weights)

    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """The states before the output projection: ``forward(...).logits == output(hidden(...))``.

        With ``embedding_scale`` 'projection' it is they that are scaled, rather than the logits: it is the same.
        """
        return self._run(source, source_lengths, target, False)[0]

    def loss(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        *,
        smoothing: float,
    ) -> Loss:
        """As `Network.loss`; where that is learned from on a CPU, from the words alone (`models.transformer`)."""
        if self.compiled:
            states = _compiled_hidden()(self, source, source_lengths, target_input)
            return token_loss(states, self.output.weight, target_output, self.config.padding_id, smoothing)
        if not self._packs(source, target_input):
            return super().loss(source, source_lengths, target_input, target_output, smoothing=smoothing)
        real = target_output != self.config.padding_id
        packed = pack(source, source_lengths, self.config.padding_id)
        states = self._packed(packed, pack(target_input, real.sum(1), self.config.padding_id))
        return linear_cross_entropy(states, self.output.weight, target_output[real], smoothing)

    def _packs(self, source: Tensor, target: Tensor) -> bool:
        """Whether the compiled kernels take all of it, the attention too: dense it would be that of a single row."""
        every = next(self._decoder_layers()).self_attention
        heads, longest = every.heads, max(source.shape[1], target.shape[1])
        alike = every.kv_heads == heads and every.key_width == every.value_width <= WIDEST * heads
        fits = alike and every.dropout == 0 and longest <= LONGEST and source.device.type == "cpu"
        if not fits or not torch.is_grad_enabled() or library_for(self.output.weight) is None:
            return False
        return not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") in TYPES

    def _packed(self, source: Packed, target: Packed) -> Float[Tensor, "words width"]:
        """The states of all words of the target: what `hidden` gives, without the padding."""
        with source.placed():
            x = self.source_embedding.packed(source.tokens, source.positions)
            own: Mask = EndToEnd(source.lengths, len(source.tokens))
            for layer in self.encoder:
                x, _ = layer(x, own)
            x = self.encoder_norm(x)
        with target.placed():
            y = self.target_embedding.packed(target.tokens, target.positions)
            own = EndToEnd(target.lengths, len(target.tokens)) & Causal()
            across = EndToEnd(target.lengths, len(target.tokens), source.lengths, len(source.tokens))
            for layer in self._decoder_layers():
                y = layer(y, layer.project_memory(x), own, across).states
        return self._finish(y)[0, : target.words]

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch source width"], tuple[Weights, ...]]:
        """The encoder's states, and its layers' weights on request (an empty tuple otherwise)."""
        x = self.source_embedding(source)
        mask = Padding(source_lengths)
        recorded: list[Weights] = []
        for layer in self.encoder:
            x, weights = layer(x, mask, need_weights=need_weights)
            if weights is not None:
                recorded.append(weights)
        return self.encoder_norm(x), tuple(recorded)

    def _run(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, need_weights: bool
    ) -> tuple[Tensor, AttentionWeights | None]:
        encoded, encoder_weights = self.encode(source, source_lengths, need_weights=need_weights)
        y, causal, padding = self.target_embedding(target), Causal(), Padding(source_lengths)
        own: list[Weights] = []
        cross: list[Weights] = []
        for layer in self._decoder_layers():
            y, *weights = layer(y, layer.project_memory(encoded), causal, padding, need_weights=need_weights)
            if need_weights:
                own.append(weights[0])
                cross.append(weights[1])
        recorded = AttentionWeights(encoder_weights, tuple(own), tuple(cross)) if need_weights else None
        return self._finish(y), recorded

    def _finish(self, y: Tensor) -> Tensor:
        """The last norm, and the scale of the output projection."""
        y = self.decoder_norm(y)
        return y if self.output_scale == 1.0 else y * self.output_scale

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> TransformerState:
        """Encodes the sources; one row a sentence, nothing decoded yet."""
        encoded, _ = self.encode(source, lengths)
        layers = tuple(layer.project_memory(encoded) for layer in self._decoder_layers())
        return TransformerState(Memory(layers, lengths), None, torch.zeros_like(lengths))

    def step(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocab"], TransformerState]:
        """Log-probabilities of the token after ``tokens``, which are each row's latest."""
        log_probabilities, _, following = self._step(tokens, state, None)
        return log_probabilities, following

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], TransformerState]:
        """The same; and what is attended to, the mean over the heads of the last layer but one, or of the only one.

        That layer aligns best (Garg et al. 2019, "Jointly learning to align and translate with Transformer models").
        """
        log_probabilities, weights, following = self._step(tokens, state, max(len(self.decoder) - 2, 0))
        assert weights is not None
        return log_probabilities, weights.mean(1).flatten(0, 1), following

    def _step(
        self, tokens: Tensor, state: TransformerState, watched: int | None
    ) -> tuple[Tensor, Tensor | None, TransformerState]:
        time = state.time + 1
        y = self.target_embedding.at(tokens, state.positions, time)
        mask = None if state.padding is None else ~Padding(state.padding)
        memory_mask = state.memory.mask
        grown = []
        looked: Tensor | None = None
        for index, layer in enumerate(self._decoder_layers()):
            cache = None if state.cache is None else state.cache[index]
            y, cache, weights = layer.step(
                y, state.memory.layers[index], cache, mask, memory_mask, need_weights=index == watched
            )
            grown.append(cache)
            looked = weights if index == watched else looked
        logits = self.output(self._finish(y[:, 0]))
        following = TransformerState(state.memory, tuple(grown), state.positions + 1, state.padding)
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), looked, following

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        """The decoder's layers under their own type, which `nn.ModuleList` forgets."""
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            yield layer


COMPILER = "inductor"
"""PyTorch's backend."""


@cache
def _compiled_hidden() -> Callable[..., Tensor]:
    """Of every size of batch: compiled for the first, and again for the first of another."""
    made: Callable[..., Tensor] = torch.compile(Transformer.hidden, dynamic=True, backend=COMPILER)
    return made


def _last_norm(config: TransformerConfig) -> nn.Module:
    return LayerNorm(config.width, eps=config.norm_eps) if config.has_final_norm else nn.Identity()
