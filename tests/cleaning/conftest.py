"""A corpus with faults on known lines, and a test set that leaks into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_pairs import TEST, faulty, sentences, write_sides


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, Path]:
    """The files of `faulty`, and a test set beside them."""
    write_sides(tmp_path, [TEST, *sentences(3, 9)], "test")
    return write_sides(tmp_path, faulty()[0])


@pytest.fixture
def held_out(text: tuple[Path, Path]) -> list[str]:
    """The test set, as an argument."""
    folder = text[0].parent
    return [f"{folder / 'test.de'} {folder / 'test.en'}"]
