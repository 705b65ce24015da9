r"""A sequence becomes one vector: attention with a learned query, and level upon level of it.

`LearnedQuery` gives any `Attention` queries that are parameters. `AttentionPool` is the form of Yang et al. 2016, and
`HierarchicalAttention` puts one on top of another: words make sentences, sentences paragraphs, paragraphs a document.
What is not there (padding words, empty sentences) is zeros and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from multihead.attention.biases import Bias
from multihead.attention.composition import Attention, masked_scores, without_padding
from multihead.attention.functional import masked_softmax
from multihead.attention.masks import Dense, Mask, Padding
from multihead.errors import ConfigurationError, ShapeError


class LearnedQuery(nn.Module):
    """An attention whose queries are parameters: the same questions to every sequence.

    Args:
        attention: score and alignment.
        query_dim: width of the queries.
        count: how many; each gives a vector of its own.

    Raises:
        ConfigurationError: a width or count below 1.
    """

    def __init__(self, attention: Attention, query_dim: int, count: int = 1) -> None:
        super().__init__()
        if min(query_dim, count) < 1:
            raise ConfigurationError(f"query_dim={query_dim}, count={count}: at least 1 is needed")
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
        """One vector a query; ``output.flatten(1)`` joins them. Arguments and errors are those of `Attention`."""
        query = self.query.expand(len(key), -1, -1)
        output, weights = self.attention(
            query, key, value, mask=mask, bias=bias, need_weights=need_weights, generator=generator
        )
        return output, weights


class AttentionPool(nn.Module):
    r"""Attention pooling.

    .. math::
        u_t = \tanh(W h_t + b), \quad \alpha_t = \mathrm{softmax}_t(u_t^T u_w), \quad s = \sum_t \alpha_t h_t

    (Yang et al. 2016, equations 5 to 7). It is the additive score with a query that never changes: b is U q, u_w is v.
    W and b are ``projection``, u_w is ``context``.

    Args:
        dim: width of what is pooled.
        hidden_dim: width of u (default: ``dim``).

    Raises:
        ConfigurationError: a width below 1.
    """

    def __init__(self, dim: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        hidden_dim = dim if hidden_dim is None else hidden_dim
        if min(dim, hidden_dim) < 1:
            raise ConfigurationError(f"dim={dim}, hidden_dim={hidden_dim}: at least 1 is needed")
        self.projection = nn.Linear(dim, hidden_dim)
        self.context = nn.Parameter(torch.empty(hidden_dim))
        nn.init.normal_(self.context, std=hidden_dim**-0.5)

    def forward(
        self, x: Float[Tensor, "batch length dim"], *, mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch length"]]:
        """The pooled vector and the weights.

        Args:
            x: what is pooled.
            mask: over one query and ``length`` keys, such as ``Padding(lengths)``. Where it leaves nothing, both
                results are zeros.

        Raises:
            ShapeError: the mask does not fit.
            MaskError: the mask is not a `Mask`.
        """
        _, x, _ = without_padding(mask, x, x, x)
        scores = self.projection(x).tanh() @ self.context
        weights = masked_softmax(*masked_scores(scores.unsqueeze(1), mask))
        return (weights @ x).squeeze(1), weights.squeeze(1)


class Pooled(NamedTuple):
    """What `HierarchicalAttention` returns."""

    output: Float[Tensor, "batch dim"]
    """The document."""
    weights: tuple[Tensor, ...]
    """Of each level, outermost first: of the sentences [batch, sentences], of their words [batch, sentences, words].
    Their product is how much of a word is in the document."""


class HierarchicalAttention(nn.Module):
    """Attention pooling at every level of a document (Yang et al. 2016; two levels there, any number here).

    Args:
        dim: width of the words' vectors and of all that is made from them.
        depth: how many levels: 2 = words make sentences, sentences the document.
        hidden_dim: as in `AttentionPool`.

    Raises:
        ConfigurationError: a depth or width below 1.
    """

    def __init__(self, dim: int, depth: int = 2, hidden_dim: int | None = None) -> None:
        super().__init__()
        if depth < 1:
            raise ConfigurationError(f"depth={depth}: at least one level is needed")
        self.levels = nn.ModuleList(AttentionPool(dim, hidden_dim) for _ in range(depth))

    def forward(self, x: Float[Tensor, "*outer words dim"], lengths: Int[Tensor, "*outer"] | None = None) -> Pooled:
        """The vector of each document, and all weights.

        Args:
            x: the words' vectors: [batch, sentences, words, dim] with two levels, one axis more for each further level.
            lengths: the words of each sentence, [batch, sentences]; 0 where there is no sentence, which may be anywhere
                (default: all words are there). What has no words has weight 0 and a vector of zeros.

        Raises:
            ShapeError: another number of axes than ``depth`` asks for, or lengths that do not fit.
        """
        axes = len(self.levels) + 2
        if x.dim() != axes:
            raise ShapeError(f"x has shape {list(x.shape)}, but with depth={axes - 2} it must have {axes} axes")
        if lengths is None:
            lengths = torch.full(x.shape[:-2], x.shape[-2], device=x.device)
        if lengths.shape != x.shape[:-2]:
            raise ShapeError(
                f"lengths has shape {list(lengths.shape)}, but with x {list(x.shape)} it must be {list(x.shape[:-2])}"
            )
        mask: Mask = Padding(lengths.flatten())
        there = lengths > 0
        weights: list[Tensor] = []
        for level in self.levels:
            outer = x.shape[:-2]
            pooled, shares = level(x.flatten(0, -3), mask=mask)
            x, weights = pooled.unflatten(0, outer), [shares.unflatten(0, outer), *weights]
            if there.dim() > 1:
                mask = Dense(there.flatten(0, -2)[:, None, None])
                there = there.any(-1)
        return Pooled(x, tuple(weights))
