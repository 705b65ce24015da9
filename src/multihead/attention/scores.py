r"""Score functions of a query and a key: additive, dot, scaled, bilinear.

    additive             v . tanh(W x + U q)        Bahdanau et al. 2015, appendix A.1.2
    dot                  x . q                      Luong et al. 2015, section 3.1
    scaled dot           x . q / sqrt(D)            Vaswani et al. 2017, section 3.2.1
    bilinear             x^T W q                    Luong et al. 2015, "general"
    low-rank bilinear    (U x) . (V q)              W = U^T V
    soft-capped          c tanh(s / c)              Bello et al. 2017, Gemma Team 2024: around any of these

for a key x and a query q. Each score first computes what depends on the keys alone (`Score.keys`), so that a decoder
with fixed keys does this once for all steps. `composition` applies masks, weights and the weighted sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from multihead.attention.backends.call import check_soft_cap
from multihead.errors import ConfigurationError, ShapeError

CHUNK_ELEMENTS = 1 << 20
"""Elements that `Additive` holds at a time: 4 MB in float32, small enough for a processor's cache."""


class Score(nn.Module, ABC):
    """A function of a query and a key, computed for all pairs.

    ``score(query, key)`` is ``score.from_keys(query, score.keys(key))``, bit for bit.

    Args:
        query_dim: width of the queries; None accepts any.
        key_dim: width of the keys; None accepts any.
    """

    def __init__(self, query_dim: int | None, key_dim: int | None) -> None:
        super().__init__()
        for name, size in (("query_dim", query_dim), ("key_dim", key_dim)):
            _check_size(name, size)
        self.query_dim, self.key_dim = query_dim, key_dim

    def forward(
        self, query: Float[Tensor, "batch query query_dim"], key: Float[Tensor, "batch key key_dim"]
    ) -> Float[Tensor, "batch query key"]:
        """The score of every pair.

        Raises:
            ShapeError: the widths or batch sizes do not match.
        """
        return self.from_keys(query, self.keys(key))

    def keys(self, key: Float[Tensor, "batch key key_dim"]) -> Float[Tensor, "batch key score_dim"]:
        """The part that depends on the keys alone: computed once, used in many steps.

        Raises:
            ShapeError: the keys do not have three axes and the expected width.
        """
        _check_axes("key", key, self.key_dim)
        return self._keys(key)

    def from_keys(
        self, query: Float[Tensor, "batch query query_dim"], keys: Float[Tensor, "batch key score_dim"]
    ) -> Float[Tensor, "batch query key"]:
        """The scores of queries with the result of `keys`.

        Raises:
            ShapeError: the queries do not have three axes, the expected width and the batch size of the keys.
        """
        self._check_query(query, keys)
        return self._from_keys(query, keys)

    def _check_query(self, query: Tensor, keys: Tensor) -> None:
        _check_axes("query", query, self.query_dim)
        if len(query) != len(keys):
            raise ShapeError(f"queries {list(query.shape)} and keys {list(keys.shape)} have different batch sizes")

    @abstractmethod
    def _keys(self, key: Tensor) -> Tensor: ...

    @abstractmethod
    def _from_keys(self, query: Tensor, keys: Tensor) -> Tensor: ...

    def extra_repr(self) -> str:
        return "" if self.key_dim is None else f"query_dim={self.query_dim}, key_dim={self.key_dim}"


class Additive(Score):
    r"""The additive score.

    .. math::
        s(x, q) = v^T \tanh(W x + U q)

    W is ``key_projection``, U ``query_projection`` and v ``energy``; there are no biases. All pairs at once take
    batch x queries x keys x hidden_dim elements. Beyond `CHUNK_ELEMENTS`, the queries are processed in chunks, which
    the backward pass recomputes.

    Args:
        query_dim: width of the queries.
        key_dim: width of the keys.
        hidden_dim: width of W x and U q.

    Raises:
        ConfigurationError: a width is below 1.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__(query_dim, key_dim)
        _check_size("hidden_dim", hidden_dim)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
        self.energy = nn.Parameter(torch.empty(hidden_dim))
        nn.init.normal_(self.energy, std=hidden_dim**-0.5)

    def _keys(self, key: Tensor) -> Tensor:
        projected: Tensor = self.key_projection(key)
        return projected

    def _from_keys(self, query: Tensor, keys: Tensor) -> Tensor:
        queries = self.query_projection(query)
        rows = max(1, CHUNK_ELEMENTS // max(1, keys.numel()))
        if queries.shape[1] <= rows:
            return _energies(queries, keys, self.energy)
        chunks = [
            checkpoint(_energies, chunk, keys, self.energy, use_reentrant=False, preserve_rng_state=False)
            for chunk in queries.split(rows, dim=1)
        ]
        return torch.cat(chunks, dim=1)


def _energies(queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
    # Broadcast to [batch, query, key, hidden].
    return (queries.unsqueeze(2) + keys.unsqueeze(1)).tanh() @ energy


class Product(Score):
    """A score that is a dot product of a map of the query and a map of the key.

    A fused attention kernel can compute it. ``scale`` multiplies the product; None = 1 / sqrt(width of its factors).
    """

    scale: float | None = 1.0

    def queries(
        self, query: Float[Tensor, "batch query query_dim"], keys: Float[Tensor, "batch key score_dim"]
    ) -> Float[Tensor, "batch query score_dim"]:
        """The mapped queries, to be multiplied by the keys and by ``scale``.

        Raises:
            ShapeError: queries and keys do not match.
        """
        self._check_query(query, keys)
        queries = self._queries(query)
        if queries.shape[-1] != keys.shape[-1]:
            raise ShapeError(
                f"a dot product needs queries as wide as the keys, got {list(queries.shape)} and {list(keys.shape)}; "
                "Bilinear and Additive accept any two widths"
            )
        return queries

    def _from_keys(self, query: Tensor, keys: Tensor) -> Tensor:
        queries = self.queries(query, keys)
        if self.scale != 1:
            queries = queries * (queries.shape[-1] ** -0.5 if self.scale is None else self.scale)
        return queries @ keys.transpose(1, 2)

    def _queries(self, query: Tensor) -> Tensor:
        return query

    def _keys(self, key: Tensor) -> Tensor:
        return key


class Dot(Product):
    r"""The dot product.

    .. math::
        s(x, q) = x^T q
    """

    def __init__(self) -> None:
        super().__init__(None, None)


class ScaledDot(Product):
    r"""The scaled dot product.

    .. math::
        s(x, q) = \frac{x^T q}{\sqrt{D}}

    The dot product of two vectors of D independent numbers of variance 1 has variance D. Dividing by sqrt(D) makes it
    1, which keeps the softmax away from its flat regions.

    Args:
        scale: the factor; None = 1 / sqrt(D).
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__(None, None)
        self.scale = scale


class Bilinear(Product):
    r"""The bilinear score.

    .. math::
        s(x, q) = x^T W q

    ``weight`` is W, [key_dim, query_dim], initialized so that inputs of variance 1 have scores of variance 1.

    Args:
        query_dim: width of the queries.
        key_dim: width of the keys.

    Raises:
        ConfigurationError: a width is below 1.
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__(query_dim, key_dim)
        self.weight = nn.Parameter(torch.empty(key_dim, query_dim))
        nn.init.normal_(self.weight, std=(key_dim * query_dim) ** -0.5)

    def _keys(self, key: Tensor) -> Tensor:
        return key @ self.weight


class LowRankBilinear(Product):
    r"""The bilinear score with a low-rank W.

    .. math::
        s(x, q) = x^T U^T V q = (U x)^T (V q)

    U is ``key_projection`` and V ``query_projection``, both [rank, width]. Unlike a dot product it is not symmetric,
    and it has rank x (key_dim + query_dim) parameters instead of key_dim x query_dim.

    Args:
        query_dim: width of the queries.
        key_dim: width of the keys.
        rank: number of rows of U and V.

    Raises:
        ConfigurationError: a width or the rank is below 1.
    """

    def __init__(self, query_dim: int, key_dim: int, rank: int) -> None:
        super().__init__(query_dim, key_dim)
        _check_size("rank", rank)
        self.key_projection = nn.Parameter(torch.empty(rank, key_dim))
        self.query_projection = nn.Parameter(torch.empty(rank, query_dim))
        nn.init.normal_(self.key_projection, std=(key_dim * rank**0.5) ** -0.5)
        nn.init.normal_(self.query_projection, std=(query_dim * rank**0.5) ** -0.5)

    def _queries(self, query: Tensor) -> Tensor:
        return query @ self.query_projection.T

    def _keys(self, key: Tensor) -> Tensor:
        return key @ self.key_projection.T


class SoftCap(Score):
    r"""Any score, bounded smoothly.

    .. math::
        s'(x, q) = c \tanh(s(x, q) / c)

    Scores well below c stay as they are, and none exceeds c, so no weight can grow without end (Bello et al. 2017,
    Gemma Team 2024, section 2). `multihead.attention.attention` has it for heads, as ``soft_cap``.

    Args:
        score: s.
        cap: c.

    Raises:
        ConfigurationError: the cap is not above 0 and finite.
    """

    def __init__(self, score: Score, cap: float) -> None:
        super().__init__(score.query_dim, score.key_dim)
        check_soft_cap(cap, "cap")
        self.score, self.cap = score, cap

    def _keys(self, key: Tensor) -> Tensor:
        return self.score.keys(key)

    def _from_keys(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.cap * torch.tanh(self.score.from_keys(query, keys) / self.cap)

    def extra_repr(self) -> str:
        return f"cap={self.cap}"


def _check_size(name: str, size: int | None) -> None:
    if size is not None and size < 1:
        raise ConfigurationError(f"{name}={size}: expected at least 1")


def _check_axes(name: str, tensor: Tensor, width: int | None) -> None:
    if tensor.dim() != 3 or (width is not None and tensor.shape[2] != width):
        raise ShapeError(
            f"the {name} has shape {list(tensor.shape)}, but it must be [batch, length, {width or 'width'}]"
        )
