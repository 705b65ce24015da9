r"""Differential attention: the difference of two softmaxes.

    head_i    = (softmax(Q_1 K_1^T / sqrt(d)) - lambda softmax(Q_2 K_2^T / sqrt(d))) V
    lambda    = exp(l_q1 . l_k1) - exp(l_q2 . l_k2) + lambda_init
    output    = Concat((1 - lambda_init) RMSNorm(head_1), ...) W^O

Ye et al. 2024, "Differential Transformer", equations 1 to 3. What both softmaxes give to irrelevant keys cancels, as
noise does in a differential amplifier.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.functional import BackendName, attention
from multihead.attention.masks import Mask
from multihead.attention.multihead import PackedLinear, RMSNorm, join_heads, split_heads
from multihead.errors import ConfigurationError


class DifferentialAttention(nn.Module):
    """Multi-head self-attention by the equations above.

    A head has two queries and two keys of d = width / (2 heads) and a value of 2 d, so that it has the parameters of
    `MultiHeadAttention` with twice as many heads.

    Args:
        width: of input and output.
        heads: the number of heads.
        depth: the number of the layer, from 0; lambda_init = 0.8 - 0.6 exp(-0.3 depth).

    Raises:
        ConfigurationError: the width is not a multiple of 2 heads, or a number is too small.
    """

    def __init__(self, width: int, heads: int, *, depth: int = 0) -> None:
        super().__init__()
        if heads < 1 or depth < 0 or width < 1 or width % (2 * heads):
            raise ConfigurationError(
                f"width={width}, heads={heads}, depth={depth}: expected at least one head, a width that is a multiple "
                "of 2 * heads, and a depth of 0 or more"
            )
        self.heads = heads
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.in_projection = PackedLinear(width, (width, width, width), bias=False)
        self.output_projection = nn.Linear(width, width, bias=False)
        self.lambdas = nn.Parameter(0.1 * torch.randn(4, width // heads // 2))
        """l_q1, l_k1, l_q2 and l_k2."""
        self.norm = RMSNorm(width // heads, eps=1e-5)
        nn.init.xavier_uniform_(self.output_projection.weight)

    @property
    def factor(self) -> Float[Tensor, ""]:
        """lambda, at least in float32."""
        q_1, k_1, q_2, k_2 = self.lambdas.to(torch.promote_types(self.lambdas.dtype, torch.float32))
        factor: Tensor = (q_1 @ k_1).exp() - (q_2 @ k_2).exp() + self.lambda_init
        return factor

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        *,
        mask: Mask | None = None,
        need_weights: bool = False,
        backend: BackendName = "auto",
    ) -> tuple[Float[Tensor, "batch length width"], Float[Tensor, "batch heads length length"] | None]:
        """The output, and the weights or None.

        Args:
            x: the sequence.
            mask: which position may attend to which; where a query may attend to nothing, the output is 0.
            need_weights: return the differences of the weights too; a row sums to 1 - lambda.
            backend: by name, as in :func:`multihead.attention.attention`.
        """
        query, key, value = self.in_projection(x)
        # Neighboring heads are the two softmaxes of one head.
        both_queries, both_keys = split_heads(query, 2 * self.heads), split_heads(key, 2 * self.heads)
        values, factor = split_heads(value, self.heads), self.factor.to(x.dtype)
        (first, first_weights), (second, second_weights) = (
            attention(
                both_queries[:, part::2],
                both_keys[:, part::2],
                values,
                mask=mask,
                need_weights=need_weights,
                backend=backend,
            )
            for part in (0, 1)
        )
        heads = self.norm(first - factor * second) * (1 - self.lambda_init)
        output = self.output_projection(join_heads(heads))
        if first_weights is None or second_weights is None:
            return output, None
        return output, first_weights - factor * second_weights

    def extra_repr(self) -> str:
        return f"heads={self.heads}, lambda_init={self.lambda_init:.3f}"
