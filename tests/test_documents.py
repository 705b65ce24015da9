"""What the documents say is so: their code runs, their commands parse, their trees are real, their names exist.

The code blocks of README.md are run as they stand, in a folder with a small corpus. The run folder that they leave
behind is then what the drawings of a run folder are compared with.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import shlex
import subprocess
import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click
import pytest
import torch

from multihead.cli.main import multihead as command
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.workflows.settings import TrainSettings

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"
GUIDES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
DOCUMENTS = (*GUIDES, "CHANGELOG.md", "docs/lab-notes.md")

FILE_ENDING = r"\.(py|md|toml|txt|jsonl?|tsv|png|safetensors)$"


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    text: str


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", read(name), re.DOTALL | re.MULTILINE)]


def inline(name: str) -> list[str]:
    """What stands between backticks outside of fenced blocks; each once."""
    prose = re.sub(r"^```.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE)
    return sorted({" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose)})


def tree(name: str, root: str) -> set[str]:
    """The paths of a drawn tree, folders with a slash at the end."""
    (text,) = [block.text for block in blocks(name) if block.text.startswith(root)]
    paths: set[str] = set()
    folders: list[str] = []
    for line in text.splitlines():
        indent, entry = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        folders[len(indent) // 2 :] = [entry]
        paths.add("".join(folders))
    return paths


# --------------------------------------------------------------------------- the code of the README


class Ran(NamedTuple):
    """The README's Python after it ran."""

    folder: Path
    printed: list[str]  # by each block


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
    """Runs every Python block of the README, in order, with one thread."""
    folder, threads, printed = tmp_path_factory.mktemp("readme"), torch.get_num_threads(), []
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch.set_num_threads(1)
        for number, block in enumerate(b for b in blocks("README.md") if b.language == "python"):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, f"README.md, block {number + 1}", "exec"), {"__name__": "readme"})
            printed.append(output.getvalue())
    torch.set_num_threads(threads)
    return Ran(folder, printed)


def test_the_code_prints_what_stands_below_it(ran: Ran) -> None:
    shown = blocks("README.md")
    python = [place for place, block in enumerate(shown) if block.language == "python"]
    followed = [(n, shown[place + 1].text) for n, place in enumerate(python) if shown[place + 1].language == "text"]
    assert followed
    for number, expected in followed:
        assert ran.printed[number] == expected


def test_the_code_leaves_what_it_says(ran: Ran) -> None:
    assert (ran.folder / "attention.png").stat().st_size > 1000
    assert "nrefs:1" in ran.printed[0]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_a_run_folder_is_as_drawn(ran: Ran, name: str) -> None:
    drawn = tree(name, "run/")
    real = {re.sub(r"/\d{8}/", "/<update>/", path) for path in everything_in(ran.folder, "run")}
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
    """The lines of console blocks, and the commands in backticks."""
    lines = [line for b in blocks(name) if b.language == "console" for line in b.text.splitlines()]
    return lines + [text for text in inline(name) if text.split()[0] in ("make", "multihead")]


def check_command(line: str) -> None:
    words = shlex.split(line.split(" < ")[0].split(" > ")[0], comments=True)
    if words[0] == "make":
        makefile = read("Makefile")
        for word in words[1:]:
            pattern = rf"^{word.split('=')[0]} \?=" if "=" in word else rf"^{word}:"
            assert re.search(pattern, makefile, re.MULTILINE), f"Makefile: no {word}"
        return
    assert words[0] == "multihead", f"neither make nor multihead: {line}"
    if len(words) > 1 and not words[1].startswith("-"):
        group, arguments = command.commands[words[1]], words[2:]
    else:
        group, arguments = command, words[1:]
    if not arguments:  # it is only named
        return
    with contextlib.suppress(click.exceptions.Exit), contextlib.redirect_stdout(io.StringIO()):  # --help
        context = group.make_context(words[0], arguments)
        if group.name == "train":
            given = {key: value for key, value in context.params.items() if value is not None and key != "config"}
            build(TrainSettings, given, line)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in GUIDES for line in commands(name)])
def test_commands_are_valid(name: str, line: str) -> None:
    check_command(line)


@pytest.mark.parametrize("line", ["multihead train --sorce a", "multihead train --budget soon", "make tests", "cd x"])
def test_an_invalid_command_is_seen(line: str) -> None:
    with pytest.raises((click.UsageError, ConfigurationError, AssertionError)):
        check_command(line)


def test_the_readme_opens_with_the_two_commands() -> None:
    assert blocks("README.md")[0] == Block("console", "make demo\nmake test\n")


def test_the_toml_of_the_readme_is_valid() -> None:
    tables = [tomllib.loads(block.text) for block in blocks("README.md") if block.language == "toml"]
    assert tables
    for table in tables:
        build(TrainSettings, table, "README.md")


def test_contributing_explains_every_make_target() -> None:
    (targets,) = re.findall(r"^\.PHONY: (.+)$", read("Makefile"), re.MULTILINE)
    explained = re.findall(r"^\| `make (\w+)` \|", read("CONTRIBUTING.md"), re.MULTILINE)
    assert sorted(explained) == sorted(targets.split())


# --------------------------------------------------------------------------- trees, paths, names


def test_the_tree_is_the_real_one() -> None:
    real = everything_in(PACKAGE.parent, "multihead")
    assert tree("ARCHITECTURE.md", "src/multihead/") == {"src/multihead/"} | {f"src/{path}" for path in real}


def test_the_tree_of_the_readme_exists_and_is_complete() -> None:
    drawn = tree("README.md", "src/multihead/")
    assert [path for path in drawn if not (ROOT / path).exists()] == []
    modules = {path for path in children(everything_in(ROOT, "src"), "src/multihead/") if not path.endswith("/")}
    shown = {path for path in drawn if path.startswith("src/multihead/")} - {"src/multihead/"}
    folders = {f"src/multihead/{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    unmentioned = {"__init__.py", "__main__.py", "py.typed"}
    assert shown == folders | {path for path in modules if Path(path).name not in unmentioned}


def written_by_the_package() -> set[str]:
    return {text for _, node in nodes() if isinstance(node, ast.Constant) and isinstance(text := node.value, str)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_exists(ran: Ran, name: str) -> None:
    """In the repository, in the package or in a run's folder; or it is the name of a file that the package writes."""
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", read(name)) if "://" not in link]
    here = (ROOT / name).parent
    assert [link for link in links if not (here / link).exists()] == []
    named = [text for text in inline(name) if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", text) or re.search(FILE_ENDING, text)]
    places = (ROOT, PACKAGE, ran.folder, ran.folder / "run" / "best")
    lost = [text for text in named if " " not in text and not any((place / text).exists() for place in places)]
    assert [text for text in lost if not text.startswith(".venv/") and text not in written_by_the_package()] == []


@cache
def modules() -> dict[str, ModuleType]:
    files = (path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    parts = (path.relative_to(PACKAGE.parent).with_suffix("").parts for path in files)
    names = (".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts)
    return {name: importlib.import_module(name) for name in names}


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]


@cache
def identifiers() -> set[str]:
    """Every name that the package defines or uses."""
    found = {path.stem for path, _ in nodes()}
    for _, node in nodes():
        for part in ("name", "id", "arg", "attr"):
            found.add(str(node.__dict__.get(part)))
    return found


def exists(name: str) -> bool:
    """Whether ``module.name``, ``package.module.name`` or ``Class.name`` names something."""
    parts = name.split(".")
    owners = [(importlib.import_module("torch"), parts[1:])] if parts[0] == "torch" else []
    for module_name, module in modules().items():
        if isinstance(found := vars(module).get(parts[0]), type):
            owners.append((found, parts[1:]))  # type: ignore[arg-type]
        for cut in range(1, len(parts)):
            if f".{module_name}".endswith("." + ".".join(parts[:cut])):
                owners.append((module, parts[cut:]))
    return any(_has(owner, rest) for owner, rest in owners)


def _has(owner: object, names: list[str]) -> bool:
    for name in names:
        if name in getattr(owner, "__annotations__", {}):  # a field
            return name == names[-1]
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def names_in(name: str) -> list[str]:
    plain = (text.split("(")[0] for text in inline(name))
    dotted = (text for text in plain if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text))
    return [text for text in dotted if not re.search(FILE_ENDING + r"|\.(de|en)$", text)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_dotted_name_exists(name: str) -> None:
    assert [text for text in names_in(name) if not exists(text)] == []


@pytest.mark.parametrize("name", GUIDES)
def test_every_plain_name_is_one_of_the_package(name: str) -> None:
    """Of those that can only be names: with an underscore or a capital inside."""
    words = [text for text in inline(name) if re.fullmatch(r"\w+", text) and re.search(r"\w_\w|[a-z][A-Z]", text)]
    assert [word for word in words if word not in identifiers()] == []


def test_a_name_that_does_not_exist_is_seen() -> None:
    assert len(names_in("ARCHITECTURE.md")) > 30
    assert exists("corpus.check_parallel")
    assert exists("Transformer.encode")
    assert exists("TrainSettings.budget")
    assert not exists("corpus.check_paralel")
    assert not exists("Transformer.encoded")
    assert not exists("nothing.at_all")


# --------------------------------------------------------------------------- what no file may say


def test_no_file_names_a_machine_or_puts_something_off() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: which files belong to the project is not known")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    # Written so that this file does not match itself.
    unwanted = re.compile(r"/(?:work|root)/|/tmp/[A-Za-z]|\b(?:TO[D]O|FIX[M]E|NotImplemented[E]rror)\b")
    found = []
    for path in filter(Path.is_file, (ROOT / name for name in listed.split("\0") if name)):
        with contextlib.suppress(UnicodeDecodeError):  # a picture
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if unwanted.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
