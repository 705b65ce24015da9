r"""Alignments from scores to weights, soft or hard, and REINFORCE.

    softmax            a = softmax(s)                                   differentiable
    argmax             a = 1[n = argmax s]                              no gradient
    sample             a ~ softmax(s), one-hot                          trained with `reinforce_loss`
    straight_through   sample in forward, softmax(s) in backward        Bengio et al. 2013, section 3
    gumbel             a = softmax((s + g) / tau), g ~ Gumbel(0, 1)     Jang et al. 2017, Maddison et al. 2017
    sparsemax          a = argmin_p |p - s|^2                           Martins & Astudillo 2016; exact zeros
    entmax15           a = argmax_p p . s + H_1.5(p)                    Peters et al. 2019; exact zeros
    sigmoid            a = sigmoid(s - log n), n the number of keys     Ramapuram et al. 2024; not a distribution

An alignment maps scores and a boolean mask (True = may attend) to weights. A query that may attend to nothing has zero
weights and zero gradients. In evaluation mode nothing is drawn, and a sample is the arg-max. An alignment keeps no
state: the log-probability of a choice is computed from the weights (`log_prob`). Marginals of chains and trees are
alignments too (`multihead.attention.structured`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attention.backends.call import at_least_float32
from multihead.attention.backends.explicit import masked_softmax
from multihead.attention.sparse import entmax15, sparsemax
from multihead.errors import ConfigurationError, ShapeError

AlignmentName = Literal["softmax", "argmax", "sample", "straight_through", "gumbel", "sparsemax", "entmax15", "sigmoid"]


class Alignment(nn.Module, ABC):
    """Base class: `forward` maps scores to weights."""

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
            scores: the score of every query and key.
            mask: True = may attend.
            generator: source of random numbers, on the scores' device (default: PyTorch's own).
        """


class _Distribution(Alignment):
    """A differentiable distribution over the keys, a function of scores and mask."""

    of: ClassVar[Callable[..., Tensor]]

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Float[Tensor, "batch query key"]:
        """The weights of the keys that the mask allows."""
        return type(self).of(scores, mask)


class Softmax(_Distribution):
    """Soft attention: the weights are the probabilities."""

    of = staticmethod(masked_softmax)


class Argmax(Alignment):
    """Hard attention to the key with the highest score (the first one on ties): one-hot, without a gradient."""

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
    """Hard attention to one key drawn from softmax(s): one-hot, no gradient. In evaluation mode, the arg-max."""

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """1 at the drawn key, 0 elsewhere."""
        return _one_hot(_add_gumbel_noise(scores, generator) if self.training else scores, mask).to(scores.dtype)


class StraightThrough(Alignment):
    """The straight-through estimator: a sample in the forward pass, the gradient of softmax(s) in the backward pass.

    The gradient estimate is unbiased for a loss that is linear in the weights, and biased otherwise.
    """

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """One-hot weights with the gradient of softmax(s)."""
        chosen = _one_hot(_add_gumbel_noise(scores, generator) if self.training else scores, mask)
        return _replace_gradient(masked_softmax(scores, mask), chosen.to(scores.dtype))


class Gumbel(Alignment):
    """The Gumbel-softmax: softmax((s + g) / tau) with Gumbel noise g, differentiable in s.

    In evaluation mode there is no noise.

    Args:
        tau: the temperature. As it approaches 0, the weights become one-hot samples of softmax(s) and the variance of
            their gradients grows. It is an attribute that may be lowered during training.
        hard: one-hot weights (at the largest weight) with the gradient of the soft ones.

    Raises:
        ConfigurationError: ``tau`` is not above 0.
    """

    def __init__(self, tau: float = 1.0, hard: bool = False) -> None:
        super().__init__()
        if not tau > 0:
            raise ConfigurationError(f"tau={tau}: expected a temperature above 0")
        self.tau, self.hard = tau, hard

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """Weights that sum to 1; one-hot if ``hard``."""
        noisy = _add_gumbel_noise(scores, generator) if self.training else scores
        weights = masked_softmax(noisy / self.tau, mask).to(scores.dtype)
        return _replace_gradient(weights, _one_hot(noisy, mask).to(scores.dtype)) if self.hard else weights

    def extra_repr(self) -> str:
        return f"tau={self.tau}, hard={self.hard}"


class Sparsemax(_Distribution):
    """The distribution nearest to the scores (`multihead.attention.sparse.sparsemax`): low scores get exactly 0."""

    of = staticmethod(sparsemax)


class Entmax15(_Distribution):
    """Between softmax and sparsemax (`multihead.attention.sparse.entmax15`): low scores get exactly 0."""

    of = staticmethod(entmax15)


class Sigmoid(Alignment):
    r"""Sigmoid attention (Ramapuram et al. 2024): each key is weighed by itself.

    .. math::
        a_n = \sigma(s_n + b), \qquad b = -\log N

    The weights need not sum to 1. N is the number of keys that the query may attend to, so padding changes nothing; at
    scores of 0 the weights sum to about 1, as those of a softmax do.

    Args:
        bias: b, a number; None = -log N.
    """

    def __init__(self, bias: float | None = None) -> None:
        super().__init__()
        self.bias = bias

    def forward(
        self,
        scores: Float[Tensor, "batch query key"],
        mask: Bool[Tensor, "#batch #query #key"] | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Float[Tensor, "batch query key"]:
        """sigmoid(s + b) for the keys that the mask allows, 0 for the others."""
        work = at_least_float32(scores)
        shift: Tensor | float
        if self.bias is not None:
            shift = self.bias
        else:
            allowed = scores.new_ones(1, 1, scores.shape[-1]) if mask is None else mask.expand(scores.shape)
            shift = -allowed.sum(-1, keepdim=True, dtype=work.dtype).clamp(min=1).log()
        weights = (work + shift).sigmoid()
        return (weights if mask is None else weights.masked_fill(~mask, 0)).to(scores.dtype)

    def extra_repr(self) -> str:
        return "" if self.bias is None else f"bias={self.bias}"


BY_NAME: dict[str, Callable[[], Alignment]] = {
    "softmax": Softmax,
    "argmax": Argmax,
    "sample": Sample,
    "straight_through": StraightThrough,
    "gumbel": Gumbel,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "sigmoid": Sigmoid,
}


def build_alignment(align: AlignmentName | Alignment) -> Alignment:
    """The alignment with the given name; an `Alignment` is returned as it is.

    Raises:
        ConfigurationError: the name is unknown.
    """
    if isinstance(align, Alignment):
        return align
    if align not in BY_NAME:
        raise ConfigurationError(
            f"align={align!r}: expected one of {', '.join(BY_NAME)}, or an object such as Gumbel(tau=0.5)"
        )
    return BY_NAME[align]()


def log_prob(
    weights: Float[Tensor, "batch query key"],
    scores: Float[Tensor, "batch query key"],
    mask: Bool[Tensor, "#batch #query #key"] | None = None,
) -> Float[Tensor, "batch query"]:
    """log p(z = n) under softmax(s), where n is the key of the one-hot weights: the term that REINFORCE differentiates.

    0 for a query that may attend to nothing. The weights get no gradient.
    """
    return (weights.detach() * _log_softmax(scores, mask)).sum(-1)


def entropy(
    scores: Float[Tensor, "batch query key"], mask: Bool[Tensor, "#batch #query #key"] | None = None
) -> Float[Tensor, "batch query"]:
    """H = -sum_n p_n log p_n of softmax(s), in nats; 0 for a query that may attend to nothing."""
    logs = _log_softmax(scores, mask)
    # Without the fill, the gradient of a weight that is 0 would be infinite, and that of its score NaN.
    logs = logs if mask is None else logs.masked_fill(~mask, 0)
    return -(masked_softmax(scores, mask) * logs).sum(-1)


def reinforce_loss(
    log_prob: Float[Tensor, "*steps"],
    reward: Float[Tensor, "*rewarded"],
    baseline: Float[Tensor, ""] | float | None = None,
    entropy: Float[Tensor, "*steps"] | None = None,
    entropy_weight: float = 0.0,
) -> Float[Tensor, ""]:
    r"""The REINFORCE loss: minimizing it makes choices with a high reward more probable.

    .. math::
        \mathcal{L} = -\frac{1}{N} \sum_{i=1}^N \Big[ (r_i - b) \log p(z_i) + \lambda_e H_i \Big]

    Its gradient is the estimator of Williams 1992. With r = log p(y | z) it is the term of Xu et al. 2015 (section 4.1)
    for the choices; the caller adds the loss -log p(y | z) itself. Neither reward nor baseline gets a gradient.

    Args:
        log_prob: log-probability of each choice, from `log_prob`: one per sentence and step.
        reward: one per sentence (the log-probabilities of its steps are then added up), or one per sentence and step.
        baseline: b, any number that does not depend on this choice, such as the value of a `MovingBaseline`. It lowers
            the variance of the estimate and leaves its mean unchanged.
        entropy: H, from `entropy`, shaped like ``log_prob``.
        entropy_weight: lambda_e.

    Raises:
        ShapeError: the rewards are neither one per sentence nor one per step.
    """
    if reward.shape not in (log_prob.shape, log_prob.shape[:1]):
        raise ShapeError(
            f"reward has shape {list(reward.shape)}; expected one per sentence {list(log_prob.shape[:1])} or one per "
            f"step {list(log_prob.shape)}, like log_prob"
        )
    advantage = (reward if baseline is None else reward - baseline).detach()
    gain = advantage.reshape(*advantage.shape, *[1] * (log_prob.dim() - advantage.dim())) * log_prob
    if entropy is not None:
        gain = gain + entropy_weight * entropy
    return -gain.flatten(1).sum(1).mean() if gain.dim() > 1 else -gain.mean()


@dataclass(frozen=True)
class MovingBaseline:
    """A moving average of rewards, immutable: ``baseline = baseline.update(reward)`` after each step.

    b <- decay b + (1 - decay) mean reward (Xu et al. 2015, section 4.1, with 0.9 and 0.1, starting at 0).

    Args:
        decay: weight of the previous value.
        value: the current value.

    Raises:
        ConfigurationError: the decay is not from 0 to 1.
    """

    decay: float = 0.9
    value: Float[Tensor, ""] = field(default_factory=lambda: torch.zeros(()))

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigurationError(f"decay={self.decay}: expected a number from 0 to 1")

    def update(self, reward: Float[Tensor, "*axes"]) -> MovingBaseline:
        """The baseline updated with the mean of these rewards."""
        mean = reward.detach().mean()
        return replace(self, value=self.decay * self.value.to(mean) + (1 - self.decay) * mean)


def _add_gumbel_noise(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """s + g, whose arg-max is a sample from softmax(s) (Gumbel 1954); at least in float32."""
    work = at_least_float32(scores)
    exponential = torch.empty_like(work, requires_grad=False).exponential_(generator=generator)
    return work - exponential.clamp_(min=torch.finfo(work.dtype).tiny).log_()


def _one_hot(scores: Tensor, mask: Tensor | None) -> Tensor:
    if scores.shape[-1] == 0:
        return scores.detach()
    allowed = scores.detach() if mask is None else scores.detach().masked_fill(~mask, torch.finfo(scores.dtype).min)
    chosen = torch.zeros_like(allowed).scatter_(-1, allowed.argmax(-1, keepdim=True), 1.0)
    return chosen if mask is None else chosen * mask


def _replace_gradient(soft: Tensor, value: Tensor) -> Tensor:
    """Exactly ``value``, with the gradient of ``soft``."""
    return value + (soft - soft.detach())


def _log_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """log softmax over the allowed keys; very negative elsewhere, but finite: it is multiplied by a weight of 0."""
    work = at_least_float32(scores)
    return (work if mask is None else work.masked_fill(~mask, torch.finfo(work.dtype).min)).log_softmax(-1)
