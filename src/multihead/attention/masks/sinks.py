"""The mask of attention sinks: the first keys, which every query sees.

``(FirstKeys(4) | SlidingWindow(1020)) & Causal()`` is StreamingLLM (Xiao et al. 2024, section 3.2). A window alone
breaks a trained model when the first keys leave it, because its softmax puts the weight there that it needs nowhere
else.
"""

from __future__ import annotations

from multihead.attention.masks.algebra import Device, Mask, Rule
from multihead.attention.masks.intervals import Intervals, everything
from multihead.errors import ConfigurationError


class FirstKeys(Mask):
    """Every query sees the first ``count`` keys and no other.

    Args:
        count: the number of keys.

    Raises:
        ConfigurationError: it is not a whole number, or is negative.
    """

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigurationError(f"count={count!r}: the first keys are a whole number of keys, 0 or more")
        self.count = count

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:  # noqa: ARG002
        """k < count."""
        count = self.count
        return lambda b, h, q, k: k < count  # noqa: ARG005

    def intervals(self, q_len: int, kv_len: int) -> Intervals:  # noqa: ARG002
        """[0, count)."""
        return everything(min(self.count, kv_len))

    def __repr__(self) -> str:
        return f"FirstKeys({self.count})"
