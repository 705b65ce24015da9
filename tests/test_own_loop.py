"""docs/own-loop.md: the page is short, and its program learns.

`test_pages` checks the output of the program.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parent.parent / "docs" / "own-loop.md"


def test_the_page_is_short_and_uses_no_trainer() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    imported = re.findall(r"^from (multihead\S+) import", text, re.MULTILINE)
    assert imported
    assert not [name for name in imported if name.startswith(("multihead.training", "multihead.workflows"))]


@pytest.mark.usefixtures("unchecked")
def test_it_learns_from_another_seed_too() -> None:
    """The seed is the only source of randomness of the page."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    threads, names = torch.get_num_threads(), {}
    try:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, "docs/own-loop.md", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    losses = names["losses"]
    assert losses[-1] < losses[0] / 10
    assert [names["source"], names["target"]] not in names["known"]
    assert names["tokenizer"].decode(names["best"].tokens) == names["target"]
    assert output.getvalue().startswith("True ")
