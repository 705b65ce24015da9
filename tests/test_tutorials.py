"""The tutorials run, print what they show, and draw their pictures.

A tutorial is a page of docs/tutorials whose Python blocks are one program. `tools/run_tutorials.py` runs the pages as
notebooks, and writes what they print and draw into them.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md") if "." not in path.stem and path.stem != "index")


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def program(name: str) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the output that is shown below it."""
    blocks = re.findall(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text_of(name), re.DOTALL | re.MULTILINE)
    return [(code, printed or None) for code, printed in blocks]


def pictures(text: str) -> list[str]:
    """The pictures that code writes."""
    return re.findall(r'"images/([\w-]+\.png)"', text)


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Path]:
    """A folder of its own, one thread, one seed, and no figures left open."""
    import matplotlib.pyplot as plt

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with contextlib.chdir(tmp_path):
        yield tmp_path
    torch.set_num_threads(threads)
    plt.close("all")


def run(name: str) -> list[str]:
    """What each block prints."""
    outputs, namespace = [], {"__name__": name}
    for number, (block, _) in enumerate(program(name), 1):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, f"docs/tutorials/{name}.md, block {number}", "exec"), namespace)
        outputs.append(output.getvalue())
    return outputs


def check_pictures(name: str, folder: Path) -> None:
    """What the code draws is what the page shows."""
    drawn = pictures(text_of(name))
    assert drawn
    assert [path for path in drawn if (folder / "images" / path).stat().st_size < 1000] == []
    assert sorted(re.findall(r"\]\(images/([\w-]+\.png)\)", text_of(name))) == sorted(drawn)
    assert [path for path in drawn if not (FOLDER / "images" / path).is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_prints_what_it_shows(name: str, apart: Path) -> None:
    for (code, printed), output in zip(program(name), run(name), strict=True):
        assert output == (printed or ""), code
    check_pictures(name, apart)


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_in_steps(name: str) -> None:
    """Short steps with headings, at least one equation, and blocks that fit on a screen."""
    text = text_of(name)
    assert len(re.findall(r"^## \d+\. ", text, re.MULTILINE)) >= 5
    assert text.count("\n$$\n") >= 4  # two equations
    assert max(code.count("\n") for code, _ in program(name)) <= 50
