r"""Multi-head latent attention: keys and values from short vectors.

    c_t   = RMSNorm(W^DKV x_t)                       the latent; all that is cached, with r_t
    k_ti  = [W_i^UK c_t ; r_t],  r_t = RoPE(W^KR x_t)       one rotated key for all heads
    q_ti  = [W_i^UQ x_t ; RoPE(W_i^QR x_t)]
    v_ti  = W_i^UV c_t
    o_t   = W^O [head_t1 ; head_t2 ; ...],  head_ti = sum_j softmax_j(q_ti . k_ji / sqrt(d + d_R)) v_ji

DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, without the compression of queries, which does not change the cache. Since
(W^UQ x) . (W^UK c) = (W^UK^T W^UQ x) . c, decoding need not compute keys and values: in this absorbed form all heads
attend to the latents themselves, as in multi-query attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.functional import BackendName, attention
from multihead.attention.masks import Mask
from multihead.attention.multihead import PackedLinear, RMSNorm, join_heads, split_heads
from multihead.attention.rotary import rotary
from multihead.errors import ConfigurationError, ShapeError


@dataclass(frozen=True)
class LatentCache:
    """What latent attention keeps of earlier positions.

    Attributes:
        latent: c, [batch, length, rank].
        rotated: r, [batch, length, rotary_width].
    """

    latent: Float[Tensor, "batch length rank"]
    rotated: Float[Tensor, "batch length rotary_width"]

    @property
    def length(self) -> int:
        """The number of cached positions."""
        return self.latent.shape[1]

    def append(self, other: LatentCache) -> LatentCache:
        """The same rows, with the later positions ``other`` appended.

        Raises:
            ShapeError: the numbers of rows or the widths differ.
        """
        for ours, theirs in ((self.latent, other.latent), (self.rotated, other.rotated)):
            if ours.shape[::2] != theirs.shape[::2]:
                raise ShapeError(
                    f"cannot append {list(theirs.shape)} to {list(ours.shape)}: as [batch, length, width] they differ "
                    "in more than the length"
                )
        return LatentCache(
            torch.cat((self.latent, other.latent), dim=1), torch.cat((self.rotated, other.rotated), dim=1)
        )

    def select(self, rows: Int[Tensor, " rows"]) -> LatentCache:
        """These rows of the batch, in this order; a row may occur several times or not at all."""
        return LatentCache(self.latent.index_select(0, rows), self.rotated.index_select(0, rows))


class LatentAttention(nn.Module):
    """Multi-head self-attention by the equations above.

    Args:
        width: of input and output.
        heads: the number of heads.
        rank: the width of the latents.
        head_width: d, of a head's values and of the part of its keys without position (default: width / heads).
        rotary_width: d_R, of the rotated part of keys and queries; even.
        base: of the rotary angles.

    Raises:
        ConfigurationError: a size is below 1, or ``rotary_width`` is odd.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int,
        head_width: int | None = None,
        rotary_width: int = 16,
        base: float = 10000.0,
    ) -> None:
        super().__init__()
        head_width = width // max(heads, 1) if head_width is None else head_width
        if min(width, heads, rank, head_width, rotary_width) < 1 or rotary_width % 2:
            raise ConfigurationError(
                f"width={width}, heads={heads}, rank={rank}, head_width={head_width}, rotary_width={rotary_width}: "
                "expected at least 1 of each, and an even rotary_width"
            )
        self.heads, self.rank, self.head_width, self.rotary_width, self.base = (
            heads,
            rank,
            head_width,
            rotary_width,
            base,
        )
        self.query_projection = PackedLinear(width, (heads * head_width, heads * rotary_width), bias=False)
        """W^UQ and W^QR."""
        self.down_projection = PackedLinear(width, (rank, rotary_width), bias=False)
        """W^DKV and W^KR."""
        self.up_projection = PackedLinear(rank, (heads * head_width, heads * head_width), bias=False)
        """W^UK and W^UV."""
        self.norm = RMSNorm(rank, eps=1e-6)
        self.output_projection = nn.Linear(heads * head_width, width, bias=False)
        nn.init.xavier_uniform_(self.output_projection.weight)

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        *,
        mask: Mask | None = None,
        need_weights: bool = False,
        backend: BackendName = "auto",
    ) -> tuple[Float[Tensor, "batch length width"], Float[Tensor, "batch heads length length"] | None]:
        """The output, with keys and values written out, and the weights or None.

        Args:
            x: the sequence.
            mask: which position may attend to which; where a query may attend to nothing, the output is 0.
            need_weights: return the weights of every head too.
            backend: by name, as in :func:`multihead.attention.attention`.
        """
        plain, turned = self._queries(x, 0)
        cache = self.compress(x, 0)
        keys, values = (split_heads(part, self.heads) for part in self.up_projection(cache.latent))
        shared = cache.rotated.unsqueeze(1).expand(-1, self.heads, -1, -1)
        heads, weights = attention(
            torch.cat((plain, turned), -1),
            torch.cat((keys, shared), -1),
            values,
            mask=mask,
            need_weights=need_weights,
            backend=backend,
        )
        return self.output_projection(join_heads(heads)), weights

    def compress(self, x: Float[Tensor, "batch length width"], offset: int = 0) -> LatentCache:
        """The latents and rotated keys of positions that begin at ``offset``."""
        latent, unturned = self.down_projection(x)
        return LatentCache(self.norm(latent), rotary(unturned.unsqueeze(1), offset, base=self.base).squeeze(1))

    def step(
        self,
        x: Float[Tensor, "batch new width"],
        cache: LatentCache | None = None,
        *,
        mask: Mask | None = None,
        need_weights: bool = False,
        backend: BackendName = "auto",
    ) -> tuple[Float[Tensor, "batch new width"], Float[Tensor, "batch heads new length"] | None, LatentCache]:
        """Attention of new positions to the cached ones and to themselves, in the absorbed form.

        Args:
            x: the new positions.
            cache: of the earlier positions, as the last step returned it; None = there are none.
            mask: over all keys, old and new; ``Causal()`` if there are several new positions.
            need_weights: return the weights of every head too.
            backend: by name.

        Returns:
            The output, the weights or None, and the cache with the new positions appended.
        """
        offset = 0 if cache is None else cache.length
        new = self.compress(x, offset)
        cache = new if cache is None else cache.append(new)
        plain, turned = self._queries(x, offset)
        up = self.up_projection.weight.view(2, self.heads, self.head_width, self.rank)
        # (W^UK)^T q: every head's queries become as wide as the latents, which are keys and values of all heads.
        absorbed = plain @ up[0]
        read, weights = attention(
            torch.cat((absorbed, turned), -1),
            torch.cat((cache.latent, cache.rotated), -1).unsqueeze(1),
            cache.latent.unsqueeze(1),
            mask=mask,
            scale=(self.head_width + self.rotary_width) ** -0.5,
            need_weights=need_weights,
            backend=backend,
        )
        heads = read @ up[1].transpose(1, 2)
        return self.output_projection(join_heads(heads)), weights, cache

    def _queries(self, x: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        plain, unturned = (split_heads(part, self.heads) for part in self.query_projection(x))
        return plain, rotary(unturned, offset, base=self.base)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, rank={self.rank}, head_width={self.head_width}, rotary_width={self.rotary_width}"
