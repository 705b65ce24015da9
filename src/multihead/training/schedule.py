"""The learning rate as a function of the step alone, so that a resumed run needs nothing but the step.

With t the step (from 1), W the warm-up, T the number of updates, D the model width:

    linear          eta * min(t / W, (T + 1 - t) / (T + 1 - W))         reaches 0 after the last step
    inverse_sqrt    eta * min(t / W, sqrt(W / t))
    noam            eta * D^-0.5 * min(t^-0.5, t * W^-1.5)              (Vaswani et al. 2017, 5.3; eta is lr_mul)
"""

from __future__ import annotations

import math

from multihead.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int, width: int) -> float:
    """The rate of update ``step`` (1, 2, ...).

    Args:
        config: schedule, learning_rate, warmup and updates are read.
        step: the update, counted from 1.
        width: the model width D ('noam' alone uses it).
    """
    warmup = max(config.warmup, 1)
    match config.schedule:
        case "linear":
            remaining = (config.updates + 1 - step) / max(config.updates + 1 - config.warmup, 1)
            return config.learning_rate * max(min(step / warmup, remaining), 0.0)
        case "inverse_sqrt":
            return config.learning_rate * min(step / warmup, math.sqrt(warmup / step))
        case "noam":
            return float(config.learning_rate * width**-0.5 * min(step**-0.5, step * warmup**-1.5))
