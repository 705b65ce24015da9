r"""Recurrent encoder-decoder with attention; loss of sampled alignments.

Bahdanau et al. 2015; Luong et al. 2015. The source is encoded in `models.recurrent.encoder`, recurrence and attention
are combined in `models.recurrent.decoder`; scores and alignments are in `multihead.attention`.

With sampled alignments (hard attention), one position z_t of the source is sampled for each target position. The loss
is then an expectation, whose gradient has two parts (Xu et al. 2015, section 4.1, equation 11; by sampling, equation
12; Williams 1992):

    L      = E_z [sum_t l_t(z_1..t)]                        l_t = -log p(y_t | y_<t, z_1..t, x)
    grad L = E_z [sum_t grad l_t  -  sum_t R_t grad log p(z_t | z_<t, x)],      R_t = -sum_{t' >= t} l_t'

The first part is the gradient at the sampled positions. In the second part, the paper weights every choice by the log
probability of the whole sentence. Here a choice is rewarded only for what comes after it (reward to go): rewards before
z_t do not depend on it, and a number that does not depend on z_t has E[number grad log p(z_t)] = 0. For the same
reason any baseline may be subtracted. `reinforced_loss` computes this with `attention.alignment.reinforce_loss`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.alignment import MovingBaseline, entropy, log_prob, reinforce_loss
from multihead.attention.composition import masked_scores
from multihead.errors import ConfigurationError
from multihead.kernels.guided import Links
from multihead.kernels.linear import LOSS_ROWS, Loss, linear_cross_entropy
from multihead.kernels.random import Dropout
from multihead.kernels.soft_targets import SoftTargets
from multihead.models.config import RecurrentConfig
from multihead.models.network import AttentionWeights, Network, Output, build_embeddings, initialize
from multihead.models.recurrent.decoder import Decoded, build_decoder
from multihead.models.recurrent.encoder import Encoded, RecurrentEncoder, WordEmbedding
from multihead.models.recurrent.state import Memory, RecurrentState


class RecurrentTranslator(Network):
    """A bidirectional encoder, and a decoder that attends to it at each step.

    Args:
        config: settings; parameters are drawn from PyTorch's current generator.
    """

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        source, target = build_embeddings(config)
        assert isinstance(source, nn.Embedding)
        self.encoder = RecurrentEncoder(WordEmbedding(source, config.dropout), config)
        self.target_words = WordEmbedding(target, config.dropout)
        self.decoder = build_decoder(config, self.encoder.summary_width)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.target_vocab, bias=False)
        sampled = config.alignment == "sample"
        self.baseline = nn.Parameter(torch.zeros(()), requires_grad=False) if sampled else None
        """Moving average of the rewards; not trained, but a parameter, so that checkpoints include it."""
        initialize(self)
        self._tie_output(target)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called at the end of `copy.deepcopy` and unpickling, after which the weights of an RNN are not contiguous."""
        super().__setstate__(state)
        for module in self.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # one contiguous block for cuDNN; no effect on a CPU

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
            need_weights: also return ``cross``, one layer of one head, one-hot if positions are sampled (the arg-max
                in evaluation), and ``encoder`` if there is a self-attention; that of trees has a column 0 for ROOT,
                [batch, 1, source, 1 + source].
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
        soft: SoftTargets | None = None,
        weights: Float[Tensor, " batch"] | None = None,
        links: Links | None = None,
        *,
        smoothing: float,
    ) -> Loss:
        """Label-smoothed cross-entropy, summed over the real tokens; with sampled positions also REINFORCE.

        In training, the positions are sampled from PyTorch's current generator; `follow_loss` moves the baseline.

        Raises:
            ConfigurationError: soft targets or weights with sampled positions, which are rewarded for labels alone.
        """
        if not self.training or self.config.alignment != "sample":
            given = source, source_lengths, target_input, target_output, soft, weights, links
            return super().loss(*given, smoothing=smoothing)
        if (soft, weights, links) != (None, None, None):
            raise ConfigurationError(
                "sampled alignments learn from labels only: train without soft targets, weights and links"
            )
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

    @torch.no_grad()
    def follow_loss(self, loss: float) -> None:
        """Move the baseline of sampled positions after an update (`training.splitting.FollowsLoss`).

        Args:
            loss: the mean smoothed loss of a token in the whole update: the negative of its mean reward.
        """
        if self.baseline is not None and self.config.baseline == "moving":
            self.baseline.copy_(MovingBaseline(value=self.baseline).update(self.baseline.new_tensor(-loss)).value)

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> RecurrentState:
        """Encode the sources; the state has one row per sentence and no target positions."""
        return self.decoder.start(self.encoder(source, lengths), lengths)

    def step(
        self, tokens: Int[Tensor, " rows"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows vocab"], RecurrentState]:
        """Log-probabilities of the next token of each row, whose last token is in ``tokens``; and the next state."""
        joined, following, _ = self.decoder.step(self.target_words(tokens), state)
        return self._log_probabilities(joined), following

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], RecurrentState]:
        """As `step`, with the attention weights in between."""
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


def reinforced_loss(
    states: Float[Tensor, "batch target width"],
    weight: Float[Tensor, "vocab width"],
    target_output: Int[Tensor, "batch target"],
    padding_id: int,
    smoothing: float,
    *,
    log_prob: Float[Tensor, "batch target"],
    entropy: Float[Tensor, "batch target"],
    baseline: Float[Tensor, ""] | None,
    entropy_weight: float,
    to_go: bool,
) -> Loss:
    r"""Sums over the real tokens; the gradient of ``total`` is an unbiased estimate of that of the expected loss.

    .. math::
        \nabla \mathrm{total} = \sum_t \nabla \ell_t
            - \sum_t \big[(R_t - B_t)\, \nabla \log p(z_t) + \lambda_e \nabla H_t\big]

        \text{to\_go:}\quad R_t = -\sum_{t' \ge t} \ell_{t'},\ B_t = b\, n_t
        \qquad\text{else:}\quad R_t = -\ell_t,\ B_t = b

    l_t is the loss of a token, with label smoothing; without smoothing, -l_t is log p(y_t). b is the moving average of
    -l_t over earlier updates, n_t the number of real tokens from t on. Neither depends on this batch's choices, so the
    baseline does not change the mean of the second sum. Multiplying b by n_t keeps R_t - B_t around 0 at the beginning
    of a sentence as at its end, because R_t grows with n_t.

    The *value* of ``total`` is the cross-entropy alone; ``nll`` and ``correct`` are as for any model.

    Args:
        states: input of the output projection.
        weight: weight of the output projection.
        target_output: the target.
        padding_id: id of padding; values of other tensors at padding are ignored.
        smoothing: share of label smoothing.
        log_prob: log p(z_t | z_<t, x) of the position sampled for each target position.
        entropy: entropy H_t of the distribution that it was sampled from, in nats.
        baseline: b; None = no baseline.
        entropy_weight: lambda_e; above 0 it keeps the distributions from becoming deterministic too early.
        to_go: reward a choice for all tokens from its own on, which is right for every network. False rewards it for
            its own token only, with less variance; unbiased only if later states do not depend on the choice.
    """
    real = target_output != padding_id  # [batch, target]
    rows, targets = states[real], target_output[real]
    loss = linear_cross_entropy(rows, weight, targets, smoothing)
    token_rewards = -_token_losses(rows, weight, targets, smoothing)
    rewards = torch.zeros_like(log_prob, requires_grad=False).masked_scatter(real, token_rewards.to(log_prob.dtype))
    counts = real.to(rewards.dtype)
    if to_go:
        rewards, counts = _reverse_cumsum(rewards), _reverse_cumsum(counts)
    advantage = rewards if baseline is None else rewards - baseline * counts
    surrogate = len(real) * reinforce_loss(
        log_prob.where(real, 0.0), advantage, entropy=entropy.where(real, 0.0), entropy_weight=entropy_weight
    )
    return loss._replace(total=loss.total + (surrogate - surrogate.detach()))  # its gradient, but not its value


@torch.no_grad()
def _token_losses(rows: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """l_t of each row, which `linear_cross_entropy` only sums; piece by piece, at a third of the cost."""
    pieces = []
    for piece, labels in zip(torch.split(rows, LOSS_ROWS), torch.split(targets, LOSS_ROWS), strict=True):
        logits = F.linear(piece, weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        pieces.append(F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing))
    return torch.cat(pieces)


def _reverse_cumsum(values: Tensor) -> Tensor:
    """sum_{t' >= t} v_t' of [batch, target]."""
    return values.flip(1).cumsum(1).flip(1)
