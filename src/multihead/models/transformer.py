"""The encoder-decoder Transformer (Vaswani et al. 2017, Figure 1).

It trains on padded or packed batches and decodes step by step. Layers are in `models.layers`, the decoder state in
`models.state`, the base class of translation networks in `models.network`; search (`multihead.decoding`) uses `start`
and `step` only.

Packing (`pack`) puts the tokens of a padded batch end to end in one row. Norms, products and feed-forward networks
treat all positions alike, so padding costs as much as tokens do; a packed row has none, except for a rest at its end
that rounds its length up to a multiple of `ROUND`: libraries prepare code for each size of a product, and so there are
few sizes. Attention keeps the sentences apart (`EndToEnd`), and dropout draws for each token what it draws in the
padded batch (`kernels.random.packed_at`), so loss and gradients are those of the padded batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from multihead.attention import Causal, EndToEnd, Mask, Padding, RelativeBias, SlidingWindow
from multihead.attention.backends.short import LONGEST, WIDEST
from multihead.kernels import random
from multihead.kernels.guided import Links
from multihead.kernels.linear import Loss, linear_cross_entropy
from multihead.kernels.native.tensors import TYPES, library_for
from multihead.kernels.soft_targets import SoftTargets
from multihead.models.config import TransformerConfig
from multihead.models.guidance import Guidance
from multihead.models.layers import (
    Decoded,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    LinearPositions,
    Places,
    Weights,
    biased_positions,
    make_norm,
    places_of,
    rotary_positions,
)
from multihead.models.network import (
    AttentionWeights,
    Network,
    Output,
    build_embeddings,
    initialize,
    per_token,
    token_loss,
)
from multihead.models.parallel_blocks import ParallelDecoderLayer, ParallelEncoderLayer
from multihead.models.state import Memory, TransformerState

T = TypeVar("T")

ROUND = 128
"""The length of a packed row is a multiple of this."""


class Packed(NamedTuple):
    """The tokens of a batch, row after row."""

    tokens: Int64[Tensor, " packed"]
    """Ids, followed by padding."""
    rows: Int64[Tensor, " packed"]
    """Row of each token in the batch; 0 for the padding at the end."""
    positions: Int64[Tensor, " packed"]
    """Position of each token in its row; 0 for the padding at the end."""
    lengths: Int64[Tensor, " batch"]
    """Number of tokens in each row of the batch."""
    total: int
    """Number of tokens without padding."""

    def dropout_context(self) -> AbstractContextManager[None]:
        """Inside, dropout draws for each token what it would draw in the padded batch."""
        return random.packed_at(self.rows, self.positions)


def pack(tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"], padding_id: int) -> Packed:
    """Pack the first ``lengths[b]`` tokens of each row b."""
    real = torch.arange(tokens.shape[1]) < lengths[:, None]  # [batch, time]
    rows, positions = real.nonzero().unbind(1)
    count = len(rows)
    rest = -count % ROUND
    packed = torch.cat((tokens[real], tokens.new_full((rest,), padding_id)))
    zeros = rows.new_zeros(rest)
    return Packed(packed, torch.cat((rows, zeros)), torch.cat((positions, zeros)), lengths.long(), count)


class Transformer(Network):
    """The whole network of Figure 1.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    config: TransformerConfig
    compiled: bool = False
    """Whether `loss` computes the states with torch.compile, which on a GPU fuses the operations between products.

    Copies of a model share the compiled code. It uses PyTorch's dropout, whose masks differ from ours.
    """
    checkpointing: bool = False
    """Whether training keeps the inputs of each layer only, and computes the layer again in the backward pass (Chen
    et al. 2016). Loss and gradients are the same numbers."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        source, target = build_embeddings(config)
        self.source_embedding = Embedding(source, config)
        self.target_embedding = Embedding(target, config)
        of_encoder, of_decoder = _layer_types(config)
        self.encoder = nn.ModuleList(of_encoder(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(of_decoder(config) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = _last_norm(config), _last_norm(config)
        self.encoder_positions = biased_positions(config, causal=False)
        self.decoder_positions = biased_positions(config, causal=True)
        self.rotary = rotary_positions(config)
        self.output = nn.Linear(config.width, config.target_vocab, bias=config.output_bias)
        self.output_scale = config.width**-0.5 if config.embedding_scale == "projection" else 1.0
        initialize(self, config.initialization)
        self._tie_output(target)

    @property
    def max_positions(self) -> int | None:
        """Number of learned positions; later positions share the last vector. None = no limit."""
        return self.config.max_positions if self.config.positions == "learned" else None

    def read_lengths(self, source_lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The number of symbols of each source that the encoder reads: all, or all but the end symbol."""
        return source_lengths if self.config.source_end else (source_lengths - 1).clamp(min=1)

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
            need_weights: also return the weights of every head of every layer.
        """
        states, weights = self._run(source, source_lengths, target, need_weights)
        return Output(self.output(states), weights)

    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """The input of the output projection: ``forward(...).logits == output(hidden(...))``.

        With ``embedding_scale`` 'projection' the scale is applied here instead of to the logits, which is equivalent.
        """
        return self._run(source, source_lengths, target, False)[0]

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
        """As `Network.loss`; on a CPU computed from the packed batch where the kernels allow it."""
        if links is not None:
            given = source, source_lengths, target_input, target_output, soft, weights
            compute = super().loss if self.config.alignment_layer is None else self._guided_loss  # the first refuses
            return compute(*given, links, smoothing=smoothing)
        if self.compiled and not self._is_captured:
            states = _compiled_hidden()(self, source, source_lengths, target_input)
            return token_loss(states, self.output, target_output, self.config.padding_id, smoothing, soft, weights)
        if not self._packs(source, target_input):
            given = source, source_lengths, target_input, target_output, soft, weights
            return super().loss(*given, smoothing=smoothing)
        real = target_output != self.config.padding_id
        states = self._packed_states_at(source, source_lengths, target_input, real)
        labels, factors = target_output[real], per_token(weights, real)
        return linear_cross_entropy(states, self.output.weight, labels, smoothing, self.output.bias, soft, factors)

    def _guided_loss(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        soft: SoftTargets | None,
        weights: Float[Tensor, " batch"] | None,
        links: Links,
        *,
        smoothing: float,
    ) -> Loss:
        """The loss with that of the guided head."""
        real, lengths = target_output != self.config.padding_id, self.read_lengths(source_lengths)
        guidance = Guidance(links, lengths, weights)
        if self._packs(source, target_input):
            packed = (
                pack(source, lengths, self.config.padding_id),
                pack(target_input, real.sum(1), self.config.padding_id),
            )
            states, guided = self._states_packed(*packed, guidance._replace(packed=packed))
        else:
            encoded, _ = self.encode(source, source_lengths)
            y, places = self.target_embedding(target_input), self._places(self.decoder_positions, target_input.size(1))
            y, guided = self._decoded(y, encoded, Causal(), Padding(lengths), places, guidance)
            states = self._finish(y)[real]
        labels, factors = target_output[real], per_token(weights, real)
        loss = linear_cross_entropy(states, self.output.weight, labels, smoothing, self.output.bias, soft, factors)
        assert guided is not None
        plain = loss.total.detach() if loss.labels is None else loss.labels
        return loss._replace(total=loss.total + links.weight * guided, labels=plain, guided=guided.detach())

    def states_at(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
        real: Bool[Tensor, "batch target"],
    ) -> Float[Tensor, "tokens width"]:
        """As `Network.states_at`; on a CPU computed from the packed batch where the kernels allow it."""
        if not self._packs(source, target):
            return super().states_at(source, source_lengths, target, real)
        return self._packed_states_at(source, source_lengths, target, real)

    def _packed_states_at(self, source: Tensor, source_lengths: Tensor, target: Tensor, real: Tensor) -> Tensor:
        packed = pack(source, self.read_lengths(source_lengths), self.config.padding_id)
        return self._states_packed(packed, pack(target, real.sum(1), self.config.padding_id))[0]

    @property
    def _is_captured(self) -> bool:
        """Whether `inspection.capture` records an attention, for which each sentence has a row of its own."""
        layers = (*self.encoder, *self._decoder_layers())
        return any("mix" in vars(part) for layer in layers for part in layer.children())

    def _packs(self, source: Tensor, target: Tensor) -> bool:
        """Whether the compiled kernels support this batch: other attention would be quadratic in the packed row."""
        if self.config.positions in ("relative", "shaw") or self._is_captured:
            return False
        attention = next(self._decoder_layers()).self_attention
        heads, longest = attention.heads, max(source.shape[1], target.shape[1])
        same_widths = attention.kv_heads == heads and attention.key_width == attention.value_width <= WIDEST * heads
        fits = same_widths and attention.dropout == 0 and longest <= LONGEST and source.device.type == "cpu"
        if not fits or library_for(self.output.weight) is None:
            return False
        return not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") in TYPES

    def _states_packed(
        self, source: Packed, target: Packed, guidance: Guidance | None = None
    ) -> tuple[Float[Tensor, "tokens width"], Float[Tensor, ""] | None]:
        """`hidden` without padding: the states of all target tokens, row after row; the loss of the guided head."""
        with source.dropout_context():
            x = self.source_embedding.packed(source.tokens, source.positions)  # [1, packed, width]
            self_mask = self._windowed(EndToEnd(source.lengths, len(source.tokens)), int(source.lengths.max()))
            places = self._packed_places(self.encoder_positions, source)
            for layer in self.encoder:
                x = self._kept(_encode, layer, x, self_mask, places)
            x = self.encoder_norm(x)
        with target.dropout_context():
            y = self.target_embedding.packed(target.tokens, target.positions)
            self_mask = EndToEnd(target.lengths, len(target.tokens)) & Causal()
            cross_mask = EndToEnd(target.lengths, len(target.tokens), source.lengths, len(source.tokens))
            places = self._packed_places(self.decoder_positions, target)
            y, guided = self._decoded(y, x, self_mask, cross_mask, places, guidance)
        return self._finish(y)[0, : target.total], guided

    def _decoded(
        self, y: Tensor, memory: Tensor, mask: Mask, memory_mask: Mask, places: Places, guidance: Guidance | None
    ) -> tuple[Tensor, Tensor | None]:
        """The states after the last layer of the decoder, and the loss of the guided head."""
        guided = None
        for number, layer in enumerate(self.decoder, 1):
            own = guidance if number == self.config.alignment_layer else None
            y, found = self._kept(_decode, layer, y, memory, mask, memory_mask, places, own)
            guided = found if own is not None else guided
        return y, guided

    def _kept(self, compute: Callable[..., T], layer: nn.Module, *inputs: Any) -> T:
        """``compute(layer, *inputs)``, of which the backward pass keeps all states, or the inputs only."""
        if not (self.checkpointing and torch.is_grad_enabled()) or self._is_captured:
            return compute(layer, *inputs)
        from torch.utils.checkpoint import checkpoint

        result: T = checkpoint(
            compute, layer, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), random.Replay())
        )
        return result

    def _packed_places(self, biased: RelativeBias | LinearPositions | None, packed: Packed) -> Places:
        if isinstance(biased, LinearPositions):
            return Places(biased.rule)
        if self.rotary is None:
            return Places()
        return Places(turns=self.rotary(packed.positions, int(packed.positions.max()) + 1))

    def _places(self, biased: RelativeBias | LinearPositions | None, time: int) -> Places:
        """Of the first ``time`` positions."""
        return places_of(biased, self.rotary, time, self.output.weight.device)

    def _windowed(self, mask: Mask, longest: int) -> Mask:
        """The mask of the encoder, with its window where a source may be longer than that."""
        window = self.config.encoder_window
        return mask if window is None or window >= longest - 1 else mask & SlidingWindow(window, window)

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch source width"], tuple[Weights, ...]]:
        """The encoder's states, and the attention weights of its layers on request (otherwise an empty tuple)."""
        x = self.source_embedding(source)
        time = source.size(1)
        mask = self._windowed(Padding(self.read_lengths(source_lengths)), time)
        places = self._places(self.encoder_positions, time)
        recorded: list[Weights] = []
        for layer in self.encoder:
            if not need_weights:
                x = self._kept(_encode, layer, x, mask, places)
                continue
            x, weights = layer(x, mask, places, need_weights=True)
            recorded.append(weights)
        return self.encoder_norm(x), tuple(recorded)

    def _run(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, need_weights: bool
    ) -> tuple[Tensor, AttentionWeights | None]:
        encoded, encoder_weights = self.encode(source, source_lengths, need_weights=need_weights)
        y, causal = self.target_embedding(target), Causal()
        padding = Padding(self.read_lengths(source_lengths))
        places = self._places(self.decoder_positions, target.size(1))
        self_weights: list[Weights] = []
        cross_weights: list[Weights] = []
        for layer in self._decoder_layers():
            if not need_weights:
                y, _ = self._kept(_decode, layer, y, encoded, causal, padding, places, None)
                continue
            y, *weights = layer(y, layer.project_memory(encoded), causal, padding, places, need_weights=True)
            self_weights.append(weights[0])
            cross_weights.append(weights[1])
        recorded = (
            AttentionWeights(encoder_weights, tuple(self_weights), tuple(cross_weights)) if need_weights else None
        )
        return self._finish(y), recorded

    def _finish(self, y: Tensor) -> Tensor:
        """Apply the last norm and the scale of the output projection."""
        y = self.decoder_norm(y)
        return y if self.output_scale == 1.0 else y * self.output_scale

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> TransformerState:
        """Encode the sources; the state has one row per sentence and no target positions."""
        encoded, _ = self.encode(source, lengths)
        layers = tuple(layer.project_memory(encoded) for layer in self._decoder_layers())
        return TransformerState(Memory(layers, self.read_lengths(lengths)), None, torch.zeros_like(lengths))

    def step(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocab"], TransformerState]:
        """Log-probabilities of the next token of each row, whose last token is in ``tokens``; and the next state."""
        log_probabilities, _, following = self._step(tokens, state, None)
        return log_probabilities, following

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], TransformerState]:
        """As `step`, with the attention weights in between: the mean over the heads of the second to last layer.

        Of all layers that one aligns best (Garg et al. 2019, "Jointly learning to align and translate with Transformer
        models"). A decoder of one layer uses that layer.
        """
        log_probabilities, weights, following = self._step(tokens, state, max(len(self.decoder) - 2, 0))
        assert weights is not None
        return log_probabilities, weights.mean(1).flatten(0, 1), following

    def _step(
        self, tokens: Tensor, state: TransformerState, recorded_layer: int | None
    ) -> tuple[Tensor, Tensor | None, TransformerState]:
        time = state.time + 1
        y = self.target_embedding.at(tokens, state.positions, time)
        mask = None if state.padding is None else ~Padding(state.padding)
        memory_mask = state.memory.mask
        # Distances do not depend on the padding: the last positions of all rows coincide.
        bias = None if self.decoder_positions is None else self.decoder_positions(1, time)
        places = Places(bias, None if self.rotary is None else self.rotary(state.positions, time))
        caches = []
        recorded: Tensor | None = None  # [sentences, heads, group, source]
        for index, layer in enumerate(self._decoder_layers()):
            cache, memory = None if state.cache is None else state.cache[index], state.memory.layers[index]
            y, cache, weights = layer.step(
                y, memory, cache, mask, memory_mask, places, need_weights=index == recorded_layer
            )
            caches.append(cache)
            recorded = weights if index == recorded_layer else recorded
        logits = self.output(self._finish(y[:, 0]))
        following = TransformerState(state.memory, tuple(caches), state.positions + 1, state.padding)
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), recorded, following

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        """The decoder's layers with their type, which `nn.ModuleList` does not keep."""
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            yield layer


def _layer_types(config: TransformerConfig) -> tuple[type[EncoderLayer], type[DecoderLayer]]:
    """The layers of encoder and decoder."""
    return (ParallelEncoderLayer, ParallelDecoderLayer) if config.block == "parallel" else (EncoderLayer, DecoderLayer)


def _encode(layer: EncoderLayer, x: Tensor, mask: Mask, places: Places) -> Tensor:
    """The new states of the encoder."""
    states: Tensor = layer(x, mask, places)[0]
    return states


def _decode(
    layer: DecoderLayer,
    y: Tensor,
    memory: Tensor,
    mask: Mask,
    memory_mask: Mask,
    places: Places,
    guidance: Guidance | None,
) -> tuple[Tensor, Tensor | None]:
    """The new states of the decoder, which attends to these states of the encoder; the loss of the guided head."""
    decoded: Decoded = layer(y, layer.project_memory(memory), mask, memory_mask, places, guidance=guidance)
    return decoded.states, decoded.guided


COMPILER = "inductor"
"""Backend of torch.compile."""


@cache
def _compiled_hidden() -> Callable[..., Tensor]:
    """`Transformer.hidden` compiled for batches of any size: for the first batch, and again when sizes coincide."""
    compiled: Callable[..., Tensor] = torch.compile(Transformer.hidden, dynamic=True, backend=COMPILER)

    def hidden(*given: object) -> Tensor:
        # Numbers of modules, such as a scale, are constants: as symbols they are traced, found constant, traced again.
        with torch._dynamo.config.patch(specialize_float=True):
            return compiled(*given)

    return hidden


def _last_norm(config: TransformerConfig) -> nn.Module:
    return make_norm(config) if config.has_final_norm else nn.Identity()
