"""Tutorials as notebooks: a page of docs/tutorials becomes the cells of one.

jupytext divides a page into cells. A text block below a code block is the output of that code, so it moves from the
text to the cell's outputs. Links become absolute, since a notebook is read outside the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"

SHOWN = re.compile(r"\A\s*```text\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
"""The output of a block, at the beginning of the text below it."""
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")
LANGUAGES = re.compile(r"^(English \| \[中文\]\([^)]*\)|\[English\]\([^)]*\) \| 中文)\n+", re.MULTILINE)


def notebook_of(page: Path, repository: str) -> Any:
    """The notebook of a page, with the outputs that the page shows.

    Args:
        page: a Markdown file of `FOLDER`.
        repository: address of the repository, for links.
    """
    made = jupytext.reads(LANGUAGES.sub("", page.read_text(encoding="utf-8"), count=1), fmt="md")
    cells: list[Any] = []
    for cell in made.cells:
        if cell.cell_type == "markdown":
            if shown := SHOWN.match(cell.source):
                cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text=shown[1])]
                cell.source = cell.source[shown.end() :].strip()
            cell.source = LINK.sub(lambda found: _absolute(found[0], page, repository), cell.source)
        if cell.source:
            cells.append(cell)
    made.cells = cells
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(cells):  # fixed ids, so that equal pages give equal notebooks
        cell["id"] = f"cell-{number}"
    return made


def _absolute(link: str, page: Path, repository: str) -> str:
    """The absolute address of a relative link: the raw file of a picture, the rendered page of any other file."""
    path = posixpath.normpath(posixpath.join(page.parent.relative_to(ROOT).as_posix(), link))
    return f"{repository}/{'raw' if path.endswith('.png') else 'blob'}/main/{path}"
