r"""Alignments: how scores become weights, softly or by a choice; and how a choice is trained.

    softmax            a = softmax(s)                                   differentiable
    argmax             a = 1[n = argmax s]                              no gradient
    sample             a ~ softmax(s), one-hot                          trained with `reinforce_loss`
    straight_through   the same forwards, softmax(s) backwards          Bengio et al. 2013, section 3
    gumbel             a = softmax((s + g) / tau), g ~ Gumbel(0, 1)     Jang et al. 2017, Maddison et al. 2017

An alignment takes scores and a boolean mask, True = may attend, and returns weights; where nothing may be attended
to, they are 0, and so is every gradient. While evaluating nothing is drawn: a sample is then the arg-max. Nothing is
kept: the log-probability of what was drawn is computed from the weights (`log_prob`). Marginals of chains and trees
are alignments too (`multihead.attention.structured`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attention.backends import HALF_TYPES
from multihead.attention.functional import masked_softmax
from multihead.errors import ConfigurationError, ShapeError

AlignmentName = Literal["softmax", "argmax", "sample", "straight_through", "gumbel"]


class Alignment(nn.Module, ABC):
    """Scores to weights. A subclass says how in `forward`."""

    @abstractmethod
    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """The weights.

        Args:
            scores: of every query and key.
            mask: True = may attend.
            generator: where random numbers come from, on the scores' device (default: PyTorch's own).
        """


class Softmax(Alignment):
    """Soft attention: the probabilities themselves."""

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Float[Tensor, "batch query key"]:
        """softmax(s) over the keys that the mask allows."""
        return masked_softmax(scores, mask)


class Argmax(Alignment):
    """Hard attention to the key of the highest score (of equals, the first): one-hot, without a gradient."""

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Float[Tensor, "batch query key"]:
        """1 at the arg-max, 0 elsewhere."""
        return _one_hot(scores, mask)


class Sample(Alignment):
    """Hard attention to one key drawn from softmax(s): one-hot, without a gradient. Evaluating: the arg-max."""

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """1 at what was drawn, 0 elsewhere."""
        return _one_hot(_perturbed(scores, generator) if self.training else scores, mask).to(scores.dtype)


class StraightThrough(Alignment):
    """Draws as `Sample` does; the gradient is the softmax's, as if that had been the output.

    The estimate is exact for a loss that is linear in the weights, and biased for others.
    """

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """One-hot forwards, softmax(s) backwards."""
        chosen = _one_hot(_perturbed(scores, generator) if self.training else scores, mask)
        return _with_gradient_of(masked_softmax(scores, mask), chosen.to(scores.dtype))


class Gumbel(Alignment):
    """The Gumbel-softmax: softmax((s + g) / tau) with Gumbel noise g, differentiable in s. Evaluating: without noise.

    Args:
        tau: the temperature. Towards 0 the weights become one-hot samples of softmax(s), and their gradients wild. An
            attribute, to be lowered in the course of training.
        hard: one-hot forwards (the largest weight), these weights backwards.

    Raises:
        ConfigurationError: a tau that is not above 0.
    """

    def __init__(self, tau: float = 1.0, hard: bool = False) -> None:
        super().__init__()
        if not tau > 0:
            raise ConfigurationError(f"tau={tau}: a temperature above 0 is needed")
        self.tau, self.hard = tau, hard

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """Weights that sum to 1; one-hot if ``hard``."""
        noisy = _perturbed(scores, generator) if self.training else scores
        weights = masked_softmax(noisy / self.tau, mask).to(scores.dtype)
        return _with_gradient_of(weights, _one_hot(noisy, mask).to(scores.dtype)) if self.hard else weights

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"tau={self.tau}, hard={self.hard}"


BY_NAME: dict[str, Callable[[], Alignment]] = {
    "softmax": Softmax,
    "argmax": Argmax,
    "sample": Sample,
    "straight_through": StraightThrough,
    "gumbel": Gumbel,
}


def named(align: AlignmentName | Alignment) -> Alignment:
    """The alignment of that name; one that is made already is handed back.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if isinstance(align, Alignment):
        return align
    if align not in BY_NAME:
        raise ConfigurationError(
            f"align={align!r}: there are {', '.join(BY_NAME)}, and objects such as Gumbel(tau=0.5)"
        )
    return BY_NAME[align]()


def log_prob(
    weights: Float[Tensor, "batch query key"],
    scores: Float[Tensor, "batch query key"],
    mask: Bool[Tensor, "#batch #query #key"] | None = None,
) -> Float[Tensor, "batch query"]:
    """log p(z = n) under softmax(s), n being where the one-hot weights are 1: what REINFORCE differentiates.

    0 where nothing may be attended to, since nothing was chosen there. The weights get no gradient.
    """
    return (weights.detach() * _log_softmax(scores, mask)).sum(-1)


def entropy(
    scores: Float[Tensor, "batch query key"], mask: Bool[Tensor, "#batch #query #key"] | None = None
) -> Float[Tensor, "batch query"]:
    """H = -sum_n p_n log p_n of softmax(s), in nats; 0 where nothing may be attended to."""
    return -(masked_softmax(scores, mask) * _log_softmax(scores, mask)).sum(-1)


def reinforce_loss(
    log_prob: Float[Tensor, "*steps"],
    reward: Float[Tensor, "*rewarded"],
    baseline: Float[Tensor, ""] | float | None = None,
    entropy: Float[Tensor, "*steps"] | None = None,
    entropy_weight: float = 0.0,
) -> Float[Tensor, ""]:
    r"""What to minimise so that choices with a high reward become probable.

    .. math::
        \mathcal{L} = -\frac{1}{N} \sum_{i=1}^N \Big[ (r_i - b) \log p(z_i) + \lambda_e H_i \Big]

    Its gradient is the estimate of Williams 1992 and, with r = log p(y | z), the part of Xu et al. 2015 (section 4.1)
    that goes through the choices; the loss -log p(y | z) itself is added to it by the caller. Neither reward nor
    baseline get a gradient.

    Args:
        log_prob: of what was chosen, from `log_prob`; one number a sentence and step.
        reward: one a sentence (then the log-probabilities of its steps are added up), or one a sentence and step.
        baseline: b, anything that does not depend on this choice, such as `MovingBaseline`'s value: it lowers the
            variance and changes no mean.
        entropy: H, from `entropy`, shaped like ``log_prob``.
        entropy_weight: lambda_e.

    Raises:
        ShapeError: the rewards are neither one a sentence nor one a step.
    """
    if reward.shape not in (log_prob.shape, log_prob.shape[:1]):
        raise ShapeError(
            f"reward has shape {list(reward.shape)}: give one a sentence {list(log_prob.shape[:1])} or one a step "
            f"{list(log_prob.shape)}, like log_prob"
        )
    advantage = (reward if baseline is None else reward - baseline).detach()
    gain = advantage.reshape(*advantage.shape, *[1] * (log_prob.dim() - advantage.dim())) * log_prob
    if entropy is not None:
        gain = gain + entropy_weight * entropy
    return -gain.flatten(1).sum(1).mean() if gain.dim() > 1 else -gain.mean()


@dataclass(frozen=True)
class MovingBaseline:
    """The moving average of rewards, a value: ``baseline = baseline.update(reward)`` after each step.

    b <- decay b + (1 - decay) mean reward (Xu et al. 2015, section 4.1, with 0.9 and 0.1, starting at 0).

    Args:
        decay: how much of the old value is kept.
        value: where it stands.

    Raises:
        ConfigurationError: a decay outside 0 to 1.
    """

    decay: float = 0.9
    value: Float[Tensor, ""] = field(default_factory=lambda: torch.zeros(()))

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigurationError(f"decay={self.decay}: a number from 0 to 1 is needed")

    def update(self, reward: Float[Tensor, "*axes"]) -> MovingBaseline:
        """The baseline after these rewards."""
        mean = reward.detach().mean()
        return replace(self, value=self.decay * self.value.to(mean) + (1 - self.decay) * mean)


def _perturbed(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """s + g: its arg-max is a sample of softmax(s) (Gumbel 1954). In float32 at least."""
    work = scores.float() if scores.dtype in HALF_TYPES else scores
    exponential = torch.empty_like(work, requires_grad=False).exponential_(generator=generator)
    return work - exponential.clamp_(min=torch.finfo(work.dtype).tiny).log_()


def _one_hot(scores: Tensor, mask: Tensor | None) -> Tensor:
    if scores.shape[-1] == 0:
        return scores.detach()
    allowed = scores.detach() if mask is None else scores.detach().masked_fill(~mask, torch.finfo(scores.dtype).min)
    chosen = torch.zeros_like(allowed).scatter_(-1, allowed.argmax(-1, keepdim=True), 1.0)
    return chosen if mask is None else chosen * mask


def _with_gradient_of(soft: Tensor, value: Tensor) -> Tensor:
    """``value``, to the last bit, with the gradient of ``soft``."""
    return value + (soft - soft.detach())


def _log_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """log softmax over the allowed keys; at the others a huge number, not -inf: it is multiplied by a weight of 0."""
    work = scores.float() if scores.dtype in HALF_TYPES else scores
    return (work if mask is None else work.masked_fill(~mask, torch.finfo(work.dtype).min)).log_softmax(-1)
