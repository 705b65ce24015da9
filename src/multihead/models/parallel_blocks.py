"""Parallel blocks: all parts of a layer read one normed input.

    encoder    z = norm(x)        x + dropout( SelfAttention(z) + FFN(z) )
    decoder    z = norm(y)        y + dropout( SelfAttention(z) + CrossAttention(z, memory) + FFN(z) )

GPT-J (Wang & Komatsuzaki 2021) and PaLM (Chowdhery et al. 2022, section 2) have such layers: there is one norm and one
residual sum for each layer, and no part waits for another. The layers of `multihead.models.layers` are sequential.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from multihead.attention import KeyValue, Mask
from multihead.models.guidance import Guidance
from multihead.models.layers import NO_PLACES, Decoded, DecoderLayer, EncoderLayer, Places
from multihead.models.stack_config import StackConfig


class ParallelEncoderLayer(EncoderLayer):
    """x + dropout(SelfAttention(z) + FFN(z)) with z = norm(x)."""

    def __init__(self, config: StackConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        del self.feed_forward_residual

    def combine(
        self,
        x: Float[Tensor, "batch time width"],
        entered: Float[Tensor, "batch time width"],
        attended: Float[Tensor, "batch time width"],
    ) -> Float[Tensor, "batch time width"]:
        """The new states, of which ``entered`` are normed."""
        return self.self_residual.add(x, attended + self.feed_forward(entered))


class ParallelDecoderLayer(DecoderLayer):
    """y + dropout(SelfAttention(z) + CrossAttention(z, memory) + FFN(z)) with z = norm(y)."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        del self.cross_residual, self.feed_forward_residual

    def forward(
        self,
        y: Float[Tensor, "batch target width"],
        memory: KeyValue,
        self_mask: Mask,
        memory_mask: Mask,
        places: Places = NO_PLACES,
        *,
        need_weights: bool = False,
        guidance: Guidance | None = None,
    ) -> Decoded:
        """Process the whole target at once, as the sequential layer."""
        z = self.self_residual.enter(y)
        attended, self_weights = self.self_attention(z, mask=self_mask, **places._asdict(), need_weights=need_weights)
        found, cross_weights = self.cross_attention.attend(z, memory, mask=memory_mask, need_weights=need_weights)
        guided = None if guidance is None else guidance(self.cross_attention.project_query(z), memory.key)
        states = self.self_residual.add(y, attended + found + self.feed_forward(z))
        return Decoded(states, self_weights, cross_weights, guided)

    def step(
        self,
        y: Float[Tensor, "rows 1 width"],
        memory: KeyValue,
        cache: KeyValue | None,
        self_mask: Mask | None,
        memory_mask: Mask,
        places: Places = NO_PLACES,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "rows 1 width"], KeyValue, Float[Tensor, "sentences heads group source"] | None]:
        """Process one new position per row, as the sequential layer."""
        z = self.self_residual.enter(y)
        attended, _, cache = self.self_attention.step(z, cache, mask=self_mask, **places._asdict())
        found, weights = self.attend_grouped(z, memory, memory_mask, need_weights)
        return self.self_residual.add(y, attended + found + self.feed_forward(z)), cache, weights
