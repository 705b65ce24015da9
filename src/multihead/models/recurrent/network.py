"""The loss of a network that chooses where to look: cross-entropy and, for the choices, REINFORCE.

One position z_t of the source is drawn for each target position, so what is to be minimised is an expectation, and
its gradient has two parts (Xu et al. 2015, section 4.1, equation 11; by sampling, equation 12; Williams 1992):

    L      = E_z [sum_t l_t(z_1..t)]                        l_t = -log p(y_t | y_<t, z_1..t, x)
    grad L = E_z [sum_t grad l_t  -  sum_t R_t grad log p(z_t | z_<t, x)],      R_t = -sum_{t' >= t} l_t'

The first is the gradient at the positions that were drawn. In the second, the paper weights every choice by the whole
sentence's log-probability; here a choice is rewarded for what comes after it alone, since rewards before z_t are
fixed when it is drawn, and a number that does not depend on z_t has E[number grad log p(z_t)] = 0. That argument is
the one for every baseline, too. How choices are drawn is `multihead.attention.alignment`'s business, as are their
log-probabilities and `reinforce_loss`, on which this is built.

The recurrent encoder-decoder with attention (Bahdanau et al. 2015; Luong et al. 2015): in training, and by steps.

What reads the source is in `models.recurrent.encoder`, how recurrence and attention are wired in
`models.recurrent.decoder`, what decoding remembers in `models.recurrent.state`, and the gradient of drawn alignments
in `models.recurrent.network`. Scores and alignments are `multihead.attention`'s.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.alignment import MovingBaseline, entropy, log_prob, reinforce_loss
from multihead.attention.composition import masked_scores
from multihead.kernels.linear_cross_entropy import ROWS, Loss, linear_cross_entropy
from multihead.kernels.random import Dropout
from multihead.models.config import RecurrentConfig
from multihead.models.network import AttentionWeights, Network, Output, build_embeddings, initialize
from multihead.models.recurrent.decoder import Decoded, build_decoder
from multihead.models.recurrent.encoder import Encoded, RecurrentEncoder, WordEmbedding
from multihead.models.recurrent.state import Memory, RecurrentState


def reinforced_loss(
    states: Float[Tensor, "batch target width"],
    weight: Float[Tensor, "vocab width"],
    target_output: Int[Tensor, "batch target"],
    padding_id: int,
    smoothing: float,
    *,
    log_prob: Float[Tensor, "batch target"],
    entropy: Float[Tensor, "batch target"],
    baseline: nn.Parameter | None,
    entropy_weight: float,
    to_go: bool,
) -> Loss:
    r"""Sums over the real tokens, with the gradient of the expected loss (an unbiased estimate of it) in ``total``.

    .. math::
        \nabla \mathrm{total} = \sum_t \nabla \ell_t
            - \sum_t \big[(R_t - B_t)\, \nabla \log p(z_t) + \lambda_e \nabla H_t\big]

        \text{to\_go:}\quad R_t = -\sum_{t' \ge t} \ell_{t'},\ B_t = b\, n_t
        \qquad\text{else:}\quad R_t = -\ell_t,\ B_t = b

    l_t is the token's loss as it is minimised, smoothed or not: without smoothing, -l_t is log p(y_t). b is the moving
    average of -l_t over the batches before, n_t the number of real tokens from t on. Neither depends on this batch's
    choices (n_t is the data's: the target is given), so the mean of the second sum is what it is without them; but
    R_t - B_t stands around 0 at the beginning of a sentence as at its end, which with one number for all R_t it would
    not: they grow with n_t.

    The *value* of ``total`` is that of the cross-entropy alone; ``nll`` and ``correct`` are those of any model.

    Args:
        states: before the output projection.
        weight: of that projection.
        target_output: what is to be predicted.
        padding_id: what is not a token; whatever stands there in the other tensors is not looked at.
        smoothing: share of label smoothing.
        log_prob: log p(z_t | z_<t, x) of the position that was drawn for each target position.
        entropy: H_t of the distribution that it was drawn from, in nats.
        baseline: b, a number that is moved on in place (`MovingBaseline`: 0.9 of it and 0.1 of this batch's mean)
            after it was used, whenever ``log_prob`` has a gradient to give, as in training; None = no baseline.
        entropy_weight: lambda_e: more than 0 keeps the choices from settling too early.
        to_go: a choice is rewarded for all the tokens from its own on: right for every network. False: for its own
            token alone, with less variance; unbiased only where no state remembers what was chosen.
    """
    real = target_output != padding_id
    rows, targets = states[real], target_output[real]
    loss = linear_cross_entropy(rows, weight, targets, smoothing)
    token_rewards = -_token_losses(rows, weight, targets, smoothing)
    rewards = torch.zeros_like(log_prob, requires_grad=False).masked_scatter(real, token_rewards.to(log_prob.dtype))
    left = real.to(rewards.dtype)
    if to_go:
        rewards, left = _from_here_on(rewards), _from_here_on(left)
    advantage = rewards if baseline is None else rewards - baseline * left
    surrogate = len(real) * reinforce_loss(
        log_prob.where(real, 0.0), advantage, entropy=entropy.where(real, 0.0), entropy_weight=entropy_weight
    )
    if baseline is not None and log_prob.requires_grad:
        with torch.no_grad():
            baseline.copy_(MovingBaseline(value=baseline).update(token_rewards).value)
    return loss._replace(total=loss.total + (surrogate - surrogate.detach()))


@torch.no_grad()
def _token_losses(rows: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """l_t of each row, which `linear_cross_entropy` only sums; by pieces as there, at one third of its products."""
    pieces = []
    for piece, labels in zip(torch.split(rows, ROWS), torch.split(targets, ROWS), strict=True):
        logits = F.linear(piece, weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        pieces.append(F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing))
    return torch.cat(pieces)


def _from_here_on(values: Tensor) -> Tensor:
    """sum_{t' >= t} v_t' of [batch, target]."""
    return values.flip(1).cumsum(1).flip(1)


class RecurrentTranslator(Network):
    """A bidirectional encoder, and a decoder that asks it once a token.

    Args:
        config: its sizes; parameters are drawn from PyTorch's current generator.
    """

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        source, target = build_embeddings(config)
        self.encoder = RecurrentEncoder(WordEmbedding(source, config.dropout), config)
        self.target_words = WordEmbedding(target, config.dropout)
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
            to_go=self.config.feeds_context,
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
