"""The compiled kernels for the tests that need them, and a way to do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from multihead.kernels import native as module

WithoutThem = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def compiled() -> WithoutThem:
    """Skips where they cannot be built; gives a context in which everything takes its plain form."""
    found = module.native()
    if found.library is None:
        pytest.skip(found.reason)

    @contextmanager
    def plainly() -> Iterator[None]:
        before = list(module._found)
        module._found[:] = [module.Native(None, "plain kernels: a test")]
        try:
            yield
        finally:
            module._found[:] = before

    return plainly
