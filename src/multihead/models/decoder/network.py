r"""Decoder-only language model: a Transformer's decoder without a source.

    p(y) = prod_t p(y_t | y_<t),    p(y_t | y_<t) = softmax(W h_t)_{y_t},    h = Layers(Embedding(y_0 ... y_{n-1}))

for a text y_1 ... y_n whose last symbol is the end symbol, after the begin symbol y_0 (Radford et al. 2018, "Improving
language understanding by generative pre-training", section 3.1; Liu et al. 2018, "Generating Wikipedia by summarizing
long sequences", section 4.2.3). A layer is the encoder's of `models.layers` with a causal mask; W is the embedding if
the settings tie it.

`loss` trains it, and `start` and `step` are a `decoding.stepper.Stepper`: the source of a search is the text so far,
which is read in one pass, and its target is the text that follows. `runs.language_model` is what users call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention import Causal, KeyValue, Padding
from multihead.kernels.linear import Loss
from multihead.models.decoder.config import DecoderConfig
from multihead.models.layers import (
    Embedding,
    EncoderLayer,
    Places,
    biased_positions,
    make_norm,
    places_of,
    rotary_positions,
)
from multihead.models.network import initialize, token_loss
from multihead.models.parallel_blocks import ParallelEncoderLayer
from multihead.models.state import Memory, TransformerState


@dataclass(frozen=True)
class DecoderState:
    """State of the decoder: what it has read, and the token that it reads next.

    The keys and values of what was read are those of a `TransformerState` without a source.
    """

    read: TransformerState
    given: Int[Tensor, " rows"]
    """The last token of a row's text so far, which its first step reads in place of the search's begin symbol; -1 in
    rows that have made it."""

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return self.read.rows

    def select(self, rows: Int[Tensor, " rows"]) -> DecoderState:
        """These rows, in this order; repetitions and an empty selection are allowed."""
        return DecoderState(self.read.select(rows), self.given[rows])

    def join(self, other: DecoderState) -> DecoderState:
        """The rows of both states, which may be at other positions."""
        return DecoderState(self.read.join(other.read), torch.cat((self.given, other.given)))


class DecoderLM(nn.Module):
    """The language model.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(nn.Embedding(config.vocab, config.width), config)
        kind = ParallelEncoderLayer if config.block == "parallel" else EncoderLayer
        self.layers = nn.ModuleList(kind(config, causal=True) for _ in range(config.decoder_layers))
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()
        self.positions = biased_positions(config, causal=True)
        self.rotary = rotary_positions(config)
        self.output = nn.Linear(config.width, config.vocab, bias=config.output_bias)
        self.output_scale = config.width**-0.5 if config.embedding_scale == "projection" else 1.0
        initialize(self, config.initialization)
        if config.tie_output:
            self.output.weight = self.embedding.table.weight

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Logits of the token after each position.

        Args:
            tokens: ids from the begin symbol on; padded on the right, where the logits are undefined.
        """
        logits: Tensor = self.output(self.hidden(tokens))
        return logits

    def hidden(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """The input of the output projection: ``forward(tokens) == output(hidden(tokens))``."""
        return self._finish(self._read(tokens)[0])

    def loss(
        self, tokens: Int[Tensor, "batch time"], following: Int[Tensor, "batch time"], *, smoothing: float
    ) -> Loss:
        """Label-smoothed cross-entropy of each next token, summed over the real tokens of ``following``."""
        return token_loss(self.hidden(tokens), self.output, following, self.config.padding_id, smoothing)

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> DecoderState:
        """The state after all but the last token of the text so far, which the first step reads.

        Args:
            source: the texts so far with their begin symbols, padded on the right.
            lengths: real ids in each row, at least 1.
        """
        read, width = lengths - 1, source.size(1)
        cache, padding = None, None
        if width > 1:
            _, caches = self._read(source[:, :-1])
            pad = width - 1 - read
            cache = tuple(_moved_right(layer, pad) for layer in caches)
            padding = pad if bool(pad.any()) else None
        given = source.gather(1, read[:, None]).squeeze(1)
        return DecoderState(TransformerState(Memory((), lengths), cache, read, padding), given)

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocab"], DecoderState]:
        """Log-probabilities of the next token of each row, whose last token is in ``tokens``; and the next state."""
        read, time = state.read, state.read.time + 1
        tokens = torch.where(state.given < 0, tokens, state.given)
        x = self.embedding.at(tokens, read.positions, time)
        mask = None if read.padding is None else ~Padding(read.padding)
        # Distances do not depend on the padding: the last positions of all rows coincide.
        bias = None if self.positions is None else self.positions(1, time)
        places = Places(bias, None if self.rotary is None else self.rotary(read.positions, time))
        caches = []
        for layer, cache in zip(self._layers(), read.cache or [None] * len(self.layers), strict=True):
            x, cache = layer.step(x, cache, mask, places)
            caches.append(cache)
        logits = self.output(self._finish(x[:, 0]))
        following = TransformerState(read.memory, tuple(caches), read.positions + 1, read.padding)
        log_probabilities = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return log_probabilities, DecoderState(following, torch.full_like(state.given, -1))

    def _read(self, tokens: Int[Tensor, "batch time"]) -> tuple[Tensor, list[KeyValue]]:
        """The states behind the last layer, and the keys and values of each layer."""
        x, mask, caches = self.embedding(tokens), Causal(), []
        places = places_of(self.positions, self.rotary, tokens.size(1), tokens.device)
        for layer in self._layers():
            x, cache = layer.step(x, None, mask, places)
            caches.append(cache)
        return x, caches

    def _finish(self, x: Tensor) -> Tensor:
        """Apply the last norm and the scale of the output projection."""
        x = self.norm(x)
        return x if self.output_scale == 1.0 else x * self.output_scale

    def _layers(self) -> Iterator[EncoderLayer]:
        """The layers with their type, which `nn.ModuleList` does not keep."""
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield layer


def _moved_right(cache: KeyValue, padding: Int[Tensor, " rows"]) -> KeyValue:
    """Rows that are padded on the right, padded on the left instead, by ``padding`` positions."""
    places = (torch.arange(cache.length, device=padding.device) - padding[:, None]).clamp(min=0)

    def move(x: Tensor) -> Tensor:  # [rows, heads, length, dim]
        return x.gather(2, places[:, None, :, None].expand(-1, x.size(1), -1, x.size(3)))

    return KeyValue(move(cache.key), move(cache.value))
