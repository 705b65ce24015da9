"""The Chinese pages match the English ones: the same blocks in the same order, names, commands and links.

A failing test prints what to copy, and to which place. The code of the English pages is run elsewhere
(`test_documents`, `test_pages`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from addresses import PAGES as ALL
from addresses import with_local_links

from multihead.data.toy.numbers import possible_sources, split
from multihead.demo import TEST, TRAIN

ROOT = Path(__file__).resolve().parent.parent

PAGES = {"README.md": "README.zh-CN.md"} | {
    chinese.replace(".zh-CN", ""): chinese for chinese in ALL if chinese.endswith(".zh-CN.md")
}
"""Each English page and its Chinese translation."""

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EQUATION = re.compile(r"^\$\$\n.*?^\$\$$", re.DOTALL | re.MULTILINE)
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ADDED = ("make demo SOURCE=zh", "zh-en: ")
"""First lines of blocks that only Chinese pages have: the demo with a Chinese pair, and its output."""


class Block(NamedTuple):
    """A fenced block and its line."""

    line: int
    language: str
    text: str


def read(page: str) -> str:
    return with_local_links((ROOT / page).read_text(encoding="utf-8"))


def blocks(page: str) -> list[Block]:
    text = read(page)
    return [Block(text[: found.start()].count("\n") + 1, found[1], found[2]) for found in FENCED.finditer(text)]


def prose(page: str) -> str:
    """The page without blocks and equations."""
    return EQUATION.sub("", FENCED.sub("", read(page)))


def codes(page: str) -> set[str]:
    """The texts between backticks."""
    return {" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(page))}


@pytest.mark.parametrize(("english", "chinese"), PAGES.items(), ids=PAGES)
def test_the_blocks_are_the_same_in_the_same_order(english: str, chinese: str) -> None:
    """Code, commands and output exactly; of a drawn tree only the paths, since its descriptions are prose."""
    theirs, ours = blocks(english), [block for block in blocks(chinese) if not block.text.startswith(ADDED)]
    for their, our in zip(theirs, ours, strict=False):
        if their.language:
            assert our[1:] == their[1:], (
                f"{chinese}, line {our.line}, is to be this block of {english}, line {their.line} (or it is missing "
                f"there):\n```{their.language}\n{their.text}```"
            )
        else:
            paths = [[re.match(r" *\S*", line) for line in block.text.splitlines()] for block in (our, their)]
            drawn, wanted = ([found[0] for found in lines if found] for lines in paths)
            assert drawn == wanted, (
                f"{chinese}, line {our.line}: the paths of this tree are to be those of {english}, line {their.line}"
            )
    missing = [f"{english}, line {block.line}" for block in theirs[len(ours) :]]
    too_many = [f"{chinese}, line {block.line}" for block in ours[len(theirs) :]]
    assert (missing, too_many) == ([], []), f"blocks to copy: {missing}; blocks to take out: {too_many}"


@pytest.mark.parametrize(("english", "chinese"), PAGES.items(), ids=PAGES)
def test_the_equations_are_the_same_in_the_same_order(english: str, chinese: str) -> None:
    assert EQUATION.findall(read(chinese)) == EQUATION.findall(read(english))


@pytest.mark.parametrize(("english", "chinese"), PAGES.items(), ids=PAGES)
def test_the_names_are_the_same(english: str, chinese: str) -> None:
    """Both pages mention the same names, flags and commands."""
    left_out = codes(english) - codes(chinese)
    added = {
        code for code in codes(chinese) - codes(english) if code not in ("zh", "->", 'pip install "multihead[zh]"')
    }
    assert left_out == set(), f"{english} has them, {chinese} does not"
    assert added == set(), f"{chinese} has them, {english} does not"


@pytest.mark.parametrize(("english", "chinese"), PAGES.items(), ids=PAGES)
def test_the_tables_have_the_same_rows(english: str, chinese: str) -> None:
    """Tables have equally many rows, so that additions to one page are made to the other."""
    tables = [re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE) for page in (english, chinese)]
    theirs, ours = ([(table.splitlines()[2][:60], table.count("\n")) for table in found] for found in tables)
    assert len(ours) == len(theirs)
    unlike = [(their, our) for their, our in zip(theirs, ours, strict=True) if their[1] != our[1]]
    assert unlike == [], f"tables of {english} and of {chinese}, each with its first row and its length"


@pytest.mark.parametrize(("english", "chinese"), PAGES.items(), ids=PAGES)
def test_the_links_lead_to_the_same_pages(english: str, chinese: str) -> None:
    """Links lead to existing files, and to the Chinese page if there is one."""
    folder = (ROOT / chinese).parent
    theirs, ours = (set(re.findall(r"\]\(([^)#\s]+)", prose(page))) for page in (english, chinese))
    translated = {(ROOT / page).resolve(): (ROOT / other).resolve() for page, other in PAGES.items()}
    found = {(folder / link).resolve() for link in ours}
    wanted = {link: translated.get((folder / link).resolve(), (folder / link).resolve()) for link in theirs}
    own = (ROOT / chinese).resolve()  # the link to the other language
    assert [link for link, path in wanted.items() if path not in found | {own}] == [], f"links of {english}"
    assert [link for link in sorted(ours) if "://" not in link and not (folder / link).exists()] == []


@pytest.mark.parametrize(("english", "chinese"), PAGES.items(), ids=PAGES)
def test_the_prose_is_chinese(english: str, chinese: str) -> None:
    """Every paragraph is Chinese, and the first lines link to the English page."""
    paragraphs = [part for part in re.split(r"\n\s*\n", prose(chinese)) if part.strip()]
    text = [part for part in paragraphs if not part.startswith("#")]  # headings may be names of files
    assert [part for part in text if not CHINESE.search(part)] == []
    assert "�" not in read(chinese)
    assert Path(english).name in read(chinese).splitlines()[2]


@pytest.mark.parametrize("english", PAGES)
def test_an_english_page_leads_to_its_chinese_one(english: str) -> None:
    assert f"]({Path(PAGES[english]).name})" in read(english)


def test_the_chinese_pair_of_the_demo_is_the_one_shown() -> None:
    """`multihead demo` shows the first examples of its test set, which does not depend on other sets' sizes."""
    (shown,) = [block.text for block in blocks("docs/getting-started.zh-CN.md") if block.text.startswith("zh-en: ")]
    _, _, test = split("zh", "en", train=0, valid=0, test=TEST, seed=1)
    begun, ended = shown.split("some of them:\n")
    translated = [line.split("   (right: ")[0].strip().split("  ->  ") for line in ended.splitlines()]
    assert [source for source, _ in translated] == [example.source for example in test[: len(translated)]]
    patterns = {line.split()[0] for line in begun.splitlines() if line.startswith("  ")} - {"in"}
    assert patterns == {example.pattern for example in test}
    assert f"{TRAIN:,} training examples out of {sum(possible_sources().values()):,} possible" in begun
    assert f"exactly right, of {TEST:,} that were not in the training data" in begun
