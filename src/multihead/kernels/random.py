"""Counter-based random numbers; dropout without stored masks.

    word_j(row, position) = mix( mix( mix(low + row) xor position ) + mix(high + j) )          (all modulo 2^32)

(low, high) is the `Key` of a *site*: one dropout of one layer in one step. Feature f of that row and position uses byte
f mod 4 of word f div 4, lowest byte first. ``mix`` is a bijection of 32 bits, two rounds of multiply-xorshift
("lowbias32": constants by C. Wellons, 2018), after which flipping any input bit flips each output bit with a
probability within 0.2% of one half. No number depends on others drawn before, so a mask does not depend on how a batch
is split among processes and pieces, the backward pass can draw it again, and the compiled kernels draw the same bits as
the plain form here.

Inside `step`, keys follow from its seed and the number of sites so far; outside, each key is drawn from PyTorch's
generator.

    y = x * m / (1 - p),   m ~ Bernoulli(1 - p)           (dropout: Srivastava et al. 2014, section 4)

On a CPU, p is rounded to a multiple of 1/256, from 1/256 to 255/256 (0.1 becomes 26/256 = 0.1016), since a random byte
decides. The kept elements are scaled by the rounded value, so that the mean is exact. On other devices, and in models
compiled by torch.compile, dropout is PyTorch's. `kernels.pointwise` fuses dropout with neighboring operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn

from multihead.errors import ShapeError
from multihead.kernels.native import check, thread_count
from multihead.kernels.native.tensors import TYPES, library_for, pointer

LEVELS = 256
"""A probability is rounded to a multiple of 1 / LEVELS, because a byte decides."""

_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B  # multipliers of mix
_GOLDEN = 0x9E3779B97F4A7C15  # increment of SplitMix64: 2^64 / golden ratio
_WORD, _LONG = 2**32, 2**64


class Key(NamedTuple):
    """Selects the numbers that a site draws."""

    low: int
    """32 bits."""
    high: int
    """32 bits."""
    first_row: int = 0
    """Number of the first row of the tensor in the whole batch."""
    row_stride: int = 1
    """Distance in the whole batch between adjacent rows of the tensor."""
    places: Int64[Tensor, " packed"] | None = None
    """2^32 row + position of each token of a packed tensor (`packed_at`); None = not packed."""


class Stream:
    """The keys of one step, one after the other.

    Args:
        seed: seed of the step; any integer.
        first_row: number of the first row in the whole batch.
        row_stride: distance between adjacent rows in the whole batch.
    """

    def __init__(self, seed: int, first_row: int = 0, row_stride: int = 1) -> None:
        self.seed, self.first_row, self.row_stride = seed, first_row, row_stride
        self.site = 0
        """Number of keys drawn so far."""

    def key(self) -> Key:
        """The next key."""
        low, high = _split(_mix_long(self.seed % _LONG, self.site))
        self.site += 1
        return Key(low, high, self.first_row, self.row_stride)


_current: ContextVar[Stream | None] = ContextVar("stream of random keys", default=None)
_places: ContextVar[Tensor | None] = ContextVar("places of packed rows", default=None)


@contextmanager
def step(seed: int, *, first_row: int = 0, row_stride: int = 1) -> Iterator[Stream]:
    """Inside, random numbers are a function of seed, order of sites, row, position and feature.

    Args:
        seed: seed of this step.
        first_row: number of the first row in the whole batch, if this is a part of it.
        row_stride: distance between adjacent rows in the whole batch.
    """
    with resume(Stream(seed, first_row, row_stride)) as stream:
        yield stream


@contextmanager
def resume(stream: Stream, site: int | None = None) -> Iterator[Stream]:
    """Continue a stream; with ``site``, repeat it from that site on, to compute something again."""
    if site is not None:
        repeated = Stream(stream.seed, stream.first_row, stream.row_stride)
        repeated.site = site
        stream = repeated
    token = _current.set(stream)
    try:
        yield stream
    finally:
        _current.reset(token)


class Replay:
    """The random numbers of a computation again: inside, what is drawn is what follows the making of this object.

    Outside of `step`, PyTorch's generator has to be set back, too. May be entered any number of times.
    """

    def __init__(self) -> None:
        stream = _current.get()
        self._stream, self._site = stream, 0 if stream is None else stream.site
        self._places = _places.get()
        self._tokens: list[tuple[Token[Stream | None], Token[Tensor | None]]] = []

    def __enter__(self) -> None:
        again = None
        if self._stream is not None:
            again = Stream(self._stream.seed, self._stream.first_row, self._stream.row_stride)
            again.site = self._site
        self._tokens.append((_current.set(again), _places.set(self._places)))

    def __exit__(self, *_: object) -> None:
        stream, places = self._tokens.pop()
        _current.reset(stream)
        _places.reset(places)


@contextmanager
def packed_at(rows: Int64[Tensor, " packed"], positions: Int64[Tensor, " packed"]) -> Iterator[None]:
    """Inside, tensors are packed: each token draws what it would draw in the padded batch.

    All axes of a tensor but the last one together have one entry per token.

    Args:
        rows: row of each token in the padded batch.
        positions: position of each token in its row.

    Raises:
        ShapeError: they are not int64, or not one of each for every token.
    """
    if rows.dtype != torch.int64 or rows.dim() != 1 or rows.shape != positions.shape:
        raise ShapeError(
            f"expected a row and a position of each token as int64, got {rows.dtype} {list(rows.shape)} and "
            f"{positions.dtype} {list(positions.shape)}"
        )
    token = _places.set((rows << 32) + positions)
    try:
        yield
    finally:
        _places.reset(token)


def current_stream() -> Stream | None:
    """The stream of the innermost `step`."""
    return _current.get()


def next_key() -> Key:
    """The key of the next site: from the current `step`, or else from PyTorch's CPU generator."""
    stream = _current.get()
    if stream is not None:
        key = stream.key()
    else:
        key = Key(*_split(_mix_long(int(torch.empty((), dtype=torch.int64).random_().item()), 0)))
    return key._replace(places=_places.get())


def words(
    key: Key, rows: int, positions: int, count: int, device: torch.device | str = "cpu"
) -> Int32[Tensor, "{rows} {positions} {count}"]:
    """The random words of the module's docstring, with PyTorch's integer operations (which wrap around)."""
    if key.places is None:
        number = torch.arange(rows, dtype=torch.int64, device=device)[:, None]
        position = torch.arange(positions, dtype=torch.int32, device=device)
    else:
        place = key.places.to(device).view(rows, positions)
        number, position = place >> 32, _to_int32(place)
    base = _mix(_to_int32(number * key.row_stride + (key.first_row + key.low))) ^ position  # [rows, positions]
    column = torch.arange(count, dtype=torch.int64, device=device) + key.high
    return _mix(_mix(base)[:, :, None] + _mix(_to_int32(column)))


def random_bytes(key: Key, shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """One byte per element; the first axis is the row, the last the feature, those in between the position."""
    rows, positions, features = layout(shape)
    if not rows * positions * features:  # words of no elements have strides that forbid the view as bytes
        return torch.empty(shape, dtype=torch.uint8, device=device)
    drawn = words(key, rows, positions, (features + 3) // 4, device).view(torch.uint8)
    return drawn[..., :features].reshape(shape)


def keep_mask(key: Key, shape: torch.Size, level: int, device: torch.device | str = "cpu") -> Bool[Tensor, ...]:
    """True with probability 1 - level / 256, independently for each element."""
    return random_bytes(key, shape, device) >= level


def layout(shape: torch.Size | tuple[int, ...]) -> tuple[int, int, int]:
    """Rows, positions and features of a shape with any number of axes."""
    if len(shape) < 2:
        return 1, 1, math.prod(shape)
    return shape[0], math.prod(shape[1:-1]), shape[-1]


def _to_int32(x: Tensor) -> Tensor:
    """The lowest 32 bits of int64 numbers, as int32."""
    return (((x + _WORD // 2) % _WORD) - _WORD // 2).to(torch.int32)


def _mix(x: Tensor) -> Tensor:
    """mix, in place. The masks clear the copies of the sign bit that a shift of int32 inserts."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= _FIRST
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _SECOND - _WORD
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def _mix_long(seed: int, site: int) -> int:
    """64 bits for a seed and a site: SplitMix64 (Steele, Lea & Flood 2014)."""
    x = (seed + (site + 1) * _GOLDEN) % _LONG
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % _LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % _LONG
    return x ^ (x >> 31)


def _split(x: int) -> tuple[int, int]:
    """The low and the high 32 bits."""
    return x % _WORD, x >> 32


class DropoutSite(NamedTuple):
    """One dropout in one step: the bits that it draws, and its probability."""

    key: Key
    level: int
    """An element is kept if its byte is at least this; 0 keeps all."""

    @property
    def scale(self) -> float:
        """Factor of the kept elements."""
        return LEVELS / (LEVELS - self.level)

    def arguments(self, shape: torch.Size, threads: int | None = None) -> tuple[int | float | None, ...]:
        """The last arguments of every compiled kernel for a tensor of this shape.

        They include a pointer to ``key.places`` and are valid as long as this object is alive.

        Raises:
            ShapeError: rows are packed, and their number is not that of the tensor.
        """
        rows, positions, _ = layout(shape)
        key = self.key
        if key.places is not None and len(key.places) != rows * positions:
            raise ShapeError(f"{len(key.places)} packed tokens are known, got a tensor {list(shape)}")
        places = pointer(key.places, rows * positions, torch.int64)
        return (
            *(key.low, key.high, key.first_row % _WORD, key.row_stride % _WORD, max(1, positions), places),
            *(self.level, self.scale, thread_count() if threads is None else threads),
        )

    def apply(self, x: Tensor) -> Tensor:
        """Dropout with PyTorch's operations; differentiable any number of times."""
        if self.level == 0:
            return x
        work = torch.promote_types(x.dtype, torch.float32)  # bfloat16 would round the scale by 0.4%
        return (x * keep_mask(self.key, x.shape, self.level, x.device).to(work).mul_(self.scale)).to(x.dtype)


NO_DROPOUT = DropoutSite(Key(0, 0), 0)
"""Keeps all elements."""


def next_site(x: Tensor, p: float) -> DropoutSite | None:
    """The next site for dropout of ``x``; None if PyTorch's own dropout is to be used."""
    if p == 0.0:
        return NO_DROPOUT
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    return DropoutSite(next_key(), min(max(round(LEVELS * p), 1), LEVELS - 1))


class _Dropout(torch.autograd.Function):
    """Dropout by the compiled kernel. It is its own derivative: the same mask on the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: DropoutSite) -> Tensor:
        ctx.site = site
        library = library_for(x)
        assert library is not None
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, positions, width = layout(x.shape)
        kind, count = TYPES[x.dtype], x.numel()
        (at, to), arguments = (pointer(z, count, x.dtype) for z in (x, y)), site.arguments(x.shape)
        check(library.dropout(at, kind, to, kind, rows * positions, width, *arguments))
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _dropout_at(gradients[0], ctx.site), None


def _dropout_at(x: Tensor, site: DropoutSite) -> Tensor:
    if library_for(x) is None:
        return site.apply(x)
    result: Tensor = _Dropout.apply(x, site)  # type: ignore[no-untyped-call]
    return result


def dropout(x: Float[Tensor, "*axes"], p: float) -> Float[Tensor, "*axes"]:
    """Dropout with probability ``p`` from 0 to 1 (rounded to 1/256 on a CPU); with 0 the result is ``x`` itself.

    The first axis is the row of the batch and the last one the feature.
    """
    if p == 0.0:
        return x
    site = next_site(x, p)
    return F.dropout(x, p) if site is None else _dropout_at(x, site)


class Dropout(nn.Module):
    """`dropout` in training; the identity in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def probability(self) -> float:
        """The current probability: 0 in evaluation."""
        return self.p if self.training else 0.0

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        return dropout(x, self.probability)

    def extra_repr(self) -> str:
        return f"p={self.p}"
