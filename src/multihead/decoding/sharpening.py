"""What samples are drawn from, and the random numbers they are drawn with.

`decoding.sampling` draws them step by step, `engine.sampling` by compiled code. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.errors import ConfigurationError
from multihead.text.segment import scramble

_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Sharpening:
    """Temperature and truncation of the distribution that samples are drawn from. None disables a truncation.

    The temperature is applied first. All truncations see the same distribution over the permitted symbols, and a symbol
    is kept if all of them keep it.

    Args:
        temperature: T, above 0: below 1 sharpens, above 1 flattens.
        top_k: keep this many of the most probable symbols.
        top_p: keep the fewest most probable symbols with this total probability, above 0 and at most 1.
        min_p: keep symbols at least this share as probable as the most probable one, above 0 and at most 1.
        epsilon: keep symbols at least this probable, above 0 and at most 1.

    Raises:
        ConfigurationError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ConfigurationError(
                f"temperature must be a number above 0, got {self.temperature}; the limit towards 0 is greedy search"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigurationError(f"top_k must be at least 1, got {self.top_k}")
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p), ("epsilon", self.epsilon)):
            if value is not None and not 0 < value <= 1:
                raise ConfigurationError(f"{name} must be above 0 and at most 1, got {value}")


def streams(seed: int, keys: Sequence[int], samples: int) -> NDArray[np.uint64]:
    """The random stream of each sentence and sample: [keys, samples].

    Args:
        seed: any integer.
        keys: any integer of each sentence.
        samples: of each sentence; those of more samples begin with those of fewer.
    """
    seeds, words = (np.array([n & _WORD for n in numbers], dtype=np.uint64) for numbers in ([seed], keys))
    return scramble(seeds, words[:, None], np.arange(samples, dtype=np.uint64)[None])
