"""Hooks of the site's build: documents of the root, notebooks, links that leave docs/, and equations.

MkDocs calls these functions (mkdocs.yml). The notebook of each tutorial is placed beside it. The build converts
equations to MathML, so that a page needs no script and no other host to show them.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import FOLDER, notebook_of

ROOT = Path(__file__).resolve().parent.parent

PROJECT = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""Documents of the root, and the pages of docs/ that they replace on the site."""

LINK = re.compile(r"(\]\()([^)\s#]*)([^)\s]*\))")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
LANGUAGES = re.compile(r"^(English \| \[中文\]\([^)]*\)|\[English\]\([^)]*\) \| 中文)\n", re.MULTILINE)
"""The line of a page that links to its other language; the site has a menu instead."""

NOTEBOOK = {False: "Download this page as a notebook", True: "下载本页的 notebook"}
"""The link to a tutorial's notebook, in English and in Chinese."""

EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


@event_priority(-200)
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks; this runs after the plugin has assigned each page its language."""
    for tutorial in sorted(FOLDER.glob("*.md")):
        if not tutorial.name.startswith("index."):
            text = nbformat.writes(notebook_of(tutorial, config.repo_url or ""))
            files.append(File.generated(config, f"tutorials/{tutorial.stem}.ipynb", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links that leave docs/ to the repository; replace the language line by the notebook's link, if any."""
    source = page.file.src_uri
    origin = next((name for name, uri in PROJECT.items() if uri == source), f"docs/{source}")
    if source in PROJECT.values():
        markdown = (ROOT / origin).read_text(encoding="utf-8")

    def led(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        if not link or "://" in link or link.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
        if target in PROJECT:
            inside = PROJECT[target]
        elif target.startswith("docs/"):
            inside = target.removeprefix("docs/").replace(".zh-CN.md", ".md")  # the plugin picks the language
        else:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{before}{config.repo_url}/{kind}/main/{target}{after}"
        return before + posixpath.relpath(inside, posixpath.dirname(source)) + after

    parts, end = [], 0
    for block in FENCED.finditer(markdown):
        parts += [LINK.sub(led, markdown[end : block.start()]), block[0]]
        end = block.end()
    text = "".join([*parts, LINK.sub(led, markdown[end:])])
    folder, _, name = source.rpartition("/")
    notebook = ""
    if folder == "tutorials" and not name.startswith("index."):
        notebook = f"[{NOTEBOOK['.zh-CN.' in name]}]({name.partition('.')[0]}.ipynb){{ .md-button }}\n"
    return LANGUAGES.sub(notebook, text, count=1)


def on_page_content(content: str, **_: Any) -> str:
    """Convert the equations to MathML."""
    return EQUATION.sub(_drawn, content)


def _drawn(found: re.Match[str]) -> str:
    text = html.unescape(found[2]).strip()
    display = text.startswith("\\[")
    return convert(text[2:-2].strip(), display="block" if display else "inline")
