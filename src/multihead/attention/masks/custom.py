"""Masks without structure: a boolean tensor, a function of indices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from multihead.attention.masks.algebra import Device, Mask, Rule
from multihead.errors import MaskError, ShapeError


class Dense(Mask):
    """A mask given as a tensor.

    Args:
        mask: Bool, True = may attend: [queries, keys], or four axes that broadcast to [batch, heads, queries,
            keys]. It is not copied: do not modify it while the mask is in use. For a mask [batch, keys] write
            ``Dense(mask[:, None, None, :])``.

    Raises:
        MaskError: wrong type or number of axes; the message says what to write. Three axes are refused because
            [batch, queries, keys] and [heads, queries, keys] are ambiguous when batch == heads.
    """

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor):
            raise MaskError(f"Dense takes a boolean tensor, got {type(mask).__name__}: write Dense(torch.tensor(mask))")
        if mask.is_floating_point():
            raise MaskError(
                f"got a mask of {mask.dtype}; masks are boolean, True = may attend. For 0 and -inf write "
                "Dense(mask == 0); numbers to be added to the scores are a bias: pass bias=mask"
            )
        if mask.dtype != torch.bool:
            raise MaskError(
                f"got a mask of {mask.dtype}; masks are boolean, True = may attend. Write "
                "Dense(mask == 1) if 1 means 'may attend', Dense(mask == 0) if 1 means 'ignore'"
            )
        if mask.dim() not in (2, 4):
            raise MaskError(
                f"got a mask of shape {list(mask.shape)}; two axes [queries, keys] or four "
                "[batch, heads, queries, keys] are needed. Write Dense(mask[:, None]) if it is "
                "[batch, queries, keys], Dense(mask[None]) if it is [heads, queries, keys], "
                "Dense(mask[None, :]) if it is [keys]"
            )
        self.mask = mask[None, None] if mask.dim() == 2 else mask

    @property
    def device(self) -> torch.device | None:
        """The tensor's device."""
        return self.mask.device

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The tensor's first two sizes."""
        return self.mask.shape[0], self.mask.shape[1]

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """mask[b, h, q, k], broadcast along axes of size 1."""
        mask = self.dense(q_len, kv_len, device)
        of_b, of_h, of_q, of_k = (int(size != 1) for size in mask.shape)  # 0 = the index makes no difference
        return lambda b, h, q, k: mask[b * of_b, h * of_h, q * of_q, k * of_k]

    def dense(
        self,
        q_len: int,
        kv_len: int,
        device: Device = None,
        *,
        batch: int = 1,  # noqa: ARG002
        heads: int = 1,  # noqa: ARG002
    ) -> Bool[Tensor, "b h q k"]:
        """The tensor itself, [batch | 1, heads | 1, q_len | 1, kv_len | 1]."""
        queries, keys = self.mask.shape[2:]
        if (queries != 1 and queries != q_len) or (keys != 1 and keys != kv_len):
            raise ShapeError(
                f"the mask has shape {list(self.mask.shape)}, but with {q_len} queries and {kv_len} keys its "
                f"last two axes must be {[q_len, kv_len]} (or 1). Write Dense(mask[:, None, None, :]) if it is "
                "[batch, keys]"
            )
        return self.mask if device is None else self.mask.to(device)

    def part(
        self, rows: range, heads: int, queries: range, keys: range, q_len: int, kv_len: int, device: Device = None
    ) -> Bool[Tensor, "b h q k"]:
        """A view of the tensor."""
        mask = self.dense(q_len, kv_len, device)
        spans = (rows, range(heads), queries, keys)
        return mask[
            tuple(
                slice(span.start, span.stop) if size != 1 else slice(None)
                for span, size in zip(spans, mask.shape, strict=True)
            )
        ]

    def __repr__(self) -> str:
        return f"Dense(<bool {list(self.mask.shape)}>)"


class MaskFunction(Mask):
    """A mask defined by a function of indices, which FlexAttention calls a ``mask_mod``.

    ::

        MaskFunction(lambda b, h, q, k: (q - k).abs() <= 2 * h)     # a wider band for each head

    The function is called with tensors of indices that broadcast against one another and must be written in tensor
    operations: ``&``, ``|``, ``~``, comparisons, indexing, ``torch.where``; no ``and``, ``or``, ``if``. Positions are
    counted from the first query and the first key. It is called again on every use, so what it captures may change.

    Args:
        function: ``(b, h, q, k)``: sentence, head, query, key -> boolean, True = may attend.

    Raises:
        MaskError: (when used) the function does not return booleans, or fails for tensors of indices.
    """

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        self.function = function

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """Unknown: only calling the function would tell."""
        return None, None

    @property
    def constant(self) -> bool:
        """False: what the function captures may change."""
        return False

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """The function, after a check of its result for the first query and key."""
        if q_len and kv_len:
            first = torch.zeros((), dtype=torch.long, device=device)
            answer: object = self._try(lambda: self.function(first, first, first, first))
            if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
                kind = f"{answer.dtype}" if isinstance(answer, Tensor) else type(answer).__name__
                raise MaskError(f"the function of a mask gives a boolean tensor, True = may attend; got {kind}")
        return self.function

    def _evaluate(self, indices: list[Tensor], q_len: int, kv_len: int, device: Device) -> Tensor:
        """As for every mask; axes on which the function does not depend have size 1."""
        answer = self._try(lambda: super(MaskFunction, self)._evaluate(indices, q_len, kv_len, device))
        return answer.view([1] * (4 - answer.dim()) + list(answer.shape))

    @staticmethod
    def _try(call: Callable[[], Tensor]) -> Tensor:
        try:
            return call()
        except (RuntimeError, IndexError) as error:
            raise MaskError(
                f"the function of a mask failed with tensors of indices as arguments: {error}. Write it in tensor "
                "operations: & | ~ and torch.where instead of `and`, `or`, `not` and `if`"
            ) from error

    def __repr__(self) -> str:
        return f"MaskFunction({getattr(self.function, '__qualname__', repr(self.function))})"
