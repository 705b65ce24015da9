r"""Recurrent decoders: attention before (Bahdanau) or after (Luong).

Before (Bahdanau et al. 2015, 3.1 and appendix A.2.2):     After (Luong et al. 2015, 3):

    c_t = att(H, s_{t-1})                                      s_t  = cell([y_{t-1}; h~_{t-1}], s_{t-1})
    s_t = cell([y_{t-1}; c_t], s_{t-1})                        c_t  = att(H, s_t)
    h~_t = tanh(W_o [s_t; y_{t-1}; c_t])                       h~_t = tanh(W_c [s_t; c_t])

with p(y_t) = softmax(E_o h~_t), the encoder's states H, the last token's vector y_{t-1}, and h~_{t-1} only with input
feeding. Both start at s_0 = tanh(W_s b), where b is the last state of the backward encoder (Bahdanau, A.2.2).

Differences from the papers: Bahdanau's output layer is a maxout of width 500, fed with s_{t-1}, which equation 4 of the
same paper has as s_t. A tanh of the same three vectors works as well (Sennrich et al. 2017, Nematus, 2) and has the
width of a tied embedding. With several layers, Bahdanau's first layer attends and receives the context (Wu et al. 2016,
3), so that the layers above process the whole target at once; Luong's last layer attends, and the first is fed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention import (
    Additive,
    Alignment,
    Attention,
    Bilinear,
    Dot,
    LowRankBilinear,
    Mask,
    ScaledDot,
    Score,
)
from multihead.attention.alignment import AlignmentName
from multihead.attention.structured.layers import SegmentationAlignment
from multihead.kernels.random import Dropout
from multihead.models.config import RecurrentConfig
from multihead.models.recurrent.cells import CellState, Recurrent
from multihead.models.recurrent.encoder import Encoded
from multihead.models.recurrent.state import Memory, RecurrentState

SCORES: dict[str, Callable[[int], Score]] = {
    "additive": lambda width: Additive(width, width, width),
    "dot": lambda width: Dot(),  # noqa: ARG005
    "scaled_dot": lambda width: ScaledDot(),  # noqa: ARG005
    "bilinear": lambda width: Bilinear(width, width),
    "low_rank": lambda width: LowRankBilinear(width, width, max(1, width // 4)),
}
"""Scores by name, for queries and keys of the same width."""


class Decoded(NamedTuple):
    """Output of a decoder for a whole target."""

    states: Float[Tensor, "batch target width"]
    """h~, before dropout and the output projection."""
    queries: Float[Tensor, "batch target width"]
    """The query of the attention at each position."""
    weights: Float[Tensor, "batch target source"] | None
    """Attention weights, on request."""


class DecoderStep(NamedTuple):
    """Output of a decoder for one more token per row."""

    joined: Float[Tensor, "rows width"]
    """h~, before dropout and the output projection."""
    state: RecurrentState
    """The next state."""
    weights: Float[Tensor, "sentences group source"] | None
    """Attention weights on request, rows grouped by sentence."""


class RecurrentDecoder(nn.Module, ABC):
    """Base class of the decoders: layers, attention and initial state.

    Args:
        config: settings of the model.
        summary_width: width of the source summary b, which the initial states are computed from.
        readout_width: width of the concatenation that h~ is computed from.
    """

    def __init__(self, config: RecurrentConfig, summary_width: int, readout_width: int) -> None:
        super().__init__()
        width, context_width = config.width, config.width if config.feeds_context else 0
        self.layers = nn.ModuleList(
            Recurrent(config.cell, width, width, 0 if index else context_width)
            for index in range(config.decoder_layers)
        )
        self.attention = Attention(SCORES[config.score](width), _alignment(config.alignment))
        self.begin = nn.Linear(summary_width, sum(layer.parts for layer in self._typed_layers()) * width)
        self.readout = nn.Linear(readout_width, width, bias=False)
        self.dropout = Dropout(config.dropout)
        self.feeds = config.input_feeding

    def start(self, encoded: Encoded, lengths: Int[Tensor, " batch"]) -> RecurrentState:
        """The initial state: s_0 of every layer (and the cells of an LSTM), and the keys of the attention.

        Args:
            encoded: the encoded sources.
            lengths: their lengths.
        """
        # [batch, all parts of all layers]; states keep the dtype of the weights under autocast
        first = self.begin(encoded.summary).tanh().to(self.begin.weight.dtype)
        parts = iter(first.split(self.readout.out_features, 1))
        layers = tuple(tuple(next(parts) for _ in range(layer.parts)) for layer in self._typed_layers())
        memory = Memory(self.attention.score.keys(encoded.states), encoded.states, lengths)
        return RecurrentState(memory, layers, torch.zeros_like(layers[0][0]) if self.feeds else None)

    @abstractmethod
    def whole(
        self,
        words: Float[Tensor, "batch target width"],
        state: RecurrentState,
        *,
        need_weights: bool = False,
    ) -> Decoded:
        """Decode a whole known target (teacher forcing) from the state that `start` returns."""

    @abstractmethod
    def step(
        self, words: Float[Tensor, "rows width"], state: RecurrentState, *, need_weights: bool = False
    ) -> DecoderStep:
        """Decode one more token per row."""

    def _attend(
        self, query: Tensor, memory: Memory, mask: Mask, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The context of each row [rows, width], and on request the weights [sentences, group, source].

        The rows of a sentence are grouped as queries to one memory, which is read once per sentence.
        """
        sentences = len(memory.lengths)
        grouped = query.reshape(sentences, len(query) // max(sentences, 1), query.shape[1])
        context, weights = self.attention.attend(
            grouped, memory.keys, memory.values, mask=mask, need_weights=need_weights
        )
        return context.reshape(query.shape), weights

    def _typed_layers(self) -> Iterator[Recurrent]:
        """The layers with their type, which `nn.ModuleList` does not keep."""
        for layer in self.layers:
            assert isinstance(layer, Recurrent)
            yield layer


class BahdanauDecoder(RecurrentDecoder):
    """Attends with the previous state of the first layer, whose cell then reads the context.

    Args:
        config: settings of the model.
        summary_width: width of the source summary.
    """

    def __init__(self, config: RecurrentConfig, summary_width: int) -> None:
        super().__init__(config, summary_width, 3 * config.width)

    def whole(
        self,
        words: Float[Tensor, "batch target width"],
        state: RecurrentState,
        *,
        need_weights: bool = False,
    ) -> Decoded:
        """Decode step by step in the first layer, and the whole target at once in the layers above."""
        (first, *above), memory, cell_state = self._typed_layers(), state.memory, state.layers[0]
        mask = memory.mask
        queries, contexts, states, weights = [], [], [], []
        for projected in first.project(words).transpose(0, 1).unbind():  # [batch, gates] of each position
            context, weight = self._attend(cell_state[0], memory, mask, need_weights)
            queries.append(cell_state[0])
            contexts.append(context)
            weights.append(weight)
            cell_state = first.step(projected, cell_state, context)
            states.append(cell_state[0])
        top = torch.stack(states, 1)  # [batch, target, width]
        for layer, initial in zip(above, state.layers[1:], strict=True):
            top = layer(self.dropout(top), initial)
        joined = self._join(top, words, torch.stack(contexts, 1))
        return Decoded(joined, torch.stack(queries, 1), _concatenate(weights))

    def step(
        self, words: Float[Tensor, "rows width"], state: RecurrentState, *, need_weights: bool = False
    ) -> DecoderStep:
        context, weights = self._attend(state.layers[0][0], state.memory, state.memory.mask, need_weights)
        layers, x = [], words
        for index, layer in enumerate(self._typed_layers()):
            below = self.dropout(x) if index else x
            layers.append(layer.step(layer.project(below), state.layers[index], None if index else context))
            x = layers[-1][0]
        return DecoderStep(self._join(x, words, context), RecurrentState(state.memory, tuple(layers)), weights)

    def _join(self, state: Tensor, words: Tensor, context: Tensor) -> Tensor:
        joined: Tensor = self.readout(torch.cat((state, words, context.to(state.dtype)), -1)).tanh()
        return joined


class LuongDecoder(RecurrentDecoder):
    """Attends with the new state of the last layer, which is then joined with the context.

    Args:
        config: settings of the model.
        summary_width: width of the source summary.
    """

    def __init__(self, config: RecurrentConfig, summary_width: int) -> None:
        super().__init__(config, summary_width, 2 * config.width)

    def whole(
        self,
        words: Float[Tensor, "batch target width"],
        state: RecurrentState,
        *,
        need_weights: bool = False,
    ) -> Decoded:
        """Decode the whole target at once; with input feeding step by step."""
        if state.feed is not None:
            return self._whole_with_feeding(words, state, state.feed, need_weights)
        x, memory = words, state.memory
        for index, (layer, initial) in enumerate(zip(self._typed_layers(), state.layers, strict=True)):
            x = layer(self.dropout(x) if index else x, initial)
        context, weights = self.attention.attend(
            x, memory.keys, memory.values, mask=memory.mask, need_weights=need_weights
        )
        return Decoded(self._join(x, context), x, weights)

    def _whole_with_feeding(self, words: Tensor, state: RecurrentState, joined: Tensor, need_weights: bool) -> Decoded:
        """Step by step, since each step reads the joined state [batch, width] of the one before."""
        first, layers, memory = next(self._typed_layers()), state.layers, state.memory
        mask, factors = memory.mask, self._dropout_factors(words)
        queries, states, weights = [], [], []
        for place, projected in enumerate(first.project(words).transpose(0, 1).unbind()):
            layers = self._advance(projected, layers, joined, [factor[:, place] for factor in factors])
            context, weight = self._attend(layers[-1][0], memory, mask, need_weights)
            joined = self._join(layers[-1][0], context)
            queries.append(layers[-1][0])
            states.append(joined)
            weights.append(weight)
        return Decoded(torch.stack(states, 1), torch.stack(queries, 1), _concatenate(weights))

    def step(
        self, words: Float[Tensor, "rows width"], state: RecurrentState, *, need_weights: bool = False
    ) -> DecoderStep:
        layers = self._advance(next(self._typed_layers()).project(words), state.layers, state.feed)
        context, weights = self._attend(layers[-1][0], state.memory, state.memory.mask, need_weights)
        joined = self._join(layers[-1][0], context)
        following = RecurrentState(state.memory, layers, None if state.feed is None else joined)
        return DecoderStep(joined, following, weights)

    def _dropout_factors(self, words: Tensor) -> list[Tensor]:
        """What the states below each layer but the first are multiplied by, at all positions [batch, target, width].

        Drawn at once: masks then depend on row and position, and not on the length of the longest target beside them.
        """
        count = len(self.layers) - 1 if self.dropout.probability else 0
        return [self.dropout(torch.ones_like(words)) for _ in range(count)]

    def _advance(
        self,
        projected: Tensor,
        layers: tuple[CellState, ...],
        feed: Tensor | None,
        factors: Sequence[Tensor] = (),
    ) -> tuple[CellState, ...]:
        """Advance every layer by one position.

        Args:
            projected: the input of the first layer, already projected.
            layers: the states of the layers.
            feed: the joined state of the position before.
            factors: of dropout at this position, for each layer but the first; drawn here if there are none.
        """
        new: list[CellState] = []
        for index, layer in enumerate(self._typed_layers()):
            if index:
                below = new[-1][0]
                projected = layer.project(below * factors[index - 1] if factors else self.dropout(below))
            new.append(layer.step(projected, layers[index], None if index else feed))
        return tuple(new)

    def _join(self, state: Tensor, context: Tensor) -> Tensor:
        joined: Tensor = self.readout(torch.cat((state, context.to(state.dtype)), -1)).tanh()
        return joined


def build_decoder(config: RecurrentConfig, summary_width: int) -> RecurrentDecoder:
    """The decoder that the settings describe."""
    kind = BahdanauDecoder if config.attend == "before" else LuongDecoder
    return kind(config, summary_width)


def _alignment(name: Literal["segmentation"] | AlignmentName) -> AlignmentName | Alignment:
    """The alignment by name; chain marginals are normalized, so that a context has the magnitude of a state."""
    return SegmentationAlignment(normalize=True) if name == "segmentation" else name


def _concatenate(weights: list[Tensor | None]) -> Tensor | None:
    """Weights [batch, 1, source] of each position as [batch, target, source]; None if they were not requested."""
    present = [weight for weight in weights if weight is not None]
    return torch.cat(present, 1) if present else None
