r"""Attention as a composition: score, mask and bias, align, weighted sum.

    s_ln = score(q_l, k_n) + bias_ln          scores
    a_l  = align(s_l)                         weights, over the keys that the mask allows
    c_l  = sum_n a_ln v_n                     weights and values (`multihead.attention.scores`, `.alignment`)

Soft attention is ``Attention(score)``, hard attention ``Attention(score, "argmax")`` or ``"sample"``, key-value
attention ``Attention(score)(query, key, value)``. Patterns of use are calls, not classes: self-attention is ``(x, x)``,
cross-attention ``(x, memory)``, causal attention passes ``mask=Causal()``. Several queries over the same keys and
values, concatenated, take one call: with queries [batch, M, width], ``output.flatten(1)`` is att((K, V), q_1) ⊕ ... ⊕
att((K, V), q_M). `multihead.attention.multihead` has heads with their own projections.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from multihead.attention.alignment import Alignment, AlignmentName, Softmax, build_alignment, entropy, log_prob
from multihead.attention.backends.call import Sizes, check_dropout, check_floats
from multihead.attention.backends.sdpa import lower
from multihead.attention.biases import Bias
from multihead.attention.functional import attention
from multihead.attention.masks import Mask
from multihead.attention.masks.standard import KnownPadding
from multihead.attention.scores import Product, Score
from multihead.errors import MaskError, ShapeError


class Attention(nn.Module):
    r"""Single-head attention with any score and any alignment.

    .. math::
        \mathrm{att}((K, V), q) = \sum_n \alpha_n v_n, \quad \alpha = \mathrm{align}(s(k_1, q), \ldots, s(k_N, q))

    A query that may attend to nothing yields zeros, zero weights and zero gradients, with every score and alignment.

    Args:
        score: the score of a query and a key.
        align: the map from scores to weights: ``"softmax"``, ``"argmax"``, ``"sample"``, ``"straight_through"``,
            ``"gumbel"``, ``"sparsemax"``, ``"entmax15"``, ``"sigmoid"`` or an `Alignment`.
        dropout: probability of dropping a weight during training.

    Raises:
        ConfigurationError: the alignment is unknown, or the dropout is not a probability.
    """

    def __init__(self, score: Score, align: AlignmentName | Alignment = "softmax", dropout: float = 0.0) -> None:
        super().__init__()
        check_dropout(dropout, "dropout")
        self.score = score
        self.align = build_alignment(align)
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
        """The output and the weights.

        Args:
            query: the queries.
            key: the keys.
            value: the values (default: the keys).
            mask: which query may attend to which key; None = all to all.
            bias: added to the scores, [query, key] or [batch, query, key] (an axis may be 1). -inf forbids, like a
                mask.
            need_weights: also return the weights. Otherwise soft attention with a dot-product score runs on PyTorch's
                fused kernel, which is differentiable once.
            generator: source of random numbers for alignments that draw.

        Returns:
            The weighted sums of the values [batch, query, value_dim], and the weights (before dropout) or None; both in
            the query's type, also under autocast.

        Raises:
            ShapeError: the shapes of tensors, mask or bias do not match.
            MaskError: the mask is not a `Mask`.
        """
        query, key, value = hide_padding(mask, query, key, key if value is None else value)
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
        """As `forward`, with ``keys = attention.score.keys(key)`` computed once and used in many steps."""
        _check_values(keys, value)
        dropout = self.dropout if self.training else 0.0
        if self.fuses and not need_weights:
            assert isinstance(self.score, Product)
            return _fused(self.score, query, keys, value, mask, bias, dropout).to(query.dtype), None
        scores, allowed = masked_scores(self.score.from_keys(query, keys), mask, bias)
        weights = self.align(scores, allowed, generator=generator)
        output = F.dropout(weights, dropout) @ value
        return output.to(query.dtype), weights.to(query.dtype) if need_weights else None

    @property
    def fuses(self) -> bool:
        """Whether a call that does not need the weights runs on a fused kernel."""
        return isinstance(self.align, Softmax) and isinstance(self.score, Product)

    def log_prob(
        self,
        weights: Float[Tensor, "batch query key"],
        query: Float[Tensor, "batch query query_dim"],
        key: Float[Tensor, "batch key key_dim"],
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, ...] | Bias | None = None,
    ) -> Float[Tensor, "batch query"]:
        """The log-probability of the drawn keys, for `reinforce_loss`; 0 for a query that may attend to nothing.

        It is recomputed from the arguments of the call that returned ``weights``, since the module keeps no state.
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
        """The entropy of softmax(s) in nats, for `reinforce_loss`; 0 for a query that may attend to nothing."""
        return entropy(*self._scores(query, key, mask, bias))

    def _scores(
        self, query: Tensor, key: Tensor, mask: Mask | None, bias: Tensor | Bias | None
    ) -> tuple[Tensor, Tensor | None]:
        query, key, _ = hide_padding(mask, query, key, key)
        return masked_scores(self.score(query, key), mask, bias)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}" if self.dropout else ""


def masked_scores(
    scores: Float[Tensor, "batch query key"], mask: Mask | None = None, bias: Float[Tensor, ...] | Bias | None = None
) -> tuple[Float[Tensor, "batch query key"], Bool[Tensor, "#batch #query #key"] | None]:
    """Scores plus bias, and the boolean mask of allowed keys: the arguments of an alignment.

    Raises:
        ShapeError: mask or bias do not match the scores.
        MaskError: the mask is not a `Mask`, or the bias holds no floats.
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
    _check_bias(bias, scores)
    bias = bias.to(scores.dtype)  # of half types, what is very negative becomes -inf: it forbids, too
    finite = ~torch.isneginf(bias if bias.dim() == 3 else bias[None])
    return scores + bias, finite if allowed is None else allowed & finite


def hide_padding(mask: Mask | None, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Set the padding of inputs [batch, length, width] to zero, before they are projected.

    A NaN in the padding would survive a weight of 0 and reach the gradient of every projection. The padding follows
    from the lengths of the mask; no tensor values are read.

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
        bias = bias.unsqueeze(1)  # the fused function has an axis of heads
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
            f"the values have shape {list(value.shape)}; with keys {list(keys.shape)} they must be "
            f"[{keys.shape[0]}, {keys.shape[1]}, width]"
        )


def _check_mask(mask: object) -> None:
    if mask is not None and not isinstance(mask, Mask):
        raise MaskError(f"mask is a {type(mask).__name__}; write Dense(mask) for a boolean tensor (True = may attend)")


def _check_bias(bias: Tensor, scores: Tensor) -> None:
    check_floats(bias)
    shape, full = bias.shape, scores.shape
    if not 2 <= bias.dim() <= 3 or any(
        size != 1 and size != want for size, want in zip(reversed(shape), reversed(full), strict=False)
    ):
        raise ShapeError(
            f"the bias has shape {list(shape)}, which does not broadcast to the scores [batch, queries, keys] = "
            f"{list(full)}"
        )
