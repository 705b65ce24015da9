"""Calls are compared with their signatures, at half of the cost of jaxtyping's own decorator.

`jaxtyping.jaxtyped` binds every call to a signature, compares the arguments, calls, and compares arguments and result
again. Nearly all calls need less: beartype compares arguments and result around one call, and the sizes of named
dimensions are kept during the call where an annotation names some. A tensor that fits its annotation is recognized
without jaxtyping (`fits`), which decides all other cases. The import hook of jaxtyping, in `pyproject.toml`, decorates
every function of the package; `install` gives it `checked` instead. `tests/test_signatures.py` compares both.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args, get_type_hints

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, config
from jaxtyping._storage import get_shape_memo
from torch import Tensor

jaxtyped = jaxtyping.jaxtyped
"""The decorator of jaxtyping."""

_compared = beartype(conf=BeartypeConf(violation_type=TypeCheckError))
"""A decorator that raises what `jaxtyped` raises, a TypeError."""


class _Annotations:
    """Something with one annotation."""

    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"value": annotation}


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """What an annotation means; `Any` where a name is imported for type checkers only."""
    try:
        return get_type_hints(_Annotations(annotation), names, include_extras=True)["value"]
    except Exception:  # whatever an expression may raise
        return Any


def _dimensions(hint: Any) -> Iterator[str]:
    """The dimensions of all arrays in an annotation, as written."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        yield hint.dim_str
    for part in hint if isinstance(hint, list) else get_args(hint):
        yield from _dimensions(part)


def _checked_function(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    written = function.__annotations__
    hints = {name: _evaluated(annotation, function.__globals__) for name, annotation in written.items()}
    dimensions = [text for hint in hints.values() for text in _dimensions(hint)]
    # Sizes such as "{heads}" need the bound arguments. A generator's arguments would be compared at its first item.
    if any("{" in text for text in dimensions) or inspect.isgeneratorfunction(function):
        return jaxtyped(function, typechecker=typechecker)
    function.__annotations__ = hints
    try:
        compared = _compared(function)
    finally:
        function.__annotations__ = written
    sizes = jaxtyped("context")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if config.jaxtyping_disable else compared(*args, **kwargs)

    @functools.wraps(function)
    def call_with_sizes(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        with sizes:
            return compared(*args, **kwargs)

    return call_with_sizes if dimensions else call


def checked(thing: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """What `jaxtyped` does for functions, methods, properties and dataclasses."""
    if thing is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing) and not hasattr(thing.__init__, "__wrapped__"):
            thing.__init__ = checked(thing.__init__, typechecker=typechecker)
        return thing
    if isinstance(thing, (classmethod, staticmethod)):
        return type(thing)(checked(thing.__func__, typechecker=typechecker))
    if isinstance(thing, property):
        parts = (thing.fget, thing.fset, thing.fdel)
        return property(*(part and checked(part, typechecker=typechecker) for part in parts))
    return _checked_function(thing, typechecker) if inspect.isfunction(thing) else thing


# --------------------------------------------------------------------------- tensors

_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)

compared_by_jaxtyping = type(AbstractArray).__instancecheck__
"""Whether a value fits the annotation of an array; what it says of the sizes is noted for the rest of the call."""

Sizes = tuple[str | int | tuple[str] | None, ...]
"""Of each dimension its size, its name, a name in a tuple (size 1 fits, too), or nothing."""


class _Described(NamedTuple):
    """An annotation of tensors; between the first and the last dimensions there may be any number of others."""

    dtypes: frozenset[torch.dtype]
    first: Sizes
    others: str | None
    last: Sizes


@functools.cache
def _described(hint: Any) -> _Described | None:
    """What an annotation says; None if it says something that is left to jaxtyping."""
    dimensions: list[str | int | tuple[str] | None] = []
    others = None
    for place, word in enumerate(hint.dim_str.split() if hint.array_type is Tensor else ["?"]):
        if word == "..." or (word[0] == "*" and word[1:].isidentifier() and word[1] != "_"):
            others, before = word, place
        elif word.isdecimal():
            dimensions.append(int(word))
        elif word.isidentifier():
            dimensions.append(None if word[0] == "_" else word)
        elif word[0] == "#" and word[1:].isidentifier() and word[1] != "_":
            dimensions.append((word[1:],))
        else:
            return None
    of_any_shape = hint.dtype[Tensor, "..."]
    dtypes = frozenset(dtype for dtype in _DTYPES if compared_by_jaxtyping(of_any_shape, torch.empty(0, dtype=dtype)))
    place = len(dimensions) if others is None else before
    return _Described(dtypes, tuple(dimensions[:place]), others, tuple(dimensions[place:]))


def _agree(dimensions: Sizes, sizes: torch.Size, known: dict[str, int], found: dict[str, int]) -> bool:
    """Whether sizes are those of the call so far; ``found`` are those of this tensor."""
    for dimension, size in zip(dimensions, sizes, strict=True):
        if dimension.__class__ is tuple:
            if size == 1:
                continue
            (dimension,) = dimension
        if dimension.__class__ is str:
            before = known.get(dimension)
            if size != (found.setdefault(dimension, size) if before is None else before):
                return False
        elif dimension is not None and dimension != size:
            return False
    return True


def fits(hint: Any, value: Any) -> bool:
    """What `compared_by_jaxtyping` says, sooner for a tensor that fits."""
    if value.__class__ in _TENSORS and (described := _described(hint)) and value.dtype in described.dtypes:
        _, first, others, last = described
        sizes, (known, several, *_), found = value.shape, get_shape_memo(), {}
        if others is None:
            if len(sizes) == len(first) and _agree(first, sizes, known, found):
                known.update(found)
                return True
        elif (end := len(sizes) - len(last)) >= (begin := len(first)):
            between = (False, sizes[begin:end])
            if (
                _agree(first, sizes[:begin], known, found)
                and _agree(last, sizes[end:], known, found)
                and (others == "..." or several.setdefault(others[1:], between) == between)
            ):
                known.update(found)
                return True
    return compared_by_jaxtyping(hint, value)


def install() -> None:
    """Decorate with `checked` whatever is imported from now on, and compare tensors by `fits`."""
    jaxtyping.jaxtyped = checked
    type(AbstractArray).__instancecheck__ = fits
