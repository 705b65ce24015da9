"""The example program that a test module tests."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """``examples/NAME.py`` for the tests in ``test_NAME.py``, run on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield importlib.import_module(request.path.stem.removeprefix("test_"))
    finally:
        torch.set_num_threads(threads)
