"""The recurrent encoder-decoder with attention (Bahdanau et al. 2015; Luong et al. 2015): in training, and by steps.

What reads the source is in `models.recurrent.encoder`, how recurrence and attention are wired in
`models.recurrent.decoder`, what decoding remembers in `models.recurrent.state`, and the gradient of drawn alignments
in `models.recurrent.reinforce`. Scores and alignments are `multihead.attention`'s.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.alignment import entropy, log_prob
from multihead.attention.composition import masked_scores
from multihead.kernels.linear_cross_entropy import Loss
from multihead.kernels.random import Dropout
from multihead.models.initialize import initialize
from multihead.models.network import AttentionWeights, Network, Output, embeddings
from multihead.models.recurrent.config import RecurrentConfig
from multihead.models.recurrent.decoder import Decoded, build_decoder
from multihead.models.recurrent.encoder import Encoded, RecurrentEncoder, Words
from multihead.models.recurrent.reinforce import reinforced_loss
from multihead.models.recurrent.state import Memory, RecurrentState


class RecurrentTranslator(Network):
    """A bidirectional encoder, and a decoder that asks it once a token.

    Args:
        config: its sizes; parameters are drawn from PyTorch's current generator.
    """

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        source, target = embeddings(config)
        self.encoder = RecurrentEncoder(Words(source, config.dropout), config)
        self.target_words = Words(target, config.dropout)
        self.decoder = build_decoder(config, self.encoder.summary_width)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.target_vocab, bias=False)
        drawn = config.alignment == "sample"
        self.baseline = nn.Parameter(torch.zeros(()), requires_grad=False) if drawn else None
        """What rewards are compared with, if they are; moved on, not trained: a parameter for checkpoints."""
        initialize(self)
        self._tie_output(target)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What `copy.deepcopy` and pickle end with: copied parameters have lost their neighbours, too."""
        super().__setstate__(state)
        for module in self.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # into one piece, as cuDNN wants them; nothing happens on a CPU

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
            need_weights: also return ``cross``: one layer of one head, one-hot where positions are drawn (the
                arg-max when evaluating), and ``encoder`` if there is a self-attention; of trees it has a column 0
                for ROOT, [batch, 1, source, 1 + source].
        """
        encoded, _, decoded = self._run(source, source_lengths, target, need_weights)
        logits = self.output(self.dropout(decoded.states))
        if decoded.weights is None:
            return Output(logits, None)
        return Output(logits, AttentionWeights(encoded.weights, (), (decoded.weights[:, None],)))

    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """The joined states h~: ``forward(...).logits == output(hidden(...))``."""
        _, _, decoded = self._run(source, source_lengths, target, False)
        return self.dropout(decoded.states)  # type: ignore[no-any-return]

    def loss(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target_input: Int[Tensor, "batch target"],
        target_output: Int[Tensor, "batch target"],
        *,
        smoothing: float,
    ) -> Loss:
        """Label-smoothed cross-entropy, summed over the real tokens; with drawn positions, in training, REINFORCE.

        The positions are drawn from PyTorch's current generator, and the moving baseline is moved on.
        """
        if not self.training or self.config.alignment != "sample":
            return super().loss(source, source_lengths, target_input, target_output, smoothing=smoothing)
        _, memory, decoded = self._run(source, source_lengths, target_input, True)
        assert decoded.weights is not None
        scores, allowed = masked_scores(
            self.decoder.attention.score.from_keys(decoded.queries, memory.keys), memory.mask
        )
        return reinforced_loss(
            self.dropout(decoded.states),
            self.output.weight,
            target_output,
            self.config.padding_id,
            smoothing,
            log_prob=log_prob(decoded.weights, scores, allowed),
            entropy=entropy(scores, allowed),
            baseline=self.baseline if self.config.baseline == "moving" else None,
            entropy_weight=self.config.entropy_weight,
            to_go=self.config.remembers_choices,
        )

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> RecurrentState:
        """Encodes the sources; one row a sentence, nothing decoded yet."""
        return self.decoder.start(self.encoder(source, lengths), lengths)

    def step(
        self, tokens: Int[Tensor, " rows"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows vocab"], RecurrentState]:
        """Log-probabilities of the token after ``tokens``, which are each row's latest."""
        joined, following, _ = self.decoder.step(self.target_words(tokens), state)
        return self._log_probabilities(joined), following

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], RecurrentState]:
        """The same, and what is attended to."""
        joined, following, weights = self.decoder.step(self.target_words(tokens), state, need_weights=True)
        assert weights is not None
        return self._log_probabilities(joined), weights.flatten(0, 1), following

    def _log_probabilities(self, joined: Tensor) -> Tensor:
        logits: Tensor = self.output(self.dropout(joined))
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def _run(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, need_weights: bool
    ) -> tuple[Encoded, Memory, Decoded]:
        encoded: Encoded = self.encoder(source, source_lengths, need_weights=need_weights)
        state = self.decoder.start(encoded, source_lengths)
        return encoded, state.memory, self.decoder.whole(self.target_words(target), state, need_weights=need_weights)
