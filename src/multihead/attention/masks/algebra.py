"""What every mask can do, and how masks combine: ``&``, ``|``, ``~``.

The masks themselves are in the other files of this package. A mask is a value: it owns its tensors, and nothing changes
after it was made. What is derived from a mask is cached in it, so the layers of a network, which share the mask, share
that too.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Hashable
from functools import reduce
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attention.drawing import Drawable
from multihead.attention.masks.intervals import Intervals, everything
from multihead.errors import ConfigurationError, MaskError, ShapeError

Device = torch.device | str | None

_T = TypeVar("_T")

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``(b, h, q, k)`` -> whether query q of sentence b and head h may attend to key k. The arguments are tensors of
indices that broadcast against one another, the result is boolean. FlexAttention calls this a ``mask_mod``."""


class Mask(Drawable):
    """The base of all masks. True = may attend. It has no shape until :meth:`dense` or :meth:`rule` is called."""

    @abstractmethod
    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """The definition of the mask for these lengths, as a function of indices on ``device``."""

    @abstractmethod
    def __repr__(self) -> str:
        """The expression that makes this mask."""

    def dense(
        self, q_len: int, kv_len: int, device: Device = None, *, batch: int = 1, heads: int = 1
    ) -> Bool[Tensor, "b h q k"]:
        """The smallest boolean tensor that broadcasts to [batch, heads, q_len, kv_len].

        Axes on which the mask does not depend have size 1: ``Padding`` gives [batch, 1, 1, kv_len],
        ``Causal`` gives [1, 1, q_len, kv_len]. The default ``device`` is that of the mask's own tensors, or the CPU.
        ``batch`` and ``heads`` matter only to a mask whose `sizes` are unknown
        (:class:`~multihead.attention.masks.custom.MaskFunction`).

        Raises:
            ShapeError: the mask was made for other lengths.
        """
        known = self.sizes
        counts = (batch if known[0] is None else known[0], heads if known[1] is None else known[1], q_len, kv_len)
        device = self.device if device is None else device
        # Not `part`: a compiler would specialize its code to the ends of a range.
        return self._evaluate([torch.arange(count, device=device) for count in counts], q_len, kv_len, device)

    def part(
        self,
        rows: range,
        heads: int,
        queries: range,
        keys: range,
        q_len: int,
        kv_len: int,
        device: Device = None,
    ) -> Bool[Tensor, "b h q k"]:
        """The part of :meth:`dense` for some sentences, queries and keys; the others are never computed."""
        device = self.device if device is None else device
        known = self.sizes
        spans = (range(1) if known[0] == 1 else rows, range(1 if known[1] == 1 else heads), queries, keys)
        indices = [torch.arange(span.start, span.stop, device=device) for span in spans]
        return self._evaluate(indices, q_len, kv_len, device)

    def _evaluate(self, indices: list[Tensor], q_len: int, kv_len: int, device: Device) -> Tensor:
        """Evaluate the rule for every combination of sentences, heads, queries and keys: [b, h, q, k]."""
        b, h, q, k = indices
        b, h, q, k = b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), q.view(1, 1, -1, 1), k.view(1, 1, 1, -1)
        return self.rule(q_len, kv_len, device)(b, h, q, k)

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The number of sentences and of heads that the mask was made for: 1 = any number; None = unknown."""
        return 1, 1

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The masks whose intersection this is, flattened: what backends look at. ``Full()`` has none."""
        return (self,)

    @property
    def device(self) -> torch.device | None:
        """The device of the mask's own tensors; None if it has none."""
        return None

    @property
    def constant(self) -> bool:
        """Whether evaluating the mask twice gives the same, so that results may be cached."""
        return True

    def intervals(self, q_len: int, kv_len: int) -> Intervals | None:  # noqa: ARG002
        """The stretch of keys that each query sees, if it is a single stretch and known on the host; else None."""
        return None

    def known_intervals(self, rows: int, q_len: int, kv_len: int) -> tuple[Intervals, tuple[Mask, ...]]:
        """What the host knows of this mask, as [1 or rows, q_len], and the conjuncts of which it knows nothing."""
        known, unknown = everything(kv_len), []
        for part in self.conjuncts:
            intervals = part.intervals(q_len, kv_len)
            if intervals is None:
                unknown.append(part)
            else:
                known = known.intersect(intervals)
        return known.spread(rows, q_len, kv_len), tuple(unknown)

    def additive(
        self,
        q_len: int,
        kv_len: int,
        dtype: torch.dtype,
        device: Device = None,
        *,
        batch: int = 1,
        heads: int = 1,
    ) -> Float[Tensor, "b h q k"]:
        """The mask as a term to add to the scores: 0 = may attend, -inf = may not."""
        allowed = self.dense(q_len, kv_len, device, batch=batch, heads=heads)
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, -torch.inf)

    def cached(self, name: str, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result of ``make``, called again only if the key differs from that of the last call with this name.

        Nothing is cached while a compiler traces (compiled code would be specialized to one key), nor for a mask that
        is not `constant`.

        Args:
            name: the kind of result.
            key: what it depends on besides this mask.
            make: computes it.
        """
        if torch.compiler.is_compiling() or not self.constant:
            return make()
        # Tensors made in inference mode cannot be saved for a backward pass.
        key = (key, torch.is_inference_mode_enabled())
        cache: dict[str, tuple[Hashable, Any]] = self.__dict__.setdefault("_cache", {})
        entry = cache.get(name)
        if entry is None or entry[0] != key:
            entry = cache[name] = (key, make())
        return entry[1]

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: all but the cache."""
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

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


class Full(Mask):
    """Everything may be attended to."""

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """Empty: no condition has to hold."""
        return ()

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:  # noqa: ARG002
        """True everywhere."""
        return lambda b, h, q, k: q >= 0  # noqa: ARG005

    def dense(
        self,
        q_len: int,  # noqa: ARG002
        kv_len: int,  # noqa: ARG002
        device: Device = None,
        *,
        batch: int = 1,  # noqa: ARG002
        heads: int = 1,  # noqa: ARG002
    ) -> Bool[Tensor, "b h q k"]:
        """[1, 1, 1, 1], True."""
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)

    def intervals(self, q_len: int, kv_len: int) -> Intervals:  # noqa: ARG002
        """All keys."""
        return everything(kv_len)

    def __repr__(self) -> str:
        return "Full()"


class _Combination(Mask):
    """Several masks combined by one associative operator."""

    symbol: str
    combine: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, *parts: Mask) -> None:
        if not parts:
            raise ConfigurationError(f"{type(self).__name__}() combines at least one mask, got none")
        self.parts: tuple[Mask, ...] = tuple(
            leaf for part in parts for leaf in (part.parts if isinstance(part, type(self)) else (part,))
        )

    @property
    def device(self) -> torch.device | None:
        """The device of the first part that has tensors."""
        return next((part.device for part in self.parts if part.device is not None), None)

    @property
    def constant(self) -> bool:
        """Whether every part is constant."""
        return all(part.constant for part in self.parts)

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The sizes of the parts that were made for a number; None where none was and a part's is unknown."""
        known = [part.sizes for part in self.parts]
        return _common_size([size for size, _ in known]), _common_size([size for _, size in known])

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """The parts' rules, combined by the operator."""
        device = self.device if device is None else device
        rules, combine = [part.rule(q_len, kv_len, device) for part in self.parts], self.combine
        return lambda b, h, q, k: reduce(combine, [rule(b, h, q, k) for rule in rules])

    def dense(
        self, q_len: int, kv_len: int, device: Device = None, *, batch: int = 1, heads: int = 1
    ) -> Bool[Tensor, "b h q k"]:
        """The parts' dense masks, broadcast against one another and combined."""
        return self._fold(lambda part, where: part.dense(q_len, kv_len, where, batch=batch, heads=heads), device)

    def part(
        self, rows: range, heads: int, queries: range, keys: range, q_len: int, kv_len: int, device: Device = None
    ) -> Bool[Tensor, "b h q k"]:
        return self._fold(lambda part, where: part.part(rows, heads, queries, keys, q_len, kv_len, where), device)

    def _fold(self, lower: Callable[[Mask, Device], Tensor], device: Device) -> Tensor:
        device = self.device if device is None else device
        combined = lower(self.parts[0], device)
        for part in self.parts[1:]:
            other = lower(part, device)
            if any(a != b and a != 1 and b != 1 for a, b in zip(combined.shape, other.shape, strict=True)):
                raise ShapeError(
                    f"in {self!r} masks of shapes {list(combined.shape)} and {list(other.shape)}, as [batch, "
                    "heads, queries, keys], do not fit together"
                )
            combined = self.combine(combined, other)
        return combined

    def __repr__(self) -> str:
        # `&` binds tighter than `|`: only an Or inside an And needs parentheses.
        return f" {self.symbol} ".join(
            f"({part!r})" if isinstance(part, Or) and self.symbol == "&" else repr(part) for part in self.parts
        )


class And(_Combination):
    """May attend where every part allows it: ``a & b``."""

    symbol, combine = "&", staticmethod(operator.and_)

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The conjuncts of every part."""
        return tuple(leaf for part in self.parts for leaf in part.conjuncts)

    def intervals(self, q_len: int, kv_len: int) -> Intervals | None:
        """The intersection, if every part is known."""
        combined = everything(kv_len)
        for part in self.parts:
            known = part.intervals(q_len, kv_len)
            if known is None:
                return None
            combined = combined.intersect(known)
        return combined


class Or(_Combination):
    """May attend where at least one part allows it: ``a | b``."""

    symbol, combine = "|", staticmethod(operator.or_)


class Derived(Mask):
    """A mask made of another one, whose device and sizes it has."""

    def __init__(self, inner: Mask) -> None:
        self.inner = inner

    @property
    def device(self) -> torch.device | None:
        """The inner mask's device."""
        return self.inner.device

    @property
    def constant(self) -> bool:
        """Whether the inner mask is constant."""
        return self.inner.constant

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The inner mask's."""
        return self.inner.sizes


class Not(Derived):
    """May attend exactly where the other mask does not allow it: ``~a``."""

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """The inner mask's rule, inverted."""
        inner = self.inner.rule(q_len, kv_len, device)
        return lambda b, h, q, k: ~inner(b, h, q, k)

    def dense(
        self, q_len: int, kv_len: int, device: Device = None, *, batch: int = 1, heads: int = 1
    ) -> Bool[Tensor, "b h q k"]:
        """The inner mask's dense form, inverted; the same shape."""
        return ~self.inner.dense(q_len, kv_len, device, batch=batch, heads=heads)

    def __invert__(self) -> Mask:
        return self.inner

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, _Combination) else f"~{self.inner!r}"


def _common_size(sizes: list[int | None]) -> int | None:
    found: int | None = 1
    for size in sizes:  # a plain loop, which torch.compile can trace
        if (size is None and found == 1) or (size is not None and size != 1):
            found = size
    return found


def _operand(other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    if isinstance(other, Tensor):
        raise MaskError("a mask is combined with a mask, got a tensor: write Dense(tensor)")
    raise MaskError(f"a mask is combined with a mask, got {type(other).__name__}")
