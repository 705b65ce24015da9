r"""The one composition that every attention is: score, mask and bias, align, weighted sum.

    s_ln = score(q_l, k_n) + bias_ln          scores
    a_l  = align(s_l)                         weights, over the keys that the mask allows
    c_l  = sum_n a_ln v_n                     weights and values (`multihead.attention.scores`, `.alignment`)

Soft attention is ``Attention(score)``, hard attention ``Attention(score, "argmax")`` or ``"sample"``, key-value
attention ``Attention(score)(query, key, value)``. The patterns of use are calls, not classes: self-attention is ``(x,
x)``, cross-attention ``(x, memory)``, causal attention has ``mask=Causal()``. Several queries over the same keys and
values, with the results joined, are one call too: with queries [batch, M, width], ``output.flatten(1)`` is att((K,
V), q_1) ⊕ ... ⊕ att((K, V), q_M). Heads with projections of their own are `multihead.attention.multihead`'s.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attention.alignment import Alignment, AlignmentName, Softmax, entropy, log_prob, named
from multihead.attention.biases import Bias
from multihead.attention.checks import check_dropout
from multihead.attention.functional import attention
from multihead.attention.lowering import Sizes, lower
from multihead.attention.masks import Mask
from multihead.attention.masks.lengths import KnownPadding
from multihead.attention.scores import Product, Score
from multihead.errors import MaskError, ShapeError


class Attention(nn.Module):
    r"""Any attention of one head.

    .. math::
        \mathrm{att}((K, V), q) = \sum_n \alpha_n v_n, \quad \alpha = \mathrm{align}(s(k_1, q), \ldots, s(k_N, q))

    A query that may attend to nothing yields zeros, zero weights and zero gradients, with every score and alignment.

    Args:
        score: how well a key answers a query.
        align: how scores become weights: ``"softmax"``, ``"argmax"``, ``"sample"``, ``"straight_through"``,
            ``"gumbel"`` or an `Alignment`.
        dropout: the probability with which a weight is dropped while training.

    Raises:
        ConfigurationError: an unknown alignment, or an impossible dropout.
    """

    def __init__(self, score: Score, align: AlignmentName | Alignment = "softmax", dropout: float = 0.0) -> None:
        super().__init__()
        check_dropout(dropout, "dropout")
        self.score = score
        self.align = named(align)
        self.dropout = dropout

    def forward(
        self,
        query: Float[Tensor, "batch query query_dim"],
        key: Float[Tensor, "batch key key_dim"],
        value: Float[Tensor, "batch key value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch query out_dim"], Float[Tensor, "batch query key"] | None]:
        """Output and weights.

        Args:
            query: what asks.
            key: what is asked.
            value: what is answered (default: the keys).
            mask: who may attend to whom; None = everyone to everyone.
            bias: added to the scores, [query, key] or [batch, query, key] (an axis may be 1). -inf forbids, like a
                mask.
            need_weights: return the weights too. Without it, soft attention with a dot-product score takes PyTorch's
                fused kernel, which can be differentiated once.
            generator: where the random numbers of a drawn alignment come from.

        Returns:
            The sums of the values [batch, query, value_dim], and the weights (before dropout) or None.

        Raises:
            ShapeError: tensors, mask or bias do not fit together.
            MaskError: the mask is not a `Mask`.
        """
        query, key, value = without_padding(mask, query, key, key if value is None else value)
        return self.attend(
            query,
            self.score.keys(key),
            value,
            mask=mask,
            bias=bias,
            need_weights=need_weights,
            generator=generator,
        )

    def attend(
        self,
        query: Float[Tensor, "batch query query_dim"],
        keys: Float[Tensor, "batch key score_dim"],
        value: Float[Tensor, "batch key value_dim"],
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch query value_dim"], Float[Tensor, "batch query key"] | None]:
        """The same with ``keys = attention.score.keys(key)``, computed once and used in many steps."""
        _check_values(keys, value)
        dropout = self.dropout if self.training else 0.0
        if isinstance(self.align, Softmax) and isinstance(self.score, Product) and not need_weights:
            return _fused(self.score, query, keys, value, mask, bias, dropout), None
        scores, allowed = masked_scores(self.score.from_keys(query, keys), mask, bias)
        weights = self.align(scores, allowed, generator=generator)
        return F.dropout(weights, dropout) @ value, weights if need_weights else None

    def log_prob(
        self,
        weights: Float[Tensor, "batch query key"],
        query: Float[Tensor, "batch query query_dim"],
        key: Float[Tensor, "batch key key_dim"],
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
    ) -> Float[Tensor, "batch query"]:
        """The log-probability of what a drawn alignment has chosen, for `reinforce_loss`; 0 where nothing was.

        It is computed again from the arguments of the call that returned ``weights``: nothing is kept.
        """
        return log_prob(weights, *self._scores(query, key, mask, bias))

    def entropy(
        self,
        query: Float[Tensor, "batch query query_dim"],
        key: Float[Tensor, "batch key key_dim"],
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
    ) -> Float[Tensor, "batch query"]:
        """The entropy of softmax(s) in nats, for `reinforce_loss`; 0 where nothing may be attended to."""
        return entropy(*self._scores(query, key, mask, bias))

    def _scores(
        self, query: Tensor, key: Tensor, mask: Mask | None, bias: Tensor | Bias | None
    ) -> tuple[Tensor, Tensor | None]:
        query, key, _ = without_padding(mask, query, key, key)
        return masked_scores(self.score(query, key), mask, bias)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"dropout={self.dropout}" if self.dropout else ""


def masked_scores(
    scores: Float[Tensor, "batch query key"], mask: Mask | None = None, bias: Float[Tensor, ...] | Bias | None = None
) -> tuple[Float[Tensor, "batch query key"], Bool[Tensor, "#batch #query #key"] | None]:
    """The scores with the bias added, and which of them count: what an alignment takes.

    Raises:
        ShapeError: mask or bias do not fit the scores.
        MaskError: the mask is not a `Mask`.
    """
    _check_mask(mask)
    allowed = lower(mask, Sizes(scores.shape[0], 1, *scores.shape[1:]), scores.device, native_causal=False).mask
    allowed = None if allowed is None else allowed.squeeze(1)
    if bias is None:
        return scores, allowed
    if isinstance(bias, Bias):
        if bias.heads != 1:
            raise ShapeError(f"the bias {bias!r} has {bias.heads} heads, but this attention has one")
        bias = bias.dense(scores.shape[1], scores.shape[2], scores.dtype, scores.device).squeeze(1)
    _check_broadcast("bias", bias, scores)
    finite = ~torch.isneginf(bias).view(-1, *bias.shape[-2:])
    return scores + bias.to(scores.dtype), finite if allowed is None else allowed & finite


def without_padding(mask: Mask | None, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros where the mask's lengths say that nothing is, in [batch, length, width]; before anything is projected.

    A NaN there would survive a weight of 0, and reach the gradient of every projection. Looks at the kinds of masks
    alone, never at values.

    Raises:
        MaskError: the mask is not a `Mask`.
    """
    _check_mask(mask)
    padding = KnownPadding(mask)
    if not padding.exists:
        return query, key, value
    query, key, value = padding.hide(*(tensor.unsqueeze(1) for tensor in (query, key, value)))
    return query.squeeze(1), key.squeeze(1), value.squeeze(1)


def _fused(
    score: Product,
    query: Tensor,
    keys: Tensor,
    value: Tensor,
    mask: Mask | None,
    bias: Tensor | Bias | None,
    dropout: float,
) -> Tensor:
    queries = score.queries(query, keys)
    if isinstance(bias, Tensor) and bias.dim() == 3:
        bias = bias.unsqueeze(1)
    output, _ = attention(
        queries.unsqueeze(1),
        keys.unsqueeze(1),
        value.unsqueeze(1),
        mask=mask,
        bias=bias,
        scale=score.scale,
        dropout_p=dropout,
    )
    return output.squeeze(1)


def _check_values(keys: Tensor, value: Tensor) -> None:
    if value.dim() != 3 or value.shape[:2] != keys.shape[:2]:
        raise ShapeError(
            f"the values have shape {list(value.shape)}, but with keys {list(keys.shape)} they must be "
            f"[{keys.shape[0]}, {keys.shape[1]}, width]"
        )


def _check_mask(mask: object) -> None:
    if mask is not None and not isinstance(mask, Mask):
        raise MaskError(f"mask is a {type(mask).__name__}: for a boolean tensor, True = may attend, write Dense(mask)")


def _check_broadcast(name: str, tensor: Tensor, scores: Tensor) -> None:
    shape, full = tensor.shape, scores.shape
    if not 2 <= tensor.dim() <= 3 or any(
        size != 1 and size != want for size, want in zip(reversed(shape), reversed(full), strict=False)
    ):
        raise ShapeError(
            f"the {name} has shape {list(shape)}, which does not broadcast to {list(full)}, the [batch, queries, keys] "
            "of these scores"
        )
