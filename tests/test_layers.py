"""The layers of the package, read from its imports: imports point down, without cycles, and torch stays out of `text`.

The order is defined only by the table in ARCHITECTURE.md's section "Layers", top first. Every import counts: of a
module, inside a function, for type checking only. The tests read the source and import nothing, unless they say so.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import multihead

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"


class Import(NamedTuple):
    """An imported name."""

    target: str  # the imported module; of other distributions, only the top-level package
    line: int
    at_start: bool  # whether the import runs when the module is imported


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


TOGETHER: dict[str, list[str]] = {}
"""The modules of each folder of the package; ``multihead`` has those that are in none. One test reads them."""
for _module, _path in FILES.items():
    *_folders, _ = _path.relative_to(PACKAGE).parts
    TOGETHER.setdefault(_folders[0] if _folders else "multihead", []).append(_module)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> list[Import]:
    return [
        Import(target, node.lineno, at_start)
        for node, at_start in _statements(tree_of(module), at_start=True)
        for target in _targets(module, node)
    ]


def _statements(node: ast.AST, at_start: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, at_start
        elif isinstance(child, ast.If) and _for_types(child.test):
            for statement in child.body:
                yield from _statements(ast.Module([statement], []), False)
            for statement in child.orelse:
                yield from _statements(ast.Module([statement], []), at_start)
        elif not isinstance(child, ast.expr):  # which has no statements
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _statements(child, at_start and not inside)


def _for_types(test: ast.expr) -> bool:
    name = isinstance(test, (ast.Name, ast.Attribute))  # writing other expressions as text takes long
    return name and ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets(module: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name if alias.name in FILES else alias.name.split(".")[0] for alias in node.names)
        return
    assert node.level == 0, f"{module}:{node.lineno}: imports are written in full"
    assert node.module is not None
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        yield full if full in FILES else node.module if node.module in FILES else node.module.split(".")[0]


def declared_order() -> list[tuple[str, ...]]:
    """The rows of the table, lowest first; the names of a row are neighbors."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("\n## Layers", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [tuple(re.findall(r"`([\w.]+)`", row)) for row in reversed(rows)]


ORDER = declared_order()
HEIGHT = {name: height for height, row in enumerate(ORDER) for name in row}


def layer_of(module: str) -> str:
    """The longest name in the table that contains the module; the layer of `multihead` itself is ``__init__``."""
    parts = module.split(".")[1:] or ["__init__"]
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in HEIGHT), parts[0])


def test_the_table_names_every_package_and_module_once() -> None:
    declared = list(chain.from_iterable(ORDER))
    assert len(declared) == len(HEIGHT)
    assert sorted(declared) == sorted({layer_of(module) for module in FILES})


def test_every_package_has_a_row() -> None:
    packages = {module.removeprefix("multihead.") for module, path in FILES.items() if path.name == "__init__.py"}
    missing = sorted(packages - {"multihead"} - HEIGHT.keys())
    assert missing == [], "add a row to the section Layers of ARCHITECTURE.md"


def height_of(module: str) -> int:
    """The height of a module's layer; the ``__init__`` of a package is as high as its highest sub-package."""
    inside = [height for name, height in HEIGHT.items() if f"multihead.{name}".startswith(f"{module}.")]
    return max([HEIGHT[layer_of(module)], *(inside if module != "multihead" else [])])


def points_up(source: str, target: str) -> bool:
    if source != "multihead" and target.startswith(f"{source}."):  # an __init__ may import its own package
        return False
    return height_of(target) > height_of(source) - (layer_of(target) != layer_of(source))


def arrows_up(source: str, targets: list[Import]) -> list[str]:
    return [
        f"{source}:{line} imports {target}"
        for target, line, _ in targets
        if target in FILES and points_up(source, target)
    ]


@pytest.mark.parametrize("package", TOGETHER)
def test_imports_point_down(package: str) -> None:
    assert [arrow for module in TOGETHER[package] for arrow in arrows_up(module, imports_of(module))] == []


def test_an_arrow_up_or_sideways_is_seen() -> None:
    assert arrows_up("multihead.attention.masks", [Import("multihead.models.layers", 1, False)])
    for neighbors in ORDER:
        for one, other in pairwise(neighbors):
            assert arrows_up(f"multihead.{one}", [Import(f"multihead.{other}", 1, True)])
    assert arrows_up("multihead.attention.scores", [Import("multihead.attention.vision.gate", 1, True)])
    assert arrows_up("multihead.attention.scores", [Import("multihead.attention", 1, True)])


def test_no_imports_in_a_circle() -> None:
    graph = {module: {i.target for i in imports_of(module) if i.target in FILES} for module in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def reached(start: str) -> dict[str, str]:
    """All modules imported with ``start``, each with a module that imports it."""
    found, waiting = {start: start}, [start]
    while waiting:
        module = waiting.pop()
        parents = [module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)]
        wanted = [i.target for i in imports_of(module) if i.at_start]
        for target in (*parents, *wanted):
            if target not in found:
                found[target] = module
                waiting += [target] if target in FILES else []
    return found


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("multihead.text")])
def test_text_never_needs_torch(module: str) -> None:
    # `multihead` itself imports its names lazily; all imports of modules below it count.
    names = {target for i in imports_of(module) if i.target in FILES for target in reached(i.target)}
    assert "torch" not in names | {i.target for i in imports_of(module)}


def test_nothing_on_the_way_to_help_imports_torch() -> None:
    starts = ("multihead", *(name for name in FILES if name.startswith("multihead.cli.")))
    found = {start: reached(start).get("torch") for start in starts}
    assert [f"{start}: {module} imports torch" for start, module in found.items() if module] == []


def test_help_of_every_command_leaves_torch_alone() -> None:
    program = (
        "import sys\n"
        "from multihead.cli.main import main, multihead\n"
        "for command in multihead.commands:\n"
        "    assert main([command, '--help']) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("package", TOGETHER)
def test_every_file_opens_with_a_line_that_fits_the_tree(package: str) -> None:
    """`make tree` draws ARCHITECTURE.md's tree from these lines."""
    firsts = {name: (ast.get_docstring(tree_of(name)) or "").partition("\n")[0] for name in TOGETHER[package]}
    assert {name: first for name, first in firsts.items() if not 0 < len(first) <= 72} == {}


def test_the_public_names() -> None:
    assert multihead.__all__ == [
        "Translator",
        "__version__",
        "average",
        "compare",
        "doctor",
        "evaluate",
        "explain",
        "prepare",
        "train",
    ]
    assert multihead.__version__ == importlib.metadata.version("multihead")
    for_type_checkers = {
        alias.name: node.module
        for node in ast.walk(tree_of("multihead"))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("multihead.")
        for alias in node.names
    }
    assert sorted([*for_type_checkers, "__version__"]) == multihead.__all__
    for name, home in for_type_checkers.items():
        assert getattr(multihead, name) is getattr(importlib.import_module(home), name)


def test_a_name_that_is_not_public_is_refused_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=", ".join(multihead.__all__)):
        _ = multihead.trian


def test_the_attention_library_exports_what_it_imports() -> None:
    attention = importlib.import_module("multihead.attention")
    nodes = [node for node in tree_of("multihead.attention").body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.name for node in nodes for alias in node.names) == sorted(attention.__all__)
    assert all(getattr(attention, name) is not None for name in attention.__all__)
