"""Links, paths and dotted names in the documents exist; and no file contains forbidden words."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from addresses import PAGES, local

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"
GUIDES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "configs/README.md",
    "docs/getting-started.md",
    "docs/tour.md",
)
DOCUMENTS = (*GUIDES, "docs/lab-notes.md", "docs/results.md")
"""Documents that name only paths and names of this project; other pages name those of other projects, too."""

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
FILE_ENDING = r"\.(py|md|toml|txt|yml|jsonl?|tsv|png|safetensors)$"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def inline(name: str) -> list[str]:
    """The texts between backticks outside of fenced blocks, without duplicates."""
    return sorted({" ".join(text.split()) for text in re.findall(r"`([^`]+)`", FENCED.sub("", read(name)))})


# --------------------------------------------------------------------------- links


def headings(path: Path) -> set[str]:
    """The anchors of a document."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links(name: str) -> list[tuple[Path, str]]:
    """The targets of a document's links into this project: files and headings."""
    found = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", read(name)))
    named = [(local(link), local(link) != link) for link in found]
    parts = [(*link.partition("#"), absolute) for link, absolute in named if "://" not in link]
    folder = (ROOT / name).parent
    return [((ROOT if own else folder) / file if file else ROOT / name, heading) for file, _, heading, own in parts]


@pytest.mark.parametrize("name", sorted({*DOCUMENTS, *PAGES}))
def test_every_link_leads_somewhere(name: str) -> None:
    lost = [(file, heading) for file, heading in links(name) if not file.exists() or heading not in _targets(file)]
    assert lost == []


def _targets(file: Path) -> set[str]:
    return {"", *(headings(file) if file.suffix == ".md" else ())}


def test_the_readme_leads_to_every_page() -> None:
    seen, waiting = set(), ["README.md"]
    while waiting:
        files = {str(file.resolve().relative_to(ROOT)) for file, _ in links(waiting.pop())}
        waiting += sorted(file for file in files - seen if file.endswith(".md"))
        seen |= files
    assert sorted(set(PAGES) - seen) == []


# --------------------------------------------------------------------------- paths


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]


@cache
def written_by_the_package() -> set[str]:
    return {text for _, node in nodes() if isinstance(node, ast.Constant) and isinstance(text := node.value, str)}


def drawn_of_a_run() -> set[str]:
    """The names in the drawn run folder, which `test_documents` compares with a real one."""
    (drawing,) = re.findall(r"^```\nrun/\n(.*?)^```$", read("ARCHITECTURE.md"), re.DOTALL | re.MULTILINE)
    return {line.split()[0] for line in drawing.splitlines()} | {"run/best"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_exists(name: str) -> None:
    """Paths exist in the repository, the package or a run folder, or are names of files that the package writes."""
    named = [text for text in inline(name) if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", text) or re.search(FILE_ENDING, text)]
    places = (ROOT, (ROOT / name).parent, PACKAGE)
    lost = [text for text in named if " " not in text and not any((place / text).exists() for place in places)]
    known = written_by_the_package() | drawn_of_a_run()
    built = (".venv/", "dist/")  # by make
    assert [text for text in lost if not text.startswith(built) and text not in known] == []


# --------------------------------------------------------------------------- names


@cache
def modules() -> dict[str, ModuleType]:
    files = (path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    parts = (path.relative_to(PACKAGE.parent).with_suffix("").parts for path in files)
    names = (".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts)
    return {name: importlib.import_module(name) for name in names}


@cache
def identifiers() -> set[str]:
    """All names that the package defines or uses, and the environment variables of package and tests."""
    found = {path.stem for path, _ in nodes()}
    for _, node in nodes():
        for part in ("name", "id", "arg", "attr"):
            found.add(str(node.__dict__.get(part)))
    texts = (path.read_text("utf-8") for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob("*.py"))
    return found.union(*(re.findall(r"""["'](MULTIHEAD_\w+)["']""", text) for text in texts))


@cache
def exists(name: str) -> bool:
    """Whether ``module.name``, ``package.module.name`` or ``Class.name`` exists."""
    parts = name.split(".")
    owners: list[tuple[object, list[str]]] = []
    if parts[0] == "torch":
        owners.append((importlib.import_module("torch"), parts[1:]))
    for module_name, module in modules().items():
        if isinstance(found := vars(module).get(parts[0]), type):
            owners.append((found, parts[1:]))
        for cut in range(1, len(parts)):
            if f".{module_name}".endswith("." + ".".join(parts[:cut])):
                owners.append((module, parts[cut:]))
    return any(_has(owner, rest) for owner, rest in owners)


def _has(owner: object, names: list[str]) -> bool:
    for name in names:
        classes = owner.__mro__ if isinstance(owner, type) else (owner,)
        if any(name in vars(part).get("__annotations__", {}) for part in classes):  # a field
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
    """Checks words that can only be names: those that contain an underscore or an inner capital."""
    words = [text for text in inline(name) if re.fullmatch(r"\w+", text) and re.search(r"\w_\w|[a-z][A-Z]", text)]
    assert [word for word in words if word not in identifiers()] == []


def test_a_name_that_does_not_exist_is_seen() -> None:
    assert len(names_in("ARCHITECTURE.md")) > 30
    assert exists("corpus.check_parallel")
    assert exists("Transformer.encode")
    assert exists("TrainSettings.budget")
    assert exists("torch.nn.MultiheadAttention")
    assert not exists("corpus.check_paralel")
    assert not exists("Transformer.encoded")
    assert not exists("TrainSettings.bugdet")
    assert not exists("nothing.at_all")


# --------------------------------------------------------------------------- forbidden words


def test_no_file_names_a_machine_or_puts_something_off() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: which files belong to the project is not known")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    # Written so that this file does not match itself.
    unwanted = re.compile(r"/(?:work|root)/|/tmp/[A-Za-z]|\b(?:TO[D]O|FIX[M]E|NotImplemented[E]rror)\b")
    found = []
    for path in filter(Path.is_file, (ROOT / name for name in listed.split("\0") if name)):
        with contextlib.suppress(UnicodeDecodeError):  # a picture
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if unwanted.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
