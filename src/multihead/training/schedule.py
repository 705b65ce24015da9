"""The learning rate as a function of the step alone, so that a resumed run needs nothing but the step.

With t the step (from 1), W the warm-up, T the number of updates, D the model width, and eta the setting
``learning_rate``:

    linear          eta * min(t / W, (T + 1 - t) / (T + 1 - W))
    cosine          eta * t / W                                             while t < W
                    eta * (1 + cos(pi (t - W) / (T + 1 - W))) / 2           from then on
                    (Loshchilov & Hutter 2017, eq. 5, one period without a restart)
    inverse_sqrt    eta * min(t / W, sqrt(W / t))
    constant        eta * min(t / W, 1)
    trapezoid       eta * min(t / W, 1, 4 (T + 1 - t) / T)                  (constant with a cool-down: Haegele et al.
                    2024; ours is the last quarter)
    noam            eta * D^-0.5 * min(t^-0.5, t * W^-1.5)                  (Vaswani et al. 2017, 5.3; eta is lr_mul)

All rise in a straight line until t = W and are continuous there; linear, cosine and trapezoid reach 0 at T + 1, right
after the last update. Noam is inverse_sqrt with the peak eta / sqrt(D W).
"""

from __future__ import annotations

import math

from multihead.training.config import TrainingConfig

_COOLING = 4
"""The rate of 'trapezoid' falls in the last of so many parts of the run."""


def learning_rate(config: TrainingConfig, step: int, width: int) -> float:
    """The rate of update ``step`` (1, 2, ...).

    Args:
        config: schedule, learning_rate, warmup and updates are read.
        step: the update, counted from 1.
        width: the model width D ('noam' alone uses it).
    """
    warmup = max(config.warmup, 1)
    if config.schedule == "noam":
        return float(config.learning_rate * width**-0.5 * min(step**-0.5, step * warmup**-1.5))
    return config.learning_rate * max(min(step / warmup, _afterwards(config, step, warmup)), 0.0)


def _afterwards(config: TrainingConfig, step: int, warmup: int) -> float:
    """What is left of the highest rate when the warm-up is over; before its end at least what the warm-up gives."""
    falling = max(config.updates + 1 - config.warmup, 1)
    match config.schedule:
        case "linear":
            return (config.updates + 1 - step) / falling
        case "cosine":
            return 1.0 if step < warmup else (1 + math.cos(math.pi * min((step - warmup) / falling, 1.0))) / 2
        case "trapezoid":
            return min(1.0, _COOLING * (config.updates + 1 - step) / config.updates)
        case "inverse_sqrt":
            return math.sqrt(warmup / step)
        case _:
            return 1.0
