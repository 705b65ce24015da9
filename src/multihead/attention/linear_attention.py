r"""Linear attention: a feature map in place of the softmax.

    o_i = phi(q_i)^T sum_j phi(k_j) v_j^T / phi(q_i)^T sum_j phi(k_j)

Katharopoulos et al. 2020, "Transformers are RNNs", equations 4 to 6. The sums do not depend on the query. In causal
attention they run over j <= i (equations 8 to 12), a recurrence with a state of fixed size:

    S_i = S_{i-1} + phi(k_i) v_i^T,    z_i = z_{i-1} + phi(k_i),    o_i = phi(q_i)^T S_i / phi(q_i)^T z_i
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention.backends.call import at_least_float32
from multihead.attention.masks import Causal, Mask, Padding
from multihead.errors import MaskError, ShapeError
from multihead.kernels.native.tensors import without_autocast

CHUNK = 64
"""Positions that the causal form computes at once."""

FeatureMap = Callable[[Tensor], Tensor]
"""phi: maps the last axis to features that are not negative."""


def elu_plus_one(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7): x + 1 above 0, exp(x) below."""
    return F.elu(x) + 1


@dataclass(frozen=True)
class LinearState:
    """The state of causal linear attention; its size does not depend on the number of positions.

    Attributes:
        memory: S, [batch, heads, features, value_dim].
        total: z, [batch, heads, features].
    """

    memory: Float[Tensor, "batch heads features value_dim"]
    total: Float[Tensor, "batch heads features"]

    def select(self, rows: Int[Tensor, " rows"]) -> LinearState:
        """These rows of the batch, in this order; a row may occur several times or not at all."""
        return LinearState(self.memory.index_select(0, rows), self.total.index_select(0, rows))


def linear_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch heads key dim"],
    value: Float[Tensor, "batch heads key value_dim"],
    *,
    mask: Mask | None = None,
    feature_map: FeatureMap = elu_plus_one,
) -> Float[Tensor, "batch heads query value_dim"]:
    r"""Linear attention.

    .. math::
        o_i = \frac{\phi(q_i)^T \sum_j \phi(k_j) v_j^T}{\phi(q_i)^T \sum_j \phi(k_j)}

    Half types are computed in float32. A query that may attend to nothing yields zeros.

    Args:
        query: Q.
        key: K.
        value: V.
        mask: None, ``Padding``, ``Causal()`` or both: other masks have no linear form.
        feature_map: phi.

    Raises:
        MaskError: any other mask.
        ShapeError: the shapes do not fit together, or the mask is causal and there are not as many queries as keys.
    """
    causal, paddings = _split(mask)
    _check(query, key, value)
    if causal and query.shape[2] != key.shape[2]:
        raise ShapeError(
            f"causal linear attention has as many queries as keys, got {query.shape[2]} and {key.shape[2]}: for new "
            "positions after a prefix call linear_attention_step with its state"
        )
    for padding in paddings:
        if len(padding.lengths) not in (1, query.shape[0]):
            raise ShapeError(f"the mask has lengths of {len(padding.lengths)} sentences, the batch {query.shape[0]}")
    dtype = query.dtype
    query, key, value = (at_least_float32(t) for t in (query, key, value))
    with without_autocast(query.device.type):
        return _whole(query, key, value, causal, paddings, feature_map).to(dtype)


def _whole(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, paddings: list[Padding], feature_map: FeatureMap
) -> Tensor:
    """Linear attention of whole sequences, in the type of its arguments."""
    words = [padding.words(key.shape[2], key.device).transpose(2, 3) for padding in paddings]
    query_words = [padding.query_words(query.shape[2], query.device) for padding in paddings]
    real = [queries for queries in query_words if queries is not None]
    # What stands in the padding is hidden from the feature map, and its features are zero.
    features, queries = _hide(feature_map(_hide(key, words)), words), _hide(feature_map(_hide(query, real)), real)
    value = _hide(value, words)
    if not causal:
        memory, total = features.transpose(2, 3) @ value, features.sum(2)
        return _divide(queries @ memory, queries @ total.unsqueeze(-1))
    return _causal(queries, features, value, None)[0]


def linear_attention_step(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch heads query dim"],
    value: Float[Tensor, "batch heads query value_dim"],
    state: LinearState | None = None,
    *,
    feature_map: FeatureMap = elu_plus_one,
) -> tuple[Float[Tensor, "batch heads query value_dim"], LinearState]:
    """Causal linear attention of new positions, one or several, to those in the state and to themselves.

    Args:
        query: Q of the new positions.
        key: their K.
        value: their V.
        state: of the positions before, as the last step returned it; None = there are none.
        feature_map: phi.

    Returns:
        The output, and the state with the new positions (at least float32).

    Raises:
        ShapeError: the shapes do not fit together.
    """
    _check(query, key, value)
    if query.shape[2] != key.shape[2]:
        raise ShapeError(f"each new position has a query and a key, got {query.shape[2]} and {key.shape[2]}")
    dtype = query.dtype
    query, key, value = (at_least_float32(t) for t in (query, key, value))
    with without_autocast(query.device.type):
        output, state = _causal(feature_map(query), feature_map(key), value, state)
    return output.to(dtype), state


def _causal(queries: Tensor, features: Tensor, value: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
    """The recurrence, a chunk of positions at a time."""
    if state is None:
        memory = features.new_zeros(*features.shape[:2], features.shape[3], value.shape[3])
        state = LinearState(memory, features.new_zeros(*features.shape[:2], features.shape[3]))
    outputs = []
    for q, k, v in zip(*(torch.split(t, CHUNK, dim=2) for t in (queries, features, value)), strict=True):
        within = (q @ k.transpose(2, 3)).tril()
        numerator = q @ state.memory + within @ v
        denominator = q @ state.total.unsqueeze(-1) + within.sum(-1, keepdim=True)
        outputs.append(_divide(numerator, denominator))
        state = LinearState(state.memory + k.transpose(2, 3) @ v, state.total + k.sum(2))
    return torch.cat(outputs, dim=2), state


def _hide(x: Tensor, keep: list[Tensor]) -> Tensor:
    for real in keep:
        x = x.masked_fill(~real, 0)
    return x


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Their quotient; 0 where the denominator is 0, since nothing was seen there."""
    return numerator / denominator.masked_fill(denominator == 0, 1)


def _split(mask: Mask | None) -> tuple[bool, list[Padding]]:
    if mask is not None and not isinstance(mask, Mask):
        raise MaskError(f"the mask is a {type(mask).__name__}; linear attention takes Padding, Causal() or both")
    parts = () if mask is None else mask.conjuncts
    paddings = [part for part in parts if isinstance(part, Padding)]
    others = [part for part in parts if not isinstance(part, (Padding, Causal))]
    if others or any(isinstance(part, Causal) and part.align != "end" for part in parts):
        raise MaskError(f"linear attention has no form for the mask {mask!r}: it takes Padding, Causal() or both")
    return any(isinstance(part, Causal) for part in parts), paddings


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ShapeError(f"linear attention takes four axes [batch, heads, length, width], got {shapes}")
    if query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3] or key.shape[:3] != value.shape[:3]:
        raise ShapeError(
            f"query, key and value must have the same batch and heads, query and key one width, key and "
            f"value one length, got {shapes}"
        )
