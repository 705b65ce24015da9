"""The code of the pages in docs/ runs and prints what is shown, and their commands parse.

Each page is one program, run in its own folder with one thread and one seed. Chinese pages have the same blocks
(`test_chinese_pages`) and are not run again. `getting-started.md` needs a corpus: `test_documents` runs it.
`test_from_the_documents` checks the statements of `from-the-documents.md`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import torch

import tasks  # noqa: F401  # of examples/: a page would import it from its temporary folder, which is removed
from multihead.cli.main import multihead as command
from multihead.configuration import build
from multihead.planning.settings import PrepareSettings, TrainSettings

ROOT = Path(__file__).resolve().parent.parent

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    """A Python block, its line, and its expected output (None if the page shows none)."""

    line: int
    code: str
    printed: str | None


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def english() -> list[str]:
    """The pages of docs/ whose code and commands are not checked elsewhere."""
    names = (path.name for path in (ROOT / "docs").glob("*.md"))
    return sorted(name for name in names if not name.endswith(".zh-CN.md") and name != "getting-started.md")


def tutorials() -> list[str]:
    """The tutorials, whose code is checked in `test_tutorials`."""
    names = (path.name for path in (ROOT / "docs" / "tutorials").glob("*.md"))
    return sorted(f"tutorials/{name}" for name in names if not name.endswith(".zh-CN.md"))


def pages() -> list[str]:
    return [name for name in english() if "```python" in text_of(name)]


def snippets(page: str) -> list[Snippet]:
    text = text_of(page)
    found = list(FENCE.finditer(text))
    following = [*found[1:], None]
    result = []
    for block, after in zip(found, following, strict=True):
        if block[1] != "python":
            continue
        printed = after[2] if after is not None and after[1] == "text" else None
        result.append(Snippet(text[: block.start()].count("\n") + 2, block[2], printed))
    return result


@cache
def run(page: str, folder: Path) -> tuple[str, ...]:
    """The output of each block."""
    threads, outputs, namespace = torch.get_num_threads(), [], {"__name__": "page"}
    search_path = sys.path.copy()
    (folder / "examples").symlink_to(ROOT / "examples")  # pages assume the root of a clone
    try:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        with contextlib.chdir(folder):
            for snippet in snippets(page):
                # Leading empty lines make tracebacks show line numbers of the page.
                code = compile("\n" * (snippet.line - 1) + snippet.code, f"docs/{page}", "exec")
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(code, namespace)
                outputs.append(output.getvalue())
    finally:
        torch.set_num_threads(threads)
        sys.path[:] = search_path
    return tuple(outputs)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", pages())
def test_the_code_of_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    for snippet, output in zip(snippets(page), run(page, tmp_path), strict=True):
        if snippet.printed is not None:
            assert output == snippet.printed, f"docs/{page}, line {snippet.line}"
        else:
            assert output == "", f"docs/{page}, line {snippet.line}: prints what the page does not show"


def test_the_loop_of_ones_own_is_a_page_of_sixty_lines() -> None:
    assert len(text_of("own-loop.md").splitlines()) <= 60


# --------------------------------------------------------------------------- commands


def commands(page: str) -> list[tuple[str, bool]]:
    """Each command, and whether it is complete: lines of console blocks are, commands in sentences need not be."""
    text = text_of(page)
    blocks = [line for block in FENCE.findall(text) if block[0] == "console" for line in block[1].splitlines()]
    prose = re.sub(FENCE, "", text)
    inline = [" ".join(found.split()) for found in re.findall(r"`(multihead [^`]+)`", prose)]
    return [(line, True) for line in blocks] + [(line, False) for line in inline]


HELP = ["-h", "--help"]
"""The help options of the command; click caches those that a command is first parsed with."""


def check_command(line: str, whole: bool) -> None:
    words = shlex.split(re.split(" [<>] ", line)[0])
    assert words.pop(0) == "multihead", line
    group: click.Command = command
    names: list[str] = []
    while words and isinstance(group, click.Group):
        names.append(words.pop(0))
        group = group.commands[names[-1]]
    if not words and not whole:
        return
    try:
        context = group.make_context("multihead", words, help_option_names=HELP)
    except click.exceptions.Exit:  # --help
        return
    except (click.MissingParameter, click.BadOptionUsage):  # of an incomplete command
        if whole:
            raise
        return
    if names in (["train"], ["prepare"]):
        no_settings = ("config", "best", "engine")
        given = {key: value for key, value in context.params.items() if value is not None and key not in no_settings}
        build(TrainSettings if names == ["train"] else PrepareSettings, given, line)


@pytest.mark.parametrize("page", [*english(), *tutorials()])
def test_the_commands_of_a_page_parse(page: str) -> None:
    for line, whole in commands(page):
        check_command(line, whole)


@pytest.mark.parametrize("line", ["multihead bpe lern a", "multihead bpe learn a", "multihead train --sorce a", "cd x"])
def test_a_command_that_does_not_is_seen(line: str) -> None:
    with pytest.raises((KeyError, AssertionError, click.UsageError)):
        check_command(line, True)
