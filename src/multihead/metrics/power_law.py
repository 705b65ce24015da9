r"""The gain of more text, extrapolated by a power law of the loss.

Trainings with n_1 ... n_k pairs end with losses L_i and scores B_i. Over a few doublings of a small corpus

    ln L_i = ln a - b ln n_i + e_i        the loss falls by a power of the pairs (Hestness et al. 2017)
    B_i    = p - q L_i + d_i              the score follows the loss

are straight lines, fitted by least squares. F times n pairs then gain

    dL = a n^-b (F^-b - 1)                dB = -q dL

The interval is that of the posterior with a flat prior: s^2 = SSE / chi^2_(k-2), and coefficients from a normal
distribution with covariance s^2 (X'X)^-1. For the exponent it is the interval of Student's t. It knows the noise
between trainings, not whether the lines go on straight, so F is small: a loss that cannot be avoided bends them
in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

FEWEST = 3
"""Different numbers of pairs below which there is no estimate."""
_EXPLAINED = (0.95, 0.9)
"""Share of the variance of ln L, and of B, that the lines have to explain."""
_SAME = 1e-5
"""Share of the loss by which losses have to differ: no line can be fitted through equal ones."""
_DRAWS, _SEED = 4000, 12345
_LARGEST = 300.0  # exponents of e beyond this say nothing more


@dataclass(frozen=True)
class Training:
    """The outcome of a training."""

    pairs: int
    loss: float
    """Of a validation token, in nats."""
    bleu: float
    """Of the same model, on the validation set."""


@dataclass(frozen=True)
class Gain:
    """The estimated gain of ``factor`` times the pairs."""

    pairs: int
    factor: float
    refusal: str | None = None
    """Why there is no estimate; then all that follows is 0."""
    exponent: float = 0.0
    """b."""
    loss: float = 0.0
    """dL."""
    bleu: float = 0.0
    """dB."""
    loss_interval: tuple[float, float] = (0.0, 0.0)
    """95% interval of dL."""
    bleu_interval: tuple[float, float] = (0.0, 0.0)
    """95% interval of dB."""
    explained: tuple[float, float] = (0.0, 0.0)
    """Shares of the variance of ln L and of B that the lines explain."""

    def as_dict(self) -> dict[str, Any]:
        """The estimate as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        times = {2.0: "twice the data"}.get(self.factor, f"{self.factor:g} times the data")
        if self.refusal is not None:
            return f"{times}: no estimate, because {self.refusal}"
        low, high = self.bleu_interval
        chance = "; chance alone could explain it" if low <= 0 else ""
        return f"{times}: about {self.bleu:+.1f} BLEU ({low:.1f} to {high:.1f}{chance})"


def estimate_gain(trainings: Sequence[Training], pairs: int, factor: float = 2.0) -> Gain:
    """Estimate what ``factor`` times ``pairs`` pairs gain.

    Args:
        trainings: of different numbers of pairs, else alike; several of a number tell how much chance matters.
        pairs: n.
        factor: F.
    """
    sizes = len({one.pairs for one in trainings})
    if sizes < FEWEST:
        return Gain(
            pairs, factor, f"it needs trainings with {FEWEST} different numbers of pairs, and there are {sizes}"
        )
    logs, losses, scores = (
        np.array(column, np.float64)
        for column in zip(*((np.log(t.pairs), t.loss, t.bleu) for t in trainings), strict=True)
    )
    if losses.min() <= 0:
        return Gain(pairs, factor, f"a loss is {losses.min():g}, and a power law has none that is not positive")
    if np.ptp(losses) < _SAME * losses.max():
        return Gain(pairs, factor, "all losses are the same")
    if not np.ptp(scores):
        return Gain(pairs, factor, f"the BLEU of all trainings is {scores[0]:.1f}")
    power, score = _Line.fit(logs, np.log(losses)), _Line.fit(losses, scores)
    refusal = _refuse(power, score)
    if refusal is not None:
        return Gain(pairs, factor, refusal)
    random = np.random.default_rng(_SEED)
    fallen = _fall(power.coefficients[None], pairs, factor)
    drawn = _fall(power.draw(random), pairs, factor)
    gains = score.draw(random)[:, 1] * drawn
    return Gain(
        pairs,
        factor,
        None,
        float(-power.coefficients[1]),
        float(fallen[0]),
        float(score.coefficients[1] * fallen[0]),
        _interval(drawn),
        _interval(gains),
        (power.explained, score.explained),
    )


def _refuse(power: _Line, score: _Line) -> str | None:
    if power.coefficients[1] >= 0:
        return "the loss did not fall with more pairs"
    if power.explained < _EXPLAINED[0]:
        return f"the losses are not on a power law of the pairs, which explains {power.explained:.0%} of their variance"
    if score.coefficients[1] >= 0:
        return "BLEU did not rise as the loss fell"
    if score.explained < _EXPLAINED[1]:
        return f"BLEU does not follow the loss, which explains {score.explained:.0%} of its variance"
    return None


def _fall(coefficients: Numbers, pairs: int, factor: float) -> Numbers:
    """dL of each row of coefficients."""
    first, second = (coefficients @ np.array([1.0, np.log(n)]) for n in (pairs, factor * pairs))
    before, after = (np.exp(np.clip(value, -_LARGEST, _LARGEST)) for value in (first, second))
    return np.asarray(after - before)


def _interval(drawn: Numbers) -> tuple[float, float]:
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return low, high


@dataclass(frozen=True)
class _Line:
    """A straight line y = c_0 + c_1 x by least squares."""

    coefficients: Numbers
    errors: float
    """Sum of squared errors."""
    explained: float
    """Share of the variance of y, whose values differ."""
    design: Numbers
    """X, [points, 2]."""

    @classmethod
    def fit(cls, x: Numbers, y: Numbers) -> _Line:
        design = np.stack([np.ones_like(x), x], 1)
        coefficients: Numbers = np.linalg.lstsq(design, y, rcond=None)[0].astype(np.float64)
        errors = float(((y - design @ coefficients) ** 2).sum())
        total = float(((y - y.mean()) ** 2).sum())
        return cls(coefficients, errors, 1 - errors / total, design)

    def draw(self, random: np.random.Generator) -> Numbers:
        """Coefficients from the posterior, [draws, 2]."""
        freedom = len(self.design) - 2
        spread = np.sqrt(self.errors / random.chisquare(freedom, _DRAWS))
        directions = np.linalg.cholesky(np.linalg.pinv(self.design.T @ self.design, hermitian=True))
        steps = random.standard_normal((_DRAWS, 2)) @ directions.T
        return np.asarray(self.coefficients + spread[:, None] * steps)
