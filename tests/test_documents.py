"""The guides are correct: their code runs, their commands parse, and their trees match the real ones.

The code blocks of README.md and docs/getting-started.md are run as one program, in a folder with a small corpus.
Drawings of a run folder are compared with the run folder that they leave. Links, paths and names are checked in
`test_names`, code and commands of the other pages in docs/ in `test_pages`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import torch

from multihead.cli.main import multihead as command
from multihead.cli.options import check_search
from multihead.configuration import Settings, build, read_toml
from multihead.errors import ConfigurationError
from multihead.planning.settings import PrepareSettings, TrainSettings
from multihead.runs.pointer.settings import PointerSettings

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"
RUN = ("README.md", "docs/getting-started.md")
"""Documents whose Python is run here."""
GUIDES = (*RUN, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md", "docs/tour.md")

SETTINGS: dict[str, type[Settings]] = {
    "train": TrainSettings,
    "prepare": PrepareSettings,
    "pointer train": PointerSettings,
}
SEARCH = ("beam", "alpha", "min_length", "max_length")


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    text: str


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", read(name), re.DOTALL | re.MULTILINE)]


def inline(name: str) -> list[str]:
    """The texts between backticks outside of fenced blocks, without duplicates."""
    prose = re.sub(r"^```.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE)
    return sorted({" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose)})


def tree(name: str, root: str) -> set[str]:
    """The paths of a drawn tree; folders end with a slash."""
    (text,) = [block.text for block in blocks(name) if block.text.startswith(root)]
    paths: set[str] = set()
    folders: list[str] = []
    for line in text.splitlines():
        indent, entry = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        folders[len(indent) // 2 :] = [entry]
        paths.add("".join(folders))
    return paths


# --------------------------------------------------------------------------- the code of the guides


class Ran(NamedTuple):
    """The result of running the guides' Python."""

    folder: Path
    printed: dict[str, list[str]]  # output of each block of each document


def write_corpus(folder: Path) -> None:
    who = (("Ein Hund", "A dog"), ("Eine Katze", "A cat"), ("Ein Mann", "A man"), ("Eine Frau", "A woman"))
    does = (("rennt", "runs"), ("schläft", "sleeps"), ("spielt", "plays"), ("wartet", "waits"))
    where = ((".", "."), (" im Park.", " in the park."), (" am Strand.", " on the beach."))
    for side, language in enumerate(("de", "en")):
        lines = [f"{a[side]} {b[side]}{c[side]}\n" for a, b, c in product(who, does, where)]
        (folder / f"train.{language}").write_text("".join(lines), encoding="utf-8")
        (folder / f"test.{language}").write_text("".join(lines[::7]), encoding="utf-8")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run all Python blocks of the guides, in order, on one thread."""
    folder, threads = tmp_path_factory.mktemp("readme"), torch.get_num_threads()
    printed: dict[str, list[str]] = {name: [] for name in RUN}
    namespace = {"__name__": "readme"}
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch.set_num_threads(1)
        program = [(name, block) for name in RUN for block in blocks(name) if block.language == "python"]
        for name, block in program:
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, f"{name}, block {len(printed[name]) + 1}", "exec"), namespace)
            printed[name].append(output.getvalue())
    torch.set_num_threads(threads)
    return Ran(folder, printed)


def test_the_code_prints_what_stands_below_it(ran: Ran) -> None:
    shown = blocks("README.md")
    python = [place for place, block in enumerate(shown) if block.language == "python"]
    followed = [(n, shown[place + 1].text) for n, place in enumerate(python) if shown[place + 1].language == "text"]
    assert followed
    for number, expected in followed:
        assert ran.printed["README.md"][number] == expected


def test_the_code_leaves_what_it_says(ran: Ran) -> None:
    assert (ran.folder / "attention.png").stat().st_size > 1000
    assert "nrefs:1" in ran.printed["docs/getting-started.md"][0]


@pytest.mark.parametrize("name", ["docs/getting-started.md", "ARCHITECTURE.md"])
def test_a_run_folder_is_as_drawn(ran: Ran, name: str) -> None:
    drawn = tree(name, "run/")
    found = {re.sub(r"^trial/", "run/", path) for path in everything_in(ran.folder, "trial")}
    real = {re.sub(r"/\d{8}/", "/<update>/", path) for path in found}
    for folder in {parent(path) for path in drawn} - {""}:
        assert children(drawn, folder) == children(real, folder)
    assert children(drawn, "run/")


def everything_in(root: Path, folder: str) -> set[str]:
    found = {path for path in (root / folder).rglob("*") if "__pycache__" not in path.parts}
    return {str(path.relative_to(root)) + "/" * path.is_dir() for path in found}


def parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] + "/" if "/" in path.rstrip("/") else ""


def children(paths: set[str], folder: str) -> set[str]:
    return {path for path in paths if parent(path) == folder}


# --------------------------------------------------------------------------- commands and settings


def commands(name: str) -> list[str]:
    """The lines of console blocks, and commands in backticks."""
    lines = [line for b in blocks(name) if b.language == "console" for line in b.text.splitlines()]
    return lines + [text for text in inline(name) if text.split()[0] in ("make", "multihead", ".venv/bin/python")]


HELP = ["-h", "--help"]
"""The help options of the command; click caches those that a command is first parsed with."""


def check_command(line: str) -> None:
    words = shlex.split(re.split(" [<>] ", line)[0], comments=True)
    ours = [word.split("::")[0] for word in words if word.split("/")[0] in ("benchmarks", "configs", "tests", "tools")]
    assert [path for path in ours if not (ROOT / path).exists()] == []
    if words[0] == "make":
        makefile = read("Makefile")
        for word in words[1:]:
            pattern = rf"^{word.split('=')[0]} \?=" if "=" in word else rf"^{word}:"
            assert re.search(pattern, makefile, re.MULTILINE), f"Makefile: no {word}"
        return
    if words[0] == ".venv/bin/python":
        return
    assert words.pop(0) == "multihead", f"neither make nor multihead: {line}"
    found: click.Command = command
    names: list[str] = []
    while words and isinstance(found, click.Group) and not words[0].startswith("-"):
        assert words[0] in found.commands, f"no command {words[0]}: {line}"
        names.append(words.pop(0))
        found = found.commands[names[-1]]
    if not words:  # the command is only named
        return
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            given = found.make_context(line, words, help_option_names=HELP).params
    except click.exceptions.Exit:  # --help
        return
    except (click.MissingParameter, click.BadOptionUsage):  # a flag is named, the command is not complete
        assert line not in whole_commands()
        return
    if cls := SETTINGS.get(" ".join(names)):
        wishes = {key: value for key, value in given.items() if value is not None and key in cls.model_fields}
        shipped = ROOT / (given["config"] or "none")
        build(cls, {**(read_toml(shipped) if shipped.is_file() else {}), **wishes}, line)
    check_search(*(given.get(name) for name in SEARCH))


@cache
def whole_commands() -> set[str]:
    """The lines of console blocks; texts in backticks may be parts of commands."""
    shown = (block for name in GUIDES for block in blocks(name) if block.language == "console")
    return {line for block in shown for line in block.text.splitlines()}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in GUIDES for line in commands(name)])
def test_commands_are_valid(name: str, line: str) -> None:
    check_command(line)


@pytest.mark.parametrize(
    "line",
    [
        "multihead train --sorce a",
        "multihead train --budget soon",
        "multihead prepare --updates 3",
        "multihead prepare --max-tokens 0",
        "multihead translate run --beam 0",
        "multihead bpe lern",
        "multihead train --config configs/none.toml",
        "multihead train --config configs/low-resource.toml --no-shared-vocabulary",
        ".venv/bin/python benchmarks/none.py",
        "make tests",
        "cd x",
    ],
)
def test_an_invalid_command_is_seen(line: str) -> None:
    with pytest.raises((click.UsageError, ConfigurationError, AssertionError)):
        check_command(line)


@pytest.mark.parametrize("name", RUN)
def test_a_guide_opens_with_the_installation_and_two_commands(name: str) -> None:
    assert blocks(name)[:2] == [Block("sh", "pip install multihead\n"), Block("console", "make demo\nmake test\n")]


def test_the_readme_is_a_page() -> None:
    assert len(read("README.md").splitlines()) <= 150


def test_the_toml_of_the_guide_is_valid() -> None:
    guide = "docs/getting-started.md"
    tables = [tomllib.loads(block.text) for block in blocks(guide) if block.language == "toml"]
    assert tables
    for table in tables:
        build(TrainSettings, table, guide)


def test_contributing_explains_every_make_target() -> None:
    (targets,) = re.findall(r"^\.PHONY: (.+)$", read("Makefile"), re.MULTILINE)
    explained = re.findall(r"^\| `make ([\w-]+)` \|", read("CONTRIBUTING.md"), re.MULTILINE)
    assert sorted(explained) == sorted(targets.split())


# --------------------------------------------------------------------------- trees


def test_the_tree_is_the_real_one() -> None:
    check = [sys.executable, str(ROOT / "tools" / "draw_tree.py"), "--check"]
    assert subprocess.run(check, capture_output=True, text=True, check=False).stderr == ""
    real = {path for path in everything_in(PACKAGE.parent, "multihead") if not path.endswith("/__init__.py")}
    assert tree("ARCHITECTURE.md", "src/multihead/") == {"src/multihead/"} | {f"src/{path}" for path in real}


def test_the_tree_of_the_guide_exists_and_is_complete() -> None:
    drawn = tree("docs/getting-started.md", "src/multihead/")
    assert [path for path in drawn if not (ROOT / path).exists()] == []
    modules = {path for path in children(everything_in(ROOT, "src"), "src/multihead/") if not path.endswith("/")}
    shown = {path for path in drawn if path.startswith("src/multihead/")} - {"src/multihead/"}
    folders = {f"src/multihead/{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    unmentioned = {"__init__.py", "__main__.py", "py.typed"}
    assert shown == folders | {path for path in modules if Path(path).name not in unmentioned}
