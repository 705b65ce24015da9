"""A mark for asynchronous functions, for the checker of the test run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def no_type_check(function: F) -> F:
    """Leaves a function as it is.

    The test run checks what functions are given and return, and takes what an asynchronous one returns at once, the
    coroutine, for its result. Under this name a decorator tells it to pass one over; mypy, which knows `typing`'s of
    the same name alone, goes on checking it.
    """
    return function
