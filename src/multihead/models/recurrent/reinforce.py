r"""The loss of a network that chooses where to look: cross-entropy and, for the choices, REINFORCE.

One position z_t of the source is drawn for each target position, so what is to be minimised is an expectation, and
its gradient has two parts (Xu et al. 2015, section 4.1, equation 11; by sampling, equation 12; Williams 1992):

    L      = E_z [sum_t l_t(z_1..t)]                        l_t = -log p(y_t | y_<t, z_1..t, x)
    grad L = E_z [sum_t grad l_t  -  sum_t R_t grad log p(z_t | z_<t, x)],      R_t = -sum_{t' >= t} l_t'

The first is the gradient at the positions that were drawn. In the second, the paper weights every choice by the whole
sentence's log-probability; here a choice is rewarded for what comes after it alone, since rewards before z_t are
fixed when it is drawn, and a number that does not depend on z_t has E[number grad log p(z_t)] = 0. That argument is
the one for every baseline, too. How choices are drawn is `multihead.attention.alignment`'s business, as are their
log-probabilities and `reinforce_loss`, on which this is built.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.alignment import MovingBaseline, reinforce_loss
from multihead.kernels.linear_cross_entropy import ROWS, Loss, linear_cross_entropy


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
