r"""Two ways to wire recurrence and attention: who asks, and where the answer goes.

Before (Bahdanau et al. 2015, 3.1 and appendix A.2.2):     After (Luong et al. 2015, 3):

    c_t = att(H, s_{t-1})                                      s_t  = cell([y_{t-1}; h~_{t-1}], s_{t-1})
    s_t = cell([y_{t-1}; c_t], s_{t-1})                        c_t  = att(H, s_t)
    h~_t = tanh(W_o [s_t; y_{t-1}; c_t])                       h~_t = tanh(W_c [s_t; c_t])

with p(y_t) = softmax(E_o h~_t), H the encoder's states, y_{t-1} the last token's vector, and h~_{t-1} only where input
feeding is on. Both begin at s_0 = tanh(W_s b), b being what the backward encoder ends with (Bahdanau, A.2.2).

Where this is not the paper: Bahdanau's output layer is a maxout of width 500, fed s_{t-1}, which equation 4 of the same
paper has as s_t; a tanh of the same three does as well (Sennrich et al. 2017, Nematus, 2), and has the width of a tied
embedding. With several layers it is the first that asks and is told (Wu et al. 2016, 3), so that those above it run
over the whole target at once; Luong's last layer asks, and his first is fed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
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
"""The scores by name, for states of one width on both sides."""


class Decoded(NamedTuple):
    """What a decoder makes of a whole target."""

    states: Float[Tensor, "batch target width"]
    """h~, before dropout and the output projection."""
    queries: Float[Tensor, "batch target width"]
    """What asked for each of them."""
    weights: Float[Tensor, "batch target source"] | None
    """What it attended to, on request."""


class DecoderStep(NamedTuple):
    """What a decoder makes of one more word a row."""

    joined: Float[Tensor, "rows width"]
    """h~, before dropout and the output projection."""
    state: RecurrentState
    """The one after it."""
    weights: Float[Tensor, "sentences group source"] | None
    """What each row attended to, on request, the rows of a sentence together."""


class RecurrentDecoder(nn.Module, ABC):
    """What both ways have in common: layers, attention, and where they start.

    Args:
        config: of the model.
        summary_width: of what the first states are made from.
        readout_width: of what the joined state is made from.
    """

    def __init__(self, config: RecurrentConfig, summary_width: int, readout_width: int) -> None:
        super().__init__()
        width, told = config.width, config.width if config.feeds_context else 0
        self.layers = nn.ModuleList(
            Recurrent(config.cell, width, width, 0 if index else told) for index in range(config.decoder_layers)
        )
        self.attention = Attention(SCORES[config.score](width), _alignment(config.alignment))
        self.begin = nn.Linear(summary_width, sum(layer.parts for layer in self._stack()) * width)
        self.readout = nn.Linear(readout_width, width, bias=False)
        self.dropout = Dropout(config.dropout)
        self.feeds = config.input_feeding

    def start(self, encoded: Encoded, lengths: Int[Tensor, " batch"]) -> RecurrentState:
        """s_0 of every layer, and the LSTM's cells likewise; and of the source all that is needed before anybody asks.

        Args:
            encoded: the sources.
            lengths: of them.
        """
        first = self.begin(encoded.summary).tanh().to(self.begin.weight.dtype)  # states are not rounded by autocast
        parts = iter(first.split(self.readout.out_features, 1))
        layers = tuple(tuple(next(parts) for _ in range(layer.parts)) for layer in self._stack())
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
        """A whole target, whose words are known (teacher forcing), from the state that `start` gives."""

    @abstractmethod
    def step(
        self, words: Float[Tensor, "rows width"], state: RecurrentState, *, need_weights: bool = False
    ) -> DecoderStep:
        """One more word a row."""

    def _ask(
        self, query: Tensor, memory: Memory, mask: Mask, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The context of each row; the rows of one sentence are so many queries to one memory, which is read once."""
        sentences = len(memory.lengths)
        together = query.reshape(sentences, len(query) // max(sentences, 1), query.shape[1])
        context, weights = self.attention.attend(
            together, memory.keys, memory.values, mask=mask, need_weights=need_weights
        )
        return context.reshape(query.shape), weights

    def _stack(self) -> Iterator[Recurrent]:
        """The layers under their own type, which `nn.ModuleList` forgets."""
        for layer in self.layers:
            assert isinstance(layer, Recurrent)
            yield layer


class BahdanauDecoder(RecurrentDecoder):
    """Bahdanau's: the state before asks, and the first layer is told the answer.

    Args:
        config: of the model.
        summary_width: of what the first states are made from.
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
        """Word by word through the first layer, at once through those above."""
        (first, *above), memory, held = self._stack(), state.memory, state.layers[0]
        mask = memory.mask
        queries, contexts, states, weights = [], [], [], []
        for projected in first.project(words).transpose(0, 1).unbind():
            context, weight = self._ask(held[0], memory, mask, need_weights)
            queries.append(held[0])
            contexts.append(context)
            weights.append(weight)
            held = first.step(projected, held, context)
            states.append(held[0])
        top = torch.stack(states, 1)
        for layer, begin in zip(above, state.layers[1:], strict=True):
            top = layer(self.dropout(top), begin)
        joined = self._join(top, words, torch.stack(contexts, 1))
        return Decoded(joined, torch.stack(queries, 1), _stacked(weights))

    def step(
        self, words: Float[Tensor, "rows width"], state: RecurrentState, *, need_weights: bool = False
    ) -> DecoderStep:
        """The same for one word."""
        context, weights = self._ask(state.layers[0][0], state.memory, state.memory.mask, need_weights)
        layers, x = [], words
        for index, layer in enumerate(self._stack()):
            below = self.dropout(x) if index else x
            layers.append(layer.step(layer.project(below), state.layers[index], None if index else context))
            x = layers[-1][0]
        return DecoderStep(self._join(x, words, context), RecurrentState(state.memory, tuple(layers)), weights)

    def _join(self, state: Tensor, words: Tensor, context: Tensor) -> Tensor:
        joined: Tensor = self.readout(torch.cat((state, words, context.to(state.dtype)), -1)).tanh()
        return joined


class LuongDecoder(RecurrentDecoder):
    """Luong's: the new state of the last layer asks, and the answer is joined to it.

    Args:
        config: of the model.
        summary_width: of what the first states are made from.
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
        """At once, unless the joined states are fed."""
        if state.fed is not None:
            return self._fed(words, state, state.fed, need_weights)
        x, memory = words, state.memory
        for index, (layer, held) in enumerate(zip(self._stack(), state.layers, strict=True)):
            x = layer(self.dropout(x) if index else x, held)
        context, weights = self.attention.attend(
            x, memory.keys, memory.values, mask=memory.mask, need_weights=need_weights
        )
        return Decoded(self._join(x, context), x, weights)

    def _fed(self, words: Tensor, state: RecurrentState, joined: Tensor, need_weights: bool) -> Decoded:
        first, layers, memory = next(self._stack()), state.layers, state.memory
        mask = memory.mask
        queries, states, weights = [], [], []
        for projected in first.project(words).transpose(0, 1).unbind():
            layers = self._advance(projected, layers, joined)
            context, weight = self._ask(layers[-1][0], memory, mask, need_weights)
            joined = self._join(layers[-1][0], context)
            queries.append(layers[-1][0])
            states.append(joined)
            weights.append(weight)
        return Decoded(torch.stack(states, 1), torch.stack(queries, 1), _stacked(weights))

    def step(
        self, words: Float[Tensor, "rows width"], state: RecurrentState, *, need_weights: bool = False
    ) -> DecoderStep:
        """The same for one word."""
        layers = self._advance(next(self._stack()).project(words), state.layers, state.fed)
        context, weights = self._ask(layers[-1][0], state.memory, state.memory.mask, need_weights)
        joined = self._join(layers[-1][0], context)
        return DecoderStep(joined, RecurrentState(state.memory, layers, None if state.fed is None else joined), weights)

    def _advance(self, projected: Tensor, layers: tuple[CellState, ...], fed: Tensor | None) -> tuple[CellState, ...]:
        """Every layer one position on; ``projected`` is the first one's."""
        new: list[CellState] = []
        for index, layer in enumerate(self._stack()):
            if index:
                projected = layer.project(self.dropout(new[-1][0]))
            new.append(layer.step(projected, layers[index], None if index else fed))
        return tuple(new)

    def _join(self, state: Tensor, context: Tensor) -> Tensor:
        joined: Tensor = self.readout(torch.cat((state, context.to(state.dtype)), -1)).tanh()
        return joined


def build_decoder(config: RecurrentConfig, summary_width: int) -> RecurrentDecoder:
    """The one that the settings ask for."""
    kind = BahdanauDecoder if config.attend == "before" else LuongDecoder
    return kind(config, summary_width)


def _alignment(name: Literal["segmentation"] | AlignmentName) -> AlignmentName | Alignment:
    """By name; the marginals of a chain are divided by their sum, so that a context is as large as a state."""
    return SegmentationAlignment(normalize=True) if name == "segmentation" else name


def _stacked(weights: list[Tensor | None]) -> Tensor | None:
    """[batch, 1, source] each, over the target."""
    present = [weight for weight in weights if weight is not None]
    return torch.cat(present, 1) if present else None
