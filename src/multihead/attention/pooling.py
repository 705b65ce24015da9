r"""Attention pooling: learned queries, single-level and hierarchical.

`LearnedQuery` makes the queries of any `Attention` parameters. `AttentionPool` is the pooling of Yang et al. 2016, and
`HierarchicalAttention` stacks it: words form sentences, sentences paragraphs, paragraphs a document. Padding words and
empty sentences have zero vectors and zero weights and do not affect the result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.backends.explicit import masked_softmax
from multihead.attention.biases import Bias
from multihead.attention.composition import Attention, hide_padding, masked_scores
from multihead.attention.masks import Dense, Mask, Padding
from multihead.errors import ConfigurationError, ShapeError


class LearnedQuery(nn.Module):
    """Attention whose queries are parameters, shared by all sequences.

    Args:
        attention: the score and the alignment.
        query_dim: width of the queries.
        count: number of queries; each one yields a vector.

    Raises:
        ConfigurationError: the width or the count is below 1.
    """

    def __init__(self, attention: Attention, query_dim: int, count: int = 1) -> None:
        super().__init__()
        if min(query_dim, count) < 1:
            raise ConfigurationError(f"query_dim={query_dim}, count={count}: expected at least 1")
        self.attention = attention
        self.query = nn.Parameter(torch.randn(count, query_dim))

    def forward(
        self,
        key: Float[Tensor, "batch key key_dim"],
        value: Float[Tensor, "batch key value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch count out_dim"], Float[Tensor, "batch count key"] | None]:
        """One vector per query; ``output.flatten(1)`` concatenates them. Arguments and errors as in `Attention`."""
        query = self.query.expand(len(key), -1, -1)
        output, weights = self.attention(
            query, key, value, mask=mask, bias=bias, need_weights=need_weights, generator=generator
        )
        return output, weights


class AttentionPool(nn.Module):
    r"""Attention pooling.

    .. math::
        u_t = \tanh(W h_t + b), \quad \alpha_t = \mathrm{softmax}_t(u_t^T u_w), \quad s = \sum_t \alpha_t h_t

    (Yang et al. 2016, equations 5 to 7). This is the additive score with a constant query: b is U q, u_w is v. W and b
    are ``projection``, u_w is ``context``.

    Args:
        dim: width of the vectors to pool.
        hidden_dim: width of u (default: ``dim``).

    Raises:
        ConfigurationError: a width is below 1.
    """

    def __init__(self, dim: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        hidden_dim = dim if hidden_dim is None else hidden_dim
        if min(dim, hidden_dim) < 1:
            raise ConfigurationError(f"dim={dim}, hidden_dim={hidden_dim}: expected at least 1")
        self.projection = nn.Linear(dim, hidden_dim)
        self.context = nn.Parameter(torch.empty(hidden_dim))
        nn.init.normal_(self.context, std=hidden_dim**-0.5)

    def forward(
        self, x: Float[Tensor, "batch length dim"], *, mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch length"]]:
        """The pooled vector and the weights.

        Args:
            x: the vectors to pool.
            mask: over one query and ``length`` keys, such as ``Padding(lengths)``. For a sequence without allowed keys
                both results are zeros.

        Raises:
            ShapeError: the mask does not match ``x``.
            MaskError: the mask is not a `Mask`.
        """
        _, x, _ = hide_padding(mask, x, x, x)
        scores = self.projection(x).tanh() @ self.context
        weights = masked_softmax(*masked_scores(scores.unsqueeze(1), mask))
        return (weights @ x).squeeze(1), weights.squeeze(1)


class Pooled(NamedTuple):
    """The result of `HierarchicalAttention`."""

    output: Float[Tensor, "batch dim"]
    """The vector of the document."""
    weights: tuple[Tensor, ...]
    """One tensor per level, outermost first: sentences [batch, sentences], their words [batch, sentences, words].
    The product of a word's weights is its share in the document."""


class HierarchicalAttention(nn.Module):
    """Attention pooling at every level of a document (Yang et al. 2016; two levels there, any number here).

    Args:
        dim: width of the word vectors and of all vectors pooled from them.
        depth: number of levels; with 2, words form sentences and sentences the document.
        hidden_dim: as in `AttentionPool`.

    Raises:
        ConfigurationError: the depth or a width is below 1.
    """

    def __init__(self, dim: int, depth: int = 2, hidden_dim: int | None = None) -> None:
        super().__init__()
        if depth < 1:
            raise ConfigurationError(f"depth={depth}: expected at least one level")
        self.levels = nn.ModuleList(AttentionPool(dim, hidden_dim) for _ in range(depth))

    def forward(self, x: Float[Tensor, "*outer words dim"], lengths: Int[Tensor, "*outer"] | None = None) -> Pooled:
        """The vector of each document, and all weights.

        Args:
            x: the word vectors: [batch, sentences, words, dim] with two levels, one more axis for each further level.
            lengths: number of words of each sentence, [batch, sentences]; 0 marks a missing sentence, at any place
                (default: no padding). Anything without words has weight 0 and a zero vector.

        Raises:
            ShapeError: the axes do not match ``depth``, or the lengths do not match ``x``.
        """
        axes = len(self.levels) + 2
        if x.dim() != axes:
            raise ShapeError(f"x has shape {list(x.shape)}; with depth={axes - 2} it must have {axes} axes")
        if lengths is None:
            lengths = torch.full(x.shape[:-2], x.shape[-2], device=x.device)
        if lengths.shape != x.shape[:-2]:
            raise ShapeError(
                f"lengths has shape {list(lengths.shape)}; with x {list(x.shape)} it must be {list(x.shape[:-2])}"
            )
        mask: Mask = Padding(lengths.flatten())
        present = lengths > 0
        weights: list[Tensor] = []
        for level in self.levels:
            outer = x.shape[:-2]
            pooled, shares = level(x.flatten(0, -3), mask=mask)
            x, weights = pooled.unflatten(0, outer), [shares.unflatten(0, outer), *weights]
            if present.dim() > 1:
                mask = Dense(present.flatten(0, -2)[:, None, None])
                present = present.any(-1)
        return Pooled(x, tuple(weights))
