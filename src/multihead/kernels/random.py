"""Random numbers that are a function of what they are for: of a seed, a place in the program and a place in the batch.

    word_j(row, position) = mix( mix( mix(low + row) xor position ) + mix(high + j) )          (all modulo 2^32)

where (low, high) is the `Key` of one use (a *site*: one dropout of one layer in one step) and feature f of that row and
position owns byte f mod 4 of word f div 4, lowest first. ``mix`` is a bijection of 32 bits, two rounds of
multiply-xorshift ("lowbias32": constants by C. Wellons, 2018), after which flipping any input bit flips each output bit
with a probability within 0.2% of one half. Nothing is drawn in an order, so a mask is the same however a batch is cut
among processes and pieces of memory, it is drawn again in the backward pass instead of being stored, and the compiled
kernels draw the same bits as the plain form here.

Which keys there are is settled by `step`: inside it they follow from its seed and the count of sites so far; outside,
each is drawn from PyTorch's generator, as dropout always did.

Dropout whose mask is never stored: it is drawn again backwards, from the counters of `kernels.random`.

    y = x * m / (1 - p),   m ~ Bernoulli(1 - p)           (Srivastava et al. 2014, section 4)

On a CPU p is rounded to a multiple of 1/256, from 1/256 to 255/256 (0.1 becomes 26/256 = 0.1016), since a random byte
decides, and the survivors are scaled by that rounded value, so that the mean is exact. Compiled and plain form draw the
same mask. Other devices, and models that a compiler compiles, have PyTorch's own dropout.

Fusions with what stands beside a dropout: `kernels.pointwise`, `kernels.pointwise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn

from multihead.errors import ShapeError
from multihead.kernels.native import TYPES, library_for, pointer

LEVELS = 256
"""A probability is rounded to a multiple of 1 / LEVELS: a byte decides."""

_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
_GOLDEN = 0x9E3779B97F4A7C15
_WORD, _LONG = 2**32, 2**64


class Key(NamedTuple):
    """Which numbers one site draws."""

    low: int
    """32 bits."""
    high: int
    """32 bits."""
    first_row: int = 0
    """Number in the whole batch of the first row at hand."""
    row_stride: int = 1
    """From one row at hand to the next, in the whole batch."""
    places: Int64[Tensor, " packed"] | None = None
    """Where what is at hand stands, if it is packed: see `packed_at`."""


class Stream:
    """The keys of one step, in the order in which they are asked for.

    Args:
        seed: of the step; any integer.
        first_row: where the rows at hand stand in the whole batch.
        row_stride: and how far apart.
    """

    def __init__(self, seed: int, first_row: int = 0, row_stride: int = 1) -> None:
        self.seed, self.first_row, self.row_stride = seed, first_row, row_stride
        self.site = 0
        """How many keys were handed out."""

    def key(self) -> Key:
        """The next one."""
        low, high = _split(_mix_long(self.seed % _LONG, self.site))
        self.site += 1
        return Key(low, high, self.first_row, self.row_stride)


_current: ContextVar[Stream | None] = ContextVar("stream of random keys", default=None)
_places: ContextVar[Tensor | None] = ContextVar("places of packed rows", default=None)


@contextmanager
def step(seed: int, *, first_row: int = 0, row_stride: int = 1) -> Iterator[Stream]:
    """Everything random inside is a function of ``seed``, of the order of calls, and of row, position and feature.

    Args:
        seed: of this step, and of nothing else.
        first_row: number of the first row at hand in the whole batch, where a process or a piece has a part of it.
        row_stride: rows of the whole batch from one row at hand to the next.
    """
    with resume(Stream(seed, first_row, row_stride)) as stream:
        yield stream


@contextmanager
def resume(stream: Stream, site: int | None = None) -> Iterator[Stream]:
    """Goes on with a stream; to compute something again, from the site at which it began."""
    if site is not None:
        again = Stream(stream.seed, stream.first_row, stream.row_stride)
        again.site = site
        stream = again
    token = _current.set(stream)
    try:
        yield stream
    finally:
        _current.reset(token)


@contextmanager
def packed_at(rows: Int64[Tensor, " packed"], positions: Int64[Tensor, " packed"]) -> Iterator[None]:
    """Inside, all axes but the last are those of packed tokens: each draws what it would draw in its padded batch.

    Args:
        rows: the row at hand of each.
        positions: its position there.
    """
    token = _places.set((rows << 32) + positions)
    try:
        yield
    finally:
        _places.reset(token)


def current_stream() -> Stream | None:
    """The stream of the innermost `step`."""
    return _current.get()


def next_key() -> Key:
    """The key of the next site: of the current `step`, or else drawn from PyTorch's generator of the CPU."""
    stream = _current.get()
    if stream is not None:
        key = stream.key()
    else:
        key = Key(*_split(_mix_long(int(torch.empty((), dtype=torch.int64).random_().item()), 0)))
    return key._replace(places=_places.get())


def words(
    key: Key, rows: int, positions: int, count: int, device: torch.device | str = "cpu"
) -> Int32[Tensor, "{rows} {positions} {count}"]:
    """The random words of the docstring above, by PyTorch's integer operations (which wrap around)."""
    if key.places is None:
        number = torch.arange(rows, dtype=torch.int64, device=device)[:, None]
        position = torch.arange(positions, dtype=torch.int32, device=device)
    else:
        place = key.places.to(device).view(rows, positions)
        number, position = place >> 32, _signed(place)
    base = _mix(_signed(number * key.row_stride + (key.first_row + key.low))) ^ position
    column = torch.arange(count, dtype=torch.int64, device=device) + key.high
    return _mix(_mix(base)[:, :, None] + _mix(_signed(column)))


def random_bytes(key: Key, shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """One byte an element for a tensor of this shape: first axis = rows, last = features, those between = positions."""
    rows, positions, features = layout(shape)
    drawn = words(key, rows, positions, (features + 3) // 4, device).view(torch.uint8)
    return drawn[..., :features].reshape(shape)


def keep_mask(key: Key, shape: torch.Size, level: int, device: torch.device | str = "cpu") -> Bool[Tensor, ...]:
    """True with probability 1 - level / 256, independently everywhere."""
    return random_bytes(key, shape, device) >= level


def layout(shape: torch.Size | tuple[int, ...]) -> tuple[int, int, int]:
    """Rows, positions and features of a shape of any number of axes."""
    if len(shape) < 2:
        return 1, 1, math.prod(shape)
    return shape[0], math.prod(shape[1:-1]), shape[-1]


def _signed(x: Tensor) -> Tensor:
    """The lowest 32 bits of int64 numbers, as int32."""
    return (((x + _WORD // 2) % _WORD) - _WORD // 2).to(torch.int32)


def _mix(x: Tensor) -> Tensor:
    """Of a tensor that is the caller's no longer: it is overwritten. A shift of int32 drags the sign along: masked."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= _FIRST
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _SECOND - _WORD
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def _mix_long(seed: int, site: int) -> int:
    """64 bits of a seed and a site: SplitMix64 (Steele, Lea & Flood 2014)."""
    x = (seed + (site + 1) * _GOLDEN) % _LONG
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % _LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % _LONG
    return x ^ (x >> 31)


def _split(x: int) -> tuple[int, int]:
    return x % _WORD, x >> 32


class DropoutSite(NamedTuple):
    """One dropout in one step: which bits it draws, and what they decide."""

    key: Key
    level: int
    """An element is kept if its byte is at least this; 0 keeps everything."""

    @property
    def scale(self) -> float:
        """What the survivors are multiplied by."""
        return LEVELS / (LEVELS - self.level)

    def arguments(self, shape: torch.Size, threads: int | None = None) -> tuple[int | float | None, ...]:
        """The last arguments of every compiled kernel, for a tensor of this shape; valid as long as this lives.

        Raises:
            ShapeError: rows are packed, and others than these.
        """
        rows, positions, _ = layout(shape)
        key = self.key
        if key.places is not None and len(key.places) != rows * positions:
            raise ShapeError(f"{len(key.places)} packed tokens are known, got a tensor {list(shape)}")
        return (
            *(key.low, key.high, key.first_row, key.row_stride, max(1, positions), pointer(key.places)),
            *(self.level, self.scale, torch.get_num_threads() if threads is None else threads),
        )

    def apply(self, x: Tensor) -> Tensor:
        """The plain form; differentiable as often as one likes."""
        if self.level == 0:
            return x
        work = torch.promote_types(x.dtype, torch.float32)  # bfloat16 would round the scale by 0.4%
        return (x * keep_mask(self.key, x.shape, self.level, x.device).to(work).mul_(self.scale)).to(x.dtype)


NO_DROPOUT = DropoutSite(Key(0, 0), 0)
"""Drops nothing."""


def site(x: Tensor, p: float) -> DropoutSite | None:
    """The next site; None where PyTorch's own dropout is taken."""
    if p == 0.0:
        return NO_DROPOUT
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    return DropoutSite(next_key(), min(max(round(LEVELS * p), 1), LEVELS - 1))


class _Dropout(torch.autograd.Function):
    """Its own derivative: the same mask on the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: DropoutSite) -> Tensor:
        ctx.where = where
        library = library_for()
        assert library is not None
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, positions, width = layout(x.shape)
        kind = TYPES[x.dtype]
        library.dropout(pointer(x), kind, pointer(y), kind, rows * positions, width, *where.arguments(x.shape))
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _dropout_at(gradients[0], ctx.where), None


def _dropout_at(x: Tensor, where: DropoutSite) -> Tensor:
    if library_for(x) is None:
        return where.apply(x)
    result: Tensor = _Dropout.apply(x, where)  # type: ignore[no-untyped-call]
    return result


def dropout(x: Float[Tensor, "*axes"], p: float) -> Float[Tensor, "*axes"]:
    """Dropout with probability ``p`` from 0 to 1 (rounded to 1/256 on a CPU); 0 returns ``x`` itself.

    The first axis is the row of the batch and the last the feature: see `kernels.random`.
    """
    if p == 0.0:
        return x
    where = site(x, p)
    return F.dropout(x, p) if where is None else _dropout_at(x, where)


class Dropout(nn.Module):
    """`dropout` in training, nothing in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def probability(self) -> float:
        """What is dropped now: 0 in evaluation."""
        return self.p if self.training else 0.0

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Any shape in, the same shape out."""
        return dropout(x, self.probability)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"p={self.p}"
