"""The site: every page is in its navigation, its reference is complete, and its addresses are those of the project.

`make site` builds it and fails at every warning; these tests need only mkdocs.yml. `test_names` checks links between
pages.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from addresses import PAGES, REPOSITORY, SITE, URLS, address, local
from floors import PROJECT

import multihead
import multihead.attention
import multihead.attention.structured
import multihead.attention.vision

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the packages whose functions it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def site() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    return loaded


def pages_of(nav: Any) -> Iterator[str]:
    """The pages of a navigation, or of a part of it."""
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from pages_of(part)


def headings_of(nav: Any) -> Iterator[str]:
    """The titles in a navigation."""
    for part in nav if isinstance(nav, list) else []:
        if isinstance(part, dict):
            yield from part
            for below in part.values():
                yield from headings_of(below)


def generated() -> dict[str, str]:
    """Documents of the root, and the pages that they replace (tools/site_hooks.py)."""
    tree = ast.parse((ROOT / "tools" / "site_hooks.py").read_text(encoding="utf-8"))
    (value,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROJECT"
    ]
    made: dict[str, str] = ast.literal_eval(value)
    return made


# --------------------------------------------------------------------------- the navigation


def test_every_page_is_in_the_navigation_once() -> None:
    named = sorted(pages_of(site()["nav"]))
    english = [page.removeprefix("docs/") for page in PAGES if not page.endswith(".zh-CN.md")]
    assert named == sorted(english)


def test_documents_of_the_root_take_the_places_of_pages_that_name_them() -> None:
    assert len(generated()) == 3
    for name, page in generated().items():
        assert (ROOT / name).is_file()
        assert f"](../../{name})" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_every_title_of_the_navigation_has_a_chinese_one() -> None:
    (plugin,) = [part["i18n"] for part in site()["plugins"] if isinstance(part, dict) and "i18n" in part]
    (chinese,) = [language for language in plugin["languages"] if language["locale"] == "zh-CN"]
    assert sorted(set(headings_of(site()["nav"]))) == sorted(chinese["nav_translations"])


@pytest.mark.parametrize("page", [*PAGES, *generated()])
def test_markdown_is_read_alike_by_forges_and_by_the_site(page: str) -> None:
    """Python-Markdown wants an empty line before a list, and four spaces inside of one."""
    lines = re.sub(r"^(```+).*?^\1$", "```", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S).split("\n")
    item = re.compile(r" *([*-]|\d+\.) ")
    faults = [
        f"{page}: {line}"
        for before, line in zip(["", *lines], lines, strict=False)
        if (item.match(line) and before.strip() and not before.startswith(" ") and not item.match(before))
        or re.match(r" {1,3}(```|[*-] )", line)
    ]
    assert faults == []


# --------------------------------------------------------------------------- the reference


def described() -> list[str]:
    """The names that the reference describes."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
    return [name for text in texts for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]


def test_every_public_name_is_described_once() -> None:
    packages = (multihead, multihead.attention, multihead.attention.structured, multihead.attention.vision)
    public = {f"{package.__name__}.{name}" for package in packages for name in package.__all__ if name[0] != "_"}
    found = described()
    assert sorted(public - set(found)) == []
    assert sorted(found) == sorted(set(found))


def test_what_the_reference_names_exists_and_has_a_docstring() -> None:
    owners = [(name, *name.rpartition(".")[::2]) for name in described()]
    found = {name: getattr(importlib.import_module(module), attribute, None) for name, module, attribute in owners}
    assert [name for name, value in found.items() if value is None or not value.__doc__] == []


def test_every_page_of_the_reference_is_in_its_table() -> None:
    table = (REFERENCE / "index.md").read_text(encoding="utf-8")
    others = sorted(path.name for path in REFERENCE.glob("*.md") if path.name != "index.md")
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", table, re.MULTILINE)) == others


# --------------------------------------------------------------------------- addresses


def test_all_addresses_are_those_of_the_project() -> None:
    settings = site()
    assert settings["site_url"] == SITE == URLS["Homepage"]
    assert settings["repo_url"] == REPOSITORY
    assert URLS["Changelog"] == f"{REPOSITORY}/blob/main/CHANGELOG.md"
    assert URLS["Issues"] == f"{REPOSITORY}/issues"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["url"], cited["repository-code"]) == (SITE, REPOSITORY)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_links_of_the_readme_are_absolute_and_lead_to_files(name: str) -> None:
    """So that its links work on a package index, which has no other files."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link] == []
    own = [local(link).partition("#")[0] for link in links if local(link) != link]
    assert len(own) > 20
    assert [file for file in own if not (ROOT / file).exists()] == []


def test_an_address_and_its_file() -> None:
    assert address("docs/index.md") == SITE
    assert address("docs/attention.zh-CN.md") == f"{SITE}zh-CN/attention/"
    assert address("docs/tutorials/index.md") == f"{SITE}tutorials/"
    assert local(f"{SITE}attention/#masks") == "docs/attention.md#masks"
    assert local(f"{SITE}zh-CN/") == "docs/index.zh-CN.md"
    assert local(f"{SITE}no-such-page/") == "docs/no-such-page.md"
    assert local(f"{REPOSITORY}/blob/main/LICENSE") == "LICENSE"
    assert local("https://pytorch.org/") == "https://pytorch.org/"


def test_the_project_can_move(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("set_address", ROOT / "tools" / "set_address.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "page.md").write_bytes(f"[a]({SITE}a/)\r\n[b]({REPOSITORY}/issues)".encode())
    (tmp_path / "picture.png").write_bytes(b"\x89PNG" + SITE.encode())
    (tmp_path / "other.md").write_text(SITE, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "page.md", "picture.png"], cwd=tmp_path, check=True)
    changes = {SITE: "https://docs.test/", REPOSITORY: "https://code.test/me"}
    assert module.replace(tmp_path, changes) == ["page.md"]
    assert (tmp_path / "page.md").read_bytes() == b"[a](https://docs.test/a/)\r\n[b](https://code.test/me/issues)"
    assert (tmp_path / "other.md").read_text() == SITE  # git does not track it


# --------------------------------------------------------------------------- citation and community


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert str(cited["version"]) == multihead.__version__ == PROJECT["project"]["version"]
    assert cited["license"] == PROJECT["project"]["license"]
    assert cited["title"] == PROJECT["project"]["name"]
    assert cited["authors"]


def test_templates_ask_for_what_a_report_needs() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    forms = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*.yml")}
    assert set(forms) == {"bug", "config", "proposal", "question"}
    for name, form in forms.items():
        if name == "config":
            assert [link["url"].startswith((SITE, REPOSITORY)) for link in form["contact_links"]] == [True, True]
            continue
        assert {"name", "description", "body"} <= set(form)
        fields = [field["id"] for field in form["body"] if "id" in field]
        assert fields
        assert len(fields) == len(set(fields))
    asked = {field.get("id") for field in forms["bug"]["body"]}
    assert {"command", "output", "environment"} <= asked
