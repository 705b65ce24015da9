"""Which query may attend to which key: a small algebra with one meaning, True = may attend.

A mask is a structural object (``Causal()``, ``Padding(lengths)``) that knows no shape until it is lowered, so
the choice of a kernel can see what it *is*: ``Causal() & Padding(lengths)`` stays recognisable, a boolean
tensor would not. Masks are combined with ``&``, ``|`` and ``~``; they have no truth value, because ``Causal()
and Padding(lengths)`` would silently drop one of the two. A query that may attend to nothing yields zeros.

Which kernel a mask leads to is decided in :mod:`multihead.attention.backends`. Nothing here reads values on
the device while a mask is lowered; only the ``from_...`` constructors, ``show`` and ``repr`` look at them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attention.drawing import draw_grid
from multihead.errors import ConfigurationError, MaskError, ShapeError

Device = torch.device | str | None


class Mask(ABC):
    """What every mask can do. True = may attend; shape-free until :meth:`dense` is called."""

    @abstractmethod
    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:
        """The smallest boolean tensor that broadcasts to [batch, heads, q_len, kv_len].

        Axes on which the mask does not depend have size 1: ``Padding`` gives [batch, 1, 1, kv_len],
        ``Causal`` gives [1, 1, q_len, kv_len]. Without ``device`` it lies where the mask's own tensors are,
        or on the CPU.

        Raises:
            ShapeError: the mask was made for other lengths.
        """

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The masks whose intersection this is, flattened: what a lowering looks at. ``Full()`` has none."""
        return (self,)

    @property
    def device(self) -> torch.device | None:
        """Where the mask's own tensors are; None if it has none."""
        return None

    def additive(self, q_len: int, kv_len: int, dtype: torch.dtype, device: Device = None) -> Float[Tensor, "b h q k"]:
        """The same as a term to add to the scores: 0 = may attend, -inf = may not."""
        allowed = self.dense(q_len, kv_len, device)
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, -torch.inf)

    def show(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int = 0,
        head: int = 0,
        query_labels: Sequence[str] | None = None,
        key_labels: Sequence[str] | None = None,
    ) -> str:
        """A drawing, one line a query and one column a key: ■ may attend, · may not.

        Args:
            q_len: the number of queries.
            kv_len: the number of keys (default: as many as queries).
            batch: which sentence of the batch.
            head: which head.
            query_labels: tokens to write in front of the lines.
            key_labels: tokens to write above the columns.

        Raises:
            ShapeError: there is no such sentence or head, or the labels are not as many as the tokens.
        """
        keys = q_len if kv_len is None else kv_len
        for name, labels, count in (("query", query_labels, q_len), ("key", key_labels, keys)):
            if labels is not None and len(labels) != count:
                raise ShapeError(f"{len(labels)} {name} labels for {count} {name} positions: give one label each")
        allowed = self.dense(q_len, keys, "cpu")
        for name, index, size in (("batch", batch, allowed.shape[0]), ("head", head, allowed.shape[1])):
            if index < 0 or (size > 1 and index >= size):
                raise ShapeError(f"{name}={index}, but the mask has only 0 to {size - 1}")
        row = allowed[batch if allowed.shape[0] > 1 else 0, head if allowed.shape[1] > 1 else 0]
        return draw_grid(row.expand(q_len, keys).tolist(), query_labels, key_labels)

    def __and__(self, other: Mask) -> Mask:
        return And(self, _operand(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _operand(other))

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise MaskError(
            f"the mask {self!r} has no truth value: combine masks with & | ~ instead of `and`, `or`, `not`, "
            "and ask `mask is None` instead of `if mask`"
        )

    @abstractmethod
    def __repr__(self) -> str:
        """The expression that makes this mask."""


class Full(Mask):
    """Everything may be attended to."""

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """None at all: no condition has to hold."""
        return ()

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:  # noqa: ARG002
        """[1, 1, 1, 1], True."""
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)

    def __repr__(self) -> str:
        return "Full()"


class Causal(Mask):
    """No query sees a later key.

    Args:
        align: which ends of queries and keys coincide when there are more keys than queries. ``"end"``: the
            last query stands at the last key (k <= q + kv_len - q_len), what cached decoding needs.
            ``"start"``: the first query stands at the first key (k <= q), as PyTorch's ``is_causal`` has it.
            Equal when q_len == kv_len.
    """

    def __init__(self, align: Literal["end", "start"] = "end") -> None:
        if align not in ("end", "start"):
            raise ConfigurationError(f"align={align!r}: a causal mask is aligned at 'end' or at 'start'")
        self.align = align

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:
        """[1, 1, q_len, kv_len]."""
        offset = kv_len - q_len if self.align == "end" else 0
        return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool, device=device).tril(offset)

    def __repr__(self) -> str:
        return "Causal()" if self.align == "end" else "Causal(align='start')"


class Padding(Mask):
    """Only the first ``lengths[b]`` keys of sentence b are words; what follows is padding on the right.

    Args:
        lengths: [batch], integers, as a tensor or as plain numbers. Plain numbers stay known on the host
            (``host_lengths``), where a path that profits from them finds them without asking the device.
        q_lengths: [batch], the same for the queries: those beyond attend to nothing and yield exact zeros.
            Without it padded queries yield something that nobody should read.

    Raises:
        MaskError: the lengths are no integers.
        ShapeError: they have not one axis, or differ in number.
    """

    def __init__(self, lengths: Tensor | Sequence[int], q_lengths: Tensor | Sequence[int] | None = None) -> None:
        self.lengths, self.host_lengths = _as_lengths(lengths, "lengths")
        self.q_lengths: Tensor | None = None
        self.host_q_lengths: tuple[int, ...] | None = None
        if q_lengths is not None:
            self.q_lengths, self.host_q_lengths = _as_lengths(q_lengths, "q_lengths")
            if self.q_lengths.shape != self.lengths.shape:
                raise ShapeError(
                    f"lengths has shape {list(self.lengths.shape)} and q_lengths "
                    f"{list(self.q_lengths.shape)}: give one of each for every sentence"
                )

    @classmethod
    def from_ids(cls, ids: Int[Tensor, "batch length"], pad_id: int) -> Padding:
        """The padding of a batch of token ids. Reads the values, to be sure that the padding is on the right.

        Raises:
            MaskError: ``pad_id`` stands before or between words.
        """
        return cls(_right_padded_lengths(ids != pad_id))

    @classmethod
    def from_key_padding_mask(cls, mask: Tensor) -> Padding:
        """From what ``torch.nn.MultiheadAttention`` takes: Bool [batch, length], where True = ignore.

        Raises:
            MaskError: not boolean, not two axes, or the ignored keys are not all on the right.
        """
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise MaskError(
                f"got a {mask.dtype} mask of shape {list(mask.shape)}; a key padding mask is boolean "
                "[batch, length] with True = ignore (for integers where 1 means ignore: mask == 1)"
            )
        return cls(_right_padded_lengths(~mask))

    @property
    def device(self) -> torch.device | None:
        """Where ``lengths`` is."""
        return self.lengths.device

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:
        """[batch, 1, 1, kv_len]; with ``q_lengths`` [batch, 1, q_len, kv_len]."""
        device = self.device if device is None else device
        keys = sequence_mask(self.lengths.to(device), kv_len)[:, None, None, :]
        if self.q_lengths is None:
            return keys
        return keys & sequence_mask(self.q_lengths.to(device), q_len)[:, None, :, None]

    def __repr__(self) -> str:
        numbers = self.lengths.tolist() if self.host_lengths is None else list(self.host_lengths)
        if self.q_lengths is None:
            return f"Padding({numbers})"
        return f"Padding({numbers}, q_lengths={self.q_lengths.tolist()})"


class Dense(Mask):
    """A mask written out, for whatever has no structure.

    Args:
        mask: Bool, True = may attend: [queries, keys], or four axes that broadcast to [batch, heads, queries,
            keys].

    Raises:
        MaskError: another type, or other axes: the message says what to write. Three axes are refused because
            [batch, queries, keys] and [heads, queries, keys] cannot be told apart when batch == heads.
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
        """Where the tensor is."""
        return self.mask.device

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:
        """The tensor itself, [batch | 1, heads | 1, q_len | 1, kv_len | 1]."""
        queries, keys = self.mask.shape[2:]
        if (queries != 1 and queries != q_len) or (keys != 1 and keys != kv_len):
            raise ShapeError(
                f"the mask has shape {list(self.mask.shape)}, but with {q_len} queries and {kv_len} keys its "
                f"last two axes must be {[q_len, kv_len]} (or 1)"
            )
        return self.mask if device is None else self.mask.to(device)

    def __repr__(self) -> str:
        return f"Dense(<bool {list(self.mask.shape)}>)"


class _Combination(Mask):
    """Two or more masks under one associative operator."""

    symbol: str

    def __init__(self, *parts: Mask) -> None:
        if not parts:
            raise ConfigurationError(f"{type(self).__name__}() combines at least one mask, got none")
        self.parts: tuple[Mask, ...] = tuple(
            leaf for part in parts for leaf in (part.parts if isinstance(part, type(self)) else (part,))
        )

    @property
    def device(self) -> torch.device | None:
        """Where the first part is that has tensors."""
        return next((part.device for part in self.parts if part.device is not None), None)

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:
        """The parts' dense masks, broadcast against one another."""
        device = self.device if device is None else device
        combined = self.parts[0].dense(q_len, kv_len, device)
        for part in self.parts[1:]:
            other = part.dense(q_len, kv_len, device)
            if any(a != b and a != 1 and b != 1 for a, b in zip(combined.shape, other.shape, strict=True)):
                raise ShapeError(
                    f"in {self!r} masks of shapes {list(combined.shape)} and {list(other.shape)}, as [batch, "
                    "heads, queries, keys], do not fit together"
                )
            combined = self._combine(combined, other)
        return combined

    @staticmethod
    @abstractmethod
    def _combine(first: Tensor, second: Tensor) -> Tensor: ...

    def __repr__(self) -> str:
        # `&` binds tighter than `|`: only an Or inside an And needs brackets.
        return f" {self.symbol} ".join(
            f"({part!r})" if isinstance(part, Or) and self.symbol == "&" else repr(part) for part in self.parts
        )


class And(_Combination):
    """May attend where every part allows it: ``a & b``."""

    symbol = "&"

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The conjuncts of every part."""
        return tuple(leaf for part in self.parts for leaf in part.conjuncts)

    @staticmethod
    def _combine(first: Tensor, second: Tensor) -> Tensor:
        return first & second


class Or(_Combination):
    """May attend where at least one part allows it: ``a | b``."""

    symbol = "|"

    @staticmethod
    def _combine(first: Tensor, second: Tensor) -> Tensor:
        return first | second


class Not(Mask):
    """May attend exactly where the other mask does not allow it: ``~a``."""

    def __init__(self, inner: Mask) -> None:
        self.inner = inner

    @property
    def device(self) -> torch.device | None:
        """Where the inner mask is."""
        return self.inner.device

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Bool[Tensor, "b h q k"]:
        """The inner mask's dense form, inverted; the same shape."""
        return ~self.inner.dense(q_len, kv_len, device)

    def __invert__(self) -> Mask:
        return self.inner

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, _Combination) else f"~{self.inner!r}"


def sequence_mask(lengths: Int[Tensor, " batch"], max_len: int | None = None) -> Bool[Tensor, "batch length"]:
    """True at the first ``lengths[b]`` of ``max_len`` positions.

    Without ``max_len`` it is the largest length, which is read from the device.
    """
    size = int(lengths.max()) if max_len is None else max_len
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _operand(other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    if isinstance(other, Tensor):
        raise MaskError("a mask is combined with a mask, got a tensor: write Dense(tensor)")
    raise MaskError(f"a mask is combined with a mask, got {type(other).__name__}")


def _as_lengths(lengths: Tensor | Sequence[int], name: str) -> tuple[Tensor, tuple[int, ...] | None]:
    host = None
    if not isinstance(lengths, Tensor):
        if not all(isinstance(length, Integral) for length in lengths):
            raise MaskError(f"{name} must be integers, got {list(lengths)}")
        host = tuple(int(length) for length in lengths)
        lengths = torch.tensor(host, dtype=torch.long)
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise MaskError(
            f"{name} must be integers, one a sentence, got {lengths.dtype}; for a boolean mask [batch, keys] "
            "where True = may attend write Dense(mask[:, None, None, :])"
        )
    if lengths.dim() != 1:
        raise ShapeError(f"{name} must have the shape [batch], got {list(lengths.shape)}")
    return lengths, host


def _right_padded_lengths(words: Bool[Tensor, "batch length"]) -> Int[Tensor, " batch"]:
    lengths = words.sum(dim=1)
    wrong = (sequence_mask(lengths, words.shape[1]) != words).any(dim=1)
    if bool(wrong.any()):
        raise MaskError(
            f"row {int(wrong.nonzero()[0])} has padding before or between words, but Padding is padding on "
            "the right. For `pad` positions of padding on the left write ~Padding(pad); for any other "
            "pattern Dense(words[:, None, None, :]) with True = word"
        )
    return lengths
