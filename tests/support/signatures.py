"""Calls are compared with their signatures, at half of the cost of jaxtyping's own decorator.

`jaxtyping.jaxtyped` binds every call to a signature, compares the arguments, calls, and compares arguments and result
again. Nearly all calls need less: beartype compares arguments and result around one call, and the sizes of named
dimensions are kept during the call where an annotation names some. The import hook of jaxtyping, in `pyproject.toml`,
decorates every function of the package; `install` gives it `checked` instead. `tests/test_signatures.py` compares both.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, config

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


def install() -> None:
    """Decorate with `checked` whatever is imported from now on."""
    jaxtyping.jaxtyped = checked
