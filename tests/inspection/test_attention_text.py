"""Attention as text: every weight stands below its column."""

from __future__ import annotations

import pytest
import torch

from multihead.attention.drawing import display_width
from multihead.errors import ShapeError
from multihead.inspection.plots import attention_text

ROWS = ["▁A", "狗", "</s>"]
COLUMNS = ["▁Ein", "▁小狗", ".", "</s>"]
WEIGHTS = torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.004, 0.006, 0.49, 0.5], [0.0, 0.0, 0.0, 1.0]])


def test_a_table_of_percentages() -> None:
    assert attention_text(WEIGHTS, ROWS, COLUMNS).splitlines() == [
        "      ▁Ein ▁小狗   . </s>",
        "▁A      90    10   ·    ·",
        "狗       ·     1  49   50",
        "</s>     ·     ·   ·  100",
    ]


@pytest.mark.parametrize("width", [1, 12, 17, 25, 80])
def test_what_is_too_wide_goes_on_below(width: int) -> None:
    tables = [table.splitlines() for table in attention_text(WEIGHTS, ROWS, COLUMNS, width).split("\n\n")]
    assert [label for table in tables for label in table[0].split()] == COLUMNS
    for number in range(3):
        cells = [cell for table in tables for cell in table[number + 1].split()[1:]]
        assert cells == attention_text(WEIGHTS, ROWS, COLUMNS, 99).splitlines()[number + 1].split()[1:]
        assert all(table[number + 1].split()[0] == ROWS[number] for table in tables)
    for table in tables:
        assert max(map(display_width, table)) <= width or len(table[0].split()) == 1


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"\[3, 4\], but 3 labels of rows and 3 of columns"):
        attention_text(WEIGHTS, ROWS, COLUMNS[:3])
