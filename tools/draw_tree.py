"""Draws the tree of `src/multihead` in ARCHITECTURE.md from the files' first lines.

Python files are described by the first line of their docstring, folders by that of their `__init__.py`, and other
sources by the beginning of their first comment. Run it as ``make tree``; with ``--check`` nothing is written, and the
exit status is 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BLOCK = re.compile(r"(?<=<!-- tree: begin -->\n).*?(?=<!-- tree: end -->)", re.DOTALL)
COMMENT = {
    ".cpp": r"^// (.*)",
    ".h": r"^// (.*)",
    ".js": r"^// (.*)",
    ".css": r"^/\* (.*?)(?:\*/)?$",
    ".html": r"<!-- (.*?)(?:-->)?$",
}


def first_line(path: Path) -> str:
    """The sentence that describes a file or a folder; empty if it has none."""
    if path.is_dir():
        path /= "__init__.py"
    if path.suffix == ".py" and path.exists():
        lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
        return lines[0] if lines else ""
    if path.suffix in COMMENT:
        comment = re.search(COMMENT[path.suffix], path.read_text(encoding="utf-8"), re.MULTILINE)
        return re.split("[:;.] ", comment[1].strip())[0] if comment else ""
    return ""


def entries(folder: Path, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Indented names with their descriptions: a folder's files, then its folders."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.name in ("__init__.py", "__pycache__"):
            continue
        yield "  " * depth + path.name + "/" * path.is_dir(), first_line(path).removesuffix(".")
        if path.is_dir():
            yield from entries(path, depth + 1)


def draw(package: Path) -> str:
    """The fenced block of a package."""
    rows = [(f"src/{package.name}/", first_line(package).removesuffix(".")), *entries(package, depth=1)]
    width = max(len(name) for name, _ in rows) + 2
    return "```\n" + "".join(f"{name:<{width}}{text}".rstrip() + "\n" for name, text in rows) + "```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    block = draw(ROOT / "src" / "multihead")
    drawn, count = BLOCK.subn(lambda _: block, text)
    if count != 1:
        sys.exit(f"{PAGE.name}: expected '<!-- tree: begin -->' and '<!-- tree: end -->' once, found {count}")
    if not check:
        PAGE.write_text(drawn, encoding="utf-8", newline="\n")
    elif drawn != text:
        sys.exit(f"{PAGE.name}: the tree is out of date; run `make tree`")


if __name__ == "__main__":
    main()
