r"""Pointer networks: every output is an input (Vinyals et al. 2015).

    e_1 .. e_N  = encoder(x_1 .. x_N),   e_0 learned: the end
    h_m         = LSTM(x_{c_{m-1}}, h_{m-1}),   x_{c_0} a learned start,   h_0 the encoder's last state
    p(c_m = n | c_1 .. c_{m-1}, x) = softmax_n( v . tanh(W e_n + U h_m) )        (equation 3)

The paper scores the encoder's states instead of the inputs, and feeds back the chosen input itself (section 2.3). The
encoder is an LSTM, as in the paper, or a Transformer encoder. Inputs are real numbers; a choice is a symbol of a
vocabulary that depends on the row (`models.pointer.config`), so that the searches for translators work here, too.
Scaling the inputs is left to `data.toy.pointing`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multihead.attention import Padding, PointerAttention, zero_padding
from multihead.errors import ShapeError
from multihead.kernels.linear import Loss
from multihead.kernels.random import Dropout
from multihead.models.layers import EncoderLayer, SinusoidalPositions
from multihead.models.network import initialize
from multihead.models.pointer.config import FIRST, PADDING, PointerConfig
from multihead.models.pointer.state import Choices, PointerState
from multihead.models.recurrent.cells import CellState, Recurrent, run_layers
from multihead.models.stack_config import StackConfig


class Encoded(NamedTuple):
    """The encoded inputs."""

    states: Float[Tensor, "batch inputs width"]
    """e_n; zero in the padding."""
    last: CellState
    """(h, c): the initial state of the decoder."""


class RecurrentEncoder(nn.Module):
    """e_n = LSTM(x_n, e_{n-1}); the decoder starts from the last state   (Vinyals et al. 2015, section 2.3).

    With ``encoder`` 'bidirectional' e_n = [forward; backward], and the last state joins the last states of both
    directions.

    Args:
        config: settings of the network.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        both = config.encoder == "bidirectional"
        between = config.dropout if config.layers > 1 else 0.0
        size = config.width // 2 if both else config.width
        self.lstm = nn.LSTM(config.width, size, config.layers, batch_first=True, dropout=between, bidirectional=both)

    def forward(self, x: Float[Tensor, "batch inputs width"], lengths: Int[Tensor, " batch"]) -> Encoded:
        """Encode the embedded inputs of each row.

        Raises:
            ShapeError: the length of a row is 0 or more than the number of inputs.
        """
        on_host = lengths.cpu()
        outside = ((on_host < 1) | (on_host > x.size(1))).nonzero()
        if len(outside):
            row = int(outside[0])
            raise ShapeError(
                f"row {row} has the length {int(on_host[row])} in a batch of {x.size(1)} inputs; expected 1 to "
                f"{x.size(1)}: an empty row has nothing to point at"
            )
        packed = pack_padded_sequence(x, on_host, batch_first=True, enforce_sorted=False)
        states, cell_state = run_layers(self.lstm, packed)
        padded, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
        directions = 2 if self.lstm.bidirectional else 1
        last = tuple(torch.cat(tuple(part[-directions:]), dim=-1) for part in cell_state)  # of the last layer
        return Encoded(padded, last)


class TransformerEncoder(nn.Module):
    """e = norm(EncoderLayer(... (x + p))), pre-norm; the decoder starts from [tanh(h); c] = V mean_n e_n + b.

    Without the positions p the encoder is equivariant to permutations of the inputs, and the mean is invariant.

    Args:
        config: settings of the network.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        sizes = StackConfig(
            width=config.width,
            heads=config.heads,
            inner=config.inner,
            positions="learned",  # unused: the token embedding of a Transformer is not built
            dropout=config.dropout,
            norm="pre",
        )
        self.positions = SinusoidalPositions(config.width) if config.positions else None
        self.layers = nn.ModuleList(EncoderLayer(sizes) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=sizes.norm_eps)
        self.start = nn.Linear(config.width, 2 * config.width)

    def forward(self, x: Float[Tensor, "batch inputs width"], lengths: Int[Tensor, " batch"]) -> Encoded:
        """Encode the embedded inputs of each row."""
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.size(1), device=x.device), x.size(1)).to(x.dtype)
        mask = Padding(lengths)
        for layer in self.layers:
            x, _ = layer(x, mask)
        states = zero_padding(self.norm(x), lengths)
        mean = states.sum(1) / lengths.clamp(min=1)[:, None]
        hidden, cell = self.start(mean).chunk(2, dim=-1)
        return Encoded(states, (hidden.tanh(), cell))


class InputEmbedding(nn.Module):
    """dropout(A x_n + a) for inputs x_n of real numbers.

    Args:
        config: settings of the network.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.features, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, inputs: Float[Tensor, "batch inputs features"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch inputs width"]:
        """Embed the inputs; padding is read as zeros.

        Raises:
            ShapeError: the inputs have another number of features.
        """
        if inputs.dim() != 3 or inputs.size(2) != self.linear.in_features:
            raise ShapeError(
                f"the inputs have shape {list(inputs.shape)}, but this network reads [batch, inputs, "
                f"{self.linear.in_features}]"
            )
        real = zero_padding(inputs, lengths).to(self.linear.weight.dtype)
        embedded: Tensor = self.dropout(self.linear(real))
        return embedded


_SPECIAL = FIRST - 1
"""Number of symbols before the choices (padding and begin): the index of a choice is its symbol minus this."""


class PointerNetwork(nn.Module):
    """Chooses inputs one after the other until it chooses the end.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.embedding = InputEmbedding(config)
        self.encoder = TransformerEncoder(config) if config.encoder == "transformer" else RecurrentEncoder(config)
        self.begin = nn.Parameter(torch.empty(width))
        self.end = nn.Parameter(torch.empty(width))
        self.decoder = Recurrent("lstm", width, width)
        self.pointer = PointerAttention(width, width, width)
        initialize(self)
        for vector in (self.begin, self.end):
            nn.init.normal_(vector, std=width**-0.5)

    @property
    def max_positions(self) -> None:
        """There is no limit of positions."""
        return None

    def forward(
        self,
        source: Float[Tensor, "batch inputs features"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target symbols"]:
        """Log-probabilities of the symbol after each target position (teacher forcing); symbols = 3 + inputs.

        Args:
            source: the inputs, padded on the right.
            source_lengths: real inputs of each row.
            target: symbols from `BEGIN` on; padded on the right, where the result is undefined.

        Raises:
            ShapeError: a row has no inputs, or the inputs have another number of features.
        """
        return _with_special(_at_least_float32(self._point_all(source, source_lengths, target)))

    def loss(
        self,
        source: Float[Tensor, "batch inputs features"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        *,
        smoothing: float,
    ) -> Loss:
        """The cross-entropy, summed over the targets that are not padding.

        For each target it is -(1 - s) log p_y - s mean_n log p_n, where n runs over the possible choices: the row's
        inputs and the end, without earlier choices if ``no_repeats`` is set. An impossible target has an infinite loss.
        """
        real = target_output != PADDING
        scored = _at_least_float32(self._point_all(source, source_lengths, target_input)[real])  # [targets, choices]
        at_target = scored.gather(1, target_output[real][:, None] - _SPECIAL).squeeze(1)
        total = nll = -at_target.sum()
        if smoothing:
            possible = scored > -torch.inf
            mean = scored.masked_fill(~possible, 0).sum(1) / possible.sum(1)
            total = (1 - smoothing) * nll - smoothing * mean.sum()
        return Loss(total, nll.detach(), (at_target == scored.amax(1)).sum())

    def start(self, source: Float[Tensor, "batch inputs features"], lengths: Int[Tensor, " batch"]) -> PointerState:
        """Encode the inputs; the state has one row per input set and no choices yet."""
        choices, cell_state = self._read(source, lengths)
        visited = choices.keys.new_zeros(choices.keys.shape[:2], dtype=torch.bool)
        return PointerState(choices, cell_state, visited)

    def step(
        self, tokens: Int[Tensor, " rows"], state: PointerState
    ) -> tuple[Float[Tensor, "rows symbols"], PointerState]:
        """Log-probabilities of the next symbol of each row, whose last one is in ``tokens``; -inf beyond its inputs."""
        choices, place = state.choices, _choice_index(tokens)
        sentence = torch.arange(state.rows, device=tokens.device) // state.group
        cell_state = self.decoder.step(self.decoder.project(choices.decoder_inputs[sentence, place]), state.cell_state)
        visited = state.visited.scatter(1, place[:, None], (place > 0)[:, None])
        grouped = (len(choices.lengths), state.group)  # hypotheses of a sentence are queries to the same keys
        excluded = visited.view(*grouped, visited.size(1)) if self.config.no_repeats else None
        queries = cell_state[0].view(*grouped, cell_state[0].size(1))
        pointed = self.pointer.point(queries, choices.keys, mask=Padding(choices.lengths), visited=excluded)
        log_probabilities = _with_special(_at_least_float32(pointed.flatten(0, 1)))
        return log_probabilities, PointerState(choices, cell_state, visited)

    def _read(self, source: Tensor, lengths: Tensor) -> tuple[Choices, CellState]:
        """The choices (the end, then the inputs), and the initial state of the decoder."""
        embedded = self.embedding(source, lengths)
        encoded: Encoded = self.encoder(embedded, lengths)
        keys = self.pointer.score.keys(_before(self.end, encoded.states))
        return Choices(keys, _before(self.begin, embedded), lengths + 1), encoded.last

    def _point_all(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities of each choice after each target position, [batch, target, 1 + inputs]."""
        choices, cell_state = self._read(source, lengths)
        places = _choice_index(target)
        inputs = choices.decoder_inputs.gather(1, places[..., None].expand(-1, -1, choices.decoder_inputs.size(2)))
        visited = _visited(places, choices.keys.size(1)) if self.config.no_repeats else None
        states = self.decoder(inputs, cell_state)
        return self.pointer.point(states, choices.keys, mask=Padding(choices.lengths), visited=visited)


def _choice_index(symbols: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    """Index of each symbol among the choices; begin and padding get index 0, where the input of the first step is."""
    return (symbols - _SPECIAL).clamp(min=0)


def _before(vector: Float[Tensor, " width"], rows: Float[Tensor, "batch inputs width"]) -> Tensor:
    """Prepend a vector to each row."""
    return torch.cat((vector.to(rows.dtype).expand(len(rows), 1, -1), rows), dim=1)


def _visited(places: Int[Tensor, "batch target"], choices: int) -> Bool[Tensor, "batch target choices"]:
    """The choices made up to each position; never index 0, the end."""
    chosen = F.one_hot(places, choices)
    chosen[..., 0] = 0
    return chosen.cumsum(1) > 0


def _with_special(log_probabilities: Float[Tensor, "*axes choices"]) -> Float[Tensor, "*axes symbols"]:
    """Log-probabilities of symbols: those of the choices, after -inf for the special symbols."""
    return F.pad(log_probabilities, (_SPECIAL, 0), value=-torch.inf)


def _at_least_float32(log_probabilities: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """As float32, unless the dtype is wider already: the results are summed."""
    return log_probabilities.to(torch.promote_types(log_probabilities.dtype, torch.float32))
