"""Absolute addresses in documents, and the files of the repository that they point to.

README.md has absolute links, so that they work on a package index. All of them begin with an address of
``[project.urls]`` in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
SITE, REPOSITORY = URLS["Documentation"], URLS["Repository"]

PAGES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
"""Every page of docs/, relative to the root."""


def address(page: str) -> str:
    """The address of a page of docs/ on the site."""
    path = page.removeprefix("docs/").removesuffix(".md")
    folder = ""
    if path.endswith(".zh-CN"):
        path, folder = path.removesuffix(".zh-CN"), "zh-CN/"
    path = "" if path == "index" else path.removesuffix("/index") + "/"
    return f"{SITE}{folder}{path}"


_FILES = {address(page): page for page in PAGES}


def local(link: str) -> str:
    """The file of a link into this project, relative to the root; any other link is returned unchanged.

    The address of a page that does not exist becomes the path of a file that does not exist.
    """
    for prefix in (f"{REPOSITORY}/{kind}/main/" for kind in ("blob", "raw", "tree")):
        if link.startswith(prefix):
            return link.removeprefix(prefix)
    if not link.startswith(SITE):
        return link
    page, mark, heading = link.partition("#")
    return _FILES.get(page, f"docs/{page.removeprefix(SITE).strip('/')}.md") + mark + heading


def with_local_links(text: str) -> str:
    """A document of the root with absolute links replaced by relative ones."""
    return re.sub(r"(?<=\]\()[^)\s]+(?=\))", lambda found: local(found[0]), text)
