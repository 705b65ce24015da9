r"""Pointer attention: the output is the distribution over the inputs.

    u_mn = v . tanh(W x_n + U h_m),    p(c_m = n | c_1 .. c_{m-1}, x) = softmax(u_m)_n

Vinyals et al. 2015, "Pointer Networks", equation 3: additive scores and a softmax, without the weighted sum. The
``visited`` mask, which prevents choosing an input twice, is from Bello et al. 2017. The network that computes h_m and
reads the chosen input is in `multihead.models.pointer`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attention.backends.call import at_least_float32
from multihead.attention.composition import hide_padding, masked_scores
from multihead.attention.masks import Mask
from multihead.attention.scores import Additive
from multihead.errors import ShapeError


class PointerAttention(nn.Module):
    r"""Log-probabilities of pointing from each query to each key.

    .. math::
        \log p_{mn} = \log \mathrm{softmax}_n \big(v^T \tanh(W x_n + U h_m)\big)

    W, U and v belong to ``score``, an `Additive`.

    Args:
        query_dim: width of the decoder's states h.
        key_dim: width of the encoder's states x.
        hidden_dim: width of W x and U h.

    Raises:
        ConfigurationError: a width is below 1.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.score = Additive(query_dim, key_dim, hidden_dim)

    def forward(
        self,
        query: Float[Tensor, "batch query query_dim"],
        key: Float[Tensor, "batch key key_dim"],
        *,
        mask: Mask | None = None,
        visited: Bool[Tensor, "batch key"] | Bool[Tensor, "batch query key"] | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """The log-probabilities.

        Args:
            query: the decoder's states.
            key: the encoder's states.
            mask: the keys that exist, such as ``Padding(lengths)``.
            visited: True = already chosen, so it cannot be chosen again.

        Returns:
            Rows whose exponentials sum to 1. Keys that cannot be chosen have -inf and no gradient, and so does a whole
            row without any key to choose.

        Raises:
            ShapeError: the shapes of the tensors, mask or visited do not match.
            MaskError: the mask is not a `Mask`.
        """
        query, key, _ = hide_padding(mask, query, key, key)
        return self.point(query, self.score.keys(key), mask=mask, visited=visited)

    def point(
        self,
        query: Float[Tensor, "batch query query_dim"],
        keys: Float[Tensor, "batch key hidden_dim"],
        *,
        mask: Mask | None = None,
        visited: Bool[Tensor, "batch key"] | Bool[Tensor, "batch query key"] | None = None,
    ) -> Float[Tensor, "batch query key"]:
        """As `forward`, with ``keys = pointer.score.keys(key)`` computed once and used in every decoding step."""
        scores, allowed = masked_scores(self.score.from_keys(query, keys), mask)
        if visited is not None:
            seen = visited.unsqueeze(1) if visited.dim() == 2 else visited
            if seen.shape not in (scores.shape, (len(scores), 1, scores.shape[2])):
                raise ShapeError(
                    f"visited has shape {list(visited.shape)}; with scores {list(scores.shape)} it must be "
                    f"{[len(scores), scores.shape[2]]} or {list(scores.shape)}"
                )
            allowed = ~seen if allowed is None else allowed & ~seen
        return masked_log_softmax(scores, allowed)


def masked_log_softmax(scores: Float[Tensor, "*axes"], mask: Bool[Tensor, ...] | None = None) -> Float[Tensor, "*axes"]:
    """Log-softmax over the allowed entries of the last axis; the others are -inf and get no gradient.

    Half-precision scores are computed in float32 and returned in their own type.
    """
    work = at_least_float32(scores)
    if mask is not None:
        work = work.masked_fill(~mask, torch.finfo(work.dtype).min)
    log_probabilities = work.log_softmax(-1)
    if mask is not None:
        log_probabilities = log_probabilities.masked_fill(~mask, -torch.inf)
    return log_probabilities.to(scores.dtype)
