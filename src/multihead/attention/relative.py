r"""Relative positions as vectors (Shaw, Uszkoreit & Vaswani 2018).

    e_ij = q_i . (k_j + a^K_c(j-i)) / sqrt(d)        w_i = softmax(e_i)        z_i = sum_j w_ij (v_j + a^V_c(j-i))
    c(x) = max(-k, min(k, x))

Every distance up to k has two learned vectors, one that is added to the keys and one that is added to the values. No
tensor of queries, keys and channels arises: q_i . a^K is one product with the 2k + 1 vectors, whose columns `by_pair`
places, and the weights of each distance are summed (`by_distance`) before they meet a^V. The memory is that of the
scores (section 3.3).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.backends.call import dense_bias, describe_call
from multihead.attention.biases import Bias
from multihead.attention.functional import BackendName, attention
from multihead.attention.masks import Mask
from multihead.attention.masks.standard import KnownPadding
from multihead.errors import ConfigurationError, ShapeError


class RelativePositions(nn.Module):
    r"""The vectors a^K and a^V of the distances, which all heads of an attention share.

    ``keys`` [2k + 1, dim] and ``values`` [2k + 1, value_dim] hold them by distance, key minus query, from -k to k; with
    ``causal`` [k + 1, ...] from -k to 0.

    Args:
        dim: d, the width of a head's keys.
        distance: k; pairs that are farther apart count as k apart.
        value_dim: the width of a head's values (default: ``dim``).
        causal: whether queries see earlier keys only (later ones then count as 0 apart).

    Raises:
        ConfigurationError: a number is below 1.
    """

    def __init__(self, dim: int, distance: int = 16, *, value_dim: int | None = None, causal: bool = False) -> None:
        super().__init__()
        value_dim = dim if value_dim is None else value_dim
        if min(dim, distance, value_dim) < 1:
            raise ConfigurationError(f"dim={dim}, distance={distance}, value_dim={value_dim}: each must be at least 1")
        self.distance, self.causal = distance, causal
        count = distance + 1 if causal else 2 * distance + 1
        self.keys = nn.Parameter(torch.empty(count, dim))
        self.values = nn.Parameter(torch.empty(count, value_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the vectors."""
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def check(self, dim: int, value_dim: int) -> None:
        """Raise `ShapeError` if the heads have other widths than the vectors."""
        own = self.keys.shape[1], self.values.shape[1]
        if own != (dim, value_dim):
            raise ShapeError(
                f"the relative positions have the widths {own[0]} and {own[1]}, but keys and values of a head {dim} "
                f"and {value_dim}: write RelativePositions({dim}, value_dim={value_dim})"
            )

    def scores(
        self, query: Float[Tensor, "batch heads query dim"], kv_len: int
    ) -> Float[Tensor, "batch heads query {kv_len}"]:
        """q_i . a^K_c(j-i), not scaled; the last query is at the last key."""
        products = query @ self.keys.to(query.dtype).t()  # [batch, heads, query, distances]
        q_len = query.shape[2]
        first, last, before, after = self._reached(q_len, kv_len)
        near = products[..., first : last + 1]
        parts = (
            products[..., first : first + 1].expand(*products.shape[:-1], before),
            near,
            products[..., last : last + 1].expand(*products.shape[:-1], after),
        )
        return by_pair(torch.cat(parts, -1), kv_len)

    def sums(self, weights: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query value_dim"]:
        """sum_j w_ij a^V_c(j-i)."""
        first, last, before, after = self._reached(*weights.shape[2:])
        shares, table = by_distance(weights), self.values.to(weights.dtype)
        total = shares[..., before : before + last + 1 - first] @ table[first : last + 1]
        if before:
            total = total + shares[..., :before].sum(-1, keepdim=True) * table[first]
        if after:
            total = total + shares[..., -after:].sum(-1, keepdim=True) * table[last]
        return total

    def _reached(self, q_len: int, kv_len: int) -> tuple[int, int, int, int]:
        """First and last row of the table that a pair needs, and how many distances lie before and after them."""
        back, ahead = kv_len - 1, q_len - 1
        most = 0 if self.causal else self.distance
        near, far = min(back, self.distance), min(ahead, most)
        return self.distance - near, self.distance + far, back - near, ahead - far

    def extra_repr(self) -> str:
        return f"{self.keys.shape[1]}, distance={self.distance}, causal={self.causal}"


def by_pair(
    x: Float[Tensor, "batch heads query distances"], kv_len: int
) -> Float[Tensor, "batch heads query {kv_len}"]:
    """From columns by distance, 1 - kv_len ... q_len - 1, to columns by key: y_ij = x_i,j-i; the skewing of rows.

    The last query is at the last key.
    """
    q_len, columns = x.shape[2:]
    if q_len < 2:
        return x
    # Row i begins i columns later: in memory, rows are read as if each were one element shorter.
    first, shorter = q_len - 1, columns - 1
    rows = x.flatten(2)[..., first : first + q_len * shorter].reshape(*x.shape[:2], q_len, shorter)
    return rows[..., :kv_len]


def by_distance(
    y: Float[Tensor, "batch heads query key"],
) -> Float[Tensor, "batch heads query distances"]:
    """The inverse of `by_pair`: from columns by key to columns by distance, where a pair out of reach is 0."""
    q_len = y.shape[2]
    if q_len < 2:
        return y
    shifted = F.pad(F.pad(y, (0, q_len - 2)).flatten(2), (q_len - 1, 1))
    return shifted.view(*y.shape[:3], y.shape[3] + q_len - 1)


def relative_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    positions: RelativePositions,
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    backend: BackendName = "auto",
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"] | None]:
    r"""Scaled dot-product attention with relative positions of keys and values.

    .. math::
        e_{ij} = \frac{q_i (k_j + a^K_{c(j-i)})^T}{\sqrt d}, \qquad
        z_i = \sum_j \mathrm{softmax}_j(e_{ij}) \, (v_j + a^V_{c(j-i)})

    It is `multihead.attention.attention` with one more bias, whose weights are summed by distance too; therefore it is
    never fused.

    Args:
        query: Q.
        key: K.
        value: V.
        positions: a^K and a^V. If there are more keys than queries, the queries are the last positions.
        mask: as there. A query that may attend to nothing yields zeros.
        bias: as there.
        scale: as there, of the sum of both products.
        dropout_p: as there.
        need_weights: return the weights too.
        backend: ``"auto"`` or ``"explicit"``.

    Raises:
        ShapeError: tensors, vectors, mask or bias do not fit together.
        ConfigurationError: a backend without weights, or an impossible dropout.
    """
    positions.check(query.shape[-1], value.shape[-1])
    describe_call(query, key, value, mask=mask, bias=bias, dropout_p=dropout_p)  # of `bias` alone
    if mask is not None:
        query, key, value = KnownPadding(mask).hide(query, key, value)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    term = positions.scores(query, key.shape[2]) * factor
    other = dense_bias(bias, query, key)
    term = term if other is None else term + other.to(term.dtype)
    output, weights = attention(
        query, key, value, mask=mask, bias=term, scale=scale, need_weights=True, backend=backend
    )
    assert weights is not None
    kept = weights
    if dropout_p:
        kept = F.dropout(weights, dropout_p)
        output = kept @ value.to(kept.dtype).repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return output + positions.sums(kept), weights if need_weights else None
