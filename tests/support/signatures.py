"""Checks calls against their annotations, at half the cost of jaxtyping's own decorator.

`jaxtyping.jaxtyped` binds every call to a signature, checks the arguments, calls the function, and checks arguments and
result again. Nearly all calls need less: beartype checks arguments and result around one call, and named dimensions are
stored during the call only if an annotation has some. `fits` recognizes a tensor that fits its annotation without
jaxtyping, which decides all other cases. The import hook of jaxtyping, in `pyproject.toml`, decorates every function of
the package; `install` makes it use `checked`. `tests/test_signatures.py` compares both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, config
from jaxtyping._storage import _shape_storage, pop_shape_memo, push_shape_memo
from torch import Tensor

jaxtyped = jaxtyping.jaxtyped
"""The decorator of jaxtyping."""

_one_at_a_time = threading.RLock()
if hasattr(os, "register_at_fork"):  # fork only while no thread holds the lock
    release = _one_at_a_time.release
    os.register_at_fork(before=_one_at_a_time.acquire, after_in_parent=release, after_in_child=release)

REPEATED = frozenset({"multihead.training.step.train_step"})
"""Functions that tests call hundreds of times in a row with values of the same kinds (`_some_of`)."""
_ALWAYS, _EVERY = 4, 16
calls: Counter[str] = Counter()
"""How often each function of `REPEATED` was called. `conftest` clears it before each test."""

_disabled = 0
"""How many contexts of `disabled` are open."""

_compared = beartype(conf=BeartypeConf(violation_type=TypeCheckError))
"""A decorator that raises the same error as `jaxtyped`, a TypeError."""


class _Annotations:
    """An object with one annotation."""

    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"value": annotation}


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """The evaluated annotation; `Any` if it uses a name that is imported for type checkers only."""
    try:
        return get_type_hints(_Annotations(annotation), names, include_extras=True)["value"]
    except Exception:  # an expression may raise anything
        return Any


def _dimensions(hint: Any) -> Iterator[str]:
    """The dimensions of all arrays in an annotation, as written."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        yield hint.dim_str
    for part in hint if isinstance(hint, list) else get_args(hint):
        yield from _dimensions(part)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Disable all checks, those of other threads too, until the last of nested or concurrent contexts ends."""
    global _disabled
    with _one_at_a_time:
        _disabled += 1
        config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        with _one_at_a_time:
            _disabled -= 1
            config.update("jaxtyping_disable", _disabled > 0)


def _some_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """Check the first calls of a test, and every sixteenth after them, together with all calls that they make.

    The checks take half the time of an update of a small network.
    """
    name = call.__qualname__

    @functools.wraps(call)
    def call_some(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        if calls[name] <= _ALWAYS or calls[name] % _EVERY == 0:
            return call(*args, **kwargs)
        with disabled():
            return call(*args, **kwargs)

    return call_some


def _checked_function(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    written = function.__annotations__
    hints = {name: _evaluated(annotation, function.__globals__) for name, annotation in written.items()}
    dimensions = [text for hint in hints.values() for text in _dimensions(hint)]
    if inspect.isgeneratorfunction(function):  # beartype would check its arguments only at the first item
        return jaxtyped(function, typechecker=typechecker)
    compared: Callable[..., Any] | None = None

    def made() -> Callable[..., Any]:
        """The checking function, made at the first call, since most tests call few functions."""
        nonlocal compared
        with _one_at_a_time:
            function.__annotations__ = hints
            try:
                compared = _compared(function)
            finally:
                function.__annotations__ = written
        return compared

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if config.jaxtyping_disable else (compared or made())(*args, **kwargs)

    @functools.wraps(function)
    def call_with_sizes(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        push_shape_memo({})
        try:
            return (compared or made())(*args, **kwargs)
        finally:
            pop_shape_memo()

    if not any("{" in text for text in dimensions):
        return call_with_sizes if dimensions else call
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call_with_arguments(*args: Any, **kwargs: Any) -> Any:
        """Bind the arguments, which sizes such as "{heads}" need."""
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        push_shape_memo(bound.arguments)
        try:
            return (compared or made())(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call_with_arguments


def checked(thing: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """A replacement for `jaxtyped` that decorates functions, methods, properties and dataclasses."""
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
    if not inspect.isfunction(thing):
        return thing
    call = _checked_function(thing, typechecker)
    return _some_of(call) if f"{thing.__module__}.{thing.__qualname__}" in REPEATED else call


# --------------------------------------------------------------------------- tensors

_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)

compared_by_jaxtyping = type(AbstractArray).__instancecheck__
"""Whether a value fits the annotation of an array; stores the sizes of named dimensions for the rest of the call."""


@functools.cache
def _recognizer(hint: Any) -> Callable[[Tensor], bool] | None:
    """A function that returns True only for tensors that fit an annotation, and stores their sizes during the call.

    Its code is generated from the annotation: a line for each dimension. None if the annotation uses a feature that is
    left to jaxtyping.
    """
    words = hint.dim_str.split() if hint.array_type is Tensor else ["?"]
    others = [place for place, word in enumerate(words) if word == "..." or word[0] == "*"]
    begin = others[0] if others else len(words)
    tests, notes = [], ["known[0].update(found)"]
    for place, word in enumerate(words):
        size = f"sizes[{place if place < begin else place - len(words)}]"
        name = word.removeprefix("#")
        if word == "...":
            continue
        if place == begin and word[1:].isidentifier() and word[1] != "_":
            notes.insert(0, f"between = False, sizes[{begin} : len(sizes) - {len(words) - begin - 1}]")
            notes.insert(1, f"if known[1].setdefault({word[1:]!r}, between) != between: return False")
        elif word.isdecimal():
            tests.append(f"if {size} != {word}: return False")
        elif word[0] == "{" and word[1:-1].isidentifier():
            tests.append(f"if known[3].get({word[1:-1]!r}) != {size}: return False")
        elif name.isidentifier() and (name[0] != "_" or name == word):
            one = f"{size} != 1 and " if name != word else ""
            if name[0] != "_":
                tests.append(
                    f"if {one}single.get({name!r}, found.setdefault({name!r}, {size})) != {size}: return False"
                )
        else:
            return None
    of_any_shape = hint.dtype[Tensor, "..."]
    dtypes = frozenset(dtype for dtype in _DTYPES if compared_by_jaxtyping(of_any_shape, torch.empty(0, dtype=dtype)))
    lines = [
        "def recognized(tensor):",
        " if tensor.dtype not in dtypes: return False",
        " sizes, found = tensor.shape, {}",
        f" if len(sizes) {'<' if others else '!='} {len(words) - len(others)}: return False",
        " try: known = stack.memo_stack[-1]",
        " except (AttributeError, IndexError): known = {}, {}, {}, {}",
        " single = known[0]",
        *(f" {line}" for line in (*tests, *notes)),
        " return True",
    ]
    names: dict[str, Any] = {"dtypes": dtypes, "stack": _shape_storage}
    exec("\n".join(lines), names)
    recognized: Callable[[Tensor], bool] = names["recognized"]
    return recognized


def fits(hint: Any, value: Any) -> bool:
    """The result of `compared_by_jaxtyping`, with a fast path for tensors that fit and for None."""
    if value.__class__ in _TENSORS:
        recognized = _recognizer(hint)
        if recognized is not None and recognized(value):
            return True
    elif value is None and hint.array_type is Tensor and not hint._skip_instancecheck:
        return False
    return compared_by_jaxtyping(hint, value)


def install() -> None:
    """Decorate everything that is imported from now on with `checked`, and check tensors with `fits`."""
    jaxtyping.jaxtyped = checked
    type(AbstractArray).__instancecheck__ = fits
