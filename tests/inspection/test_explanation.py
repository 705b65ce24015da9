"""The explanation page: one file, safe with any text, interactive."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from multihead import Translator, explain
from multihead.inspection.explanation import explanation_page, explanation_text, html_percent

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "eins sieben zwei acht"
WICKED = "eins </script><script>alert(1)</script> </script x <img/src=x> &amp; $data \"'` \u2028 <!-- ]]> 你好"


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@pytest.fixture(scope="module")
def content(translator: Translator) -> dict[str, Any]:
    return explain(translator.searching(beam=4), TEXT, n_best=2).content()


class Read(HTMLParser):
    """What a browser would parse: tags in order, and texts by their enclosing tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.setdefault(self.tags[-1], []).append(data)


@pytest.fixture(scope="module")
def wicked(translator: Translator) -> dict[str, Any]:
    return explain(translator.searching(beam=2, max_length=9), WICKED, f"one {WICKED}", alternatives=2).content()


def test_text_is_never_markup(wicked: dict[str, Any]) -> None:
    """Whatever the texts, the page has the same elements as for plain words."""
    # The same numbers of words and tokens, but only letters.
    tame = json.loads(re.sub("[<>&]", "x", json.dumps(wicked)))
    read, plain = Read(explanation_page(wicked)), Read(explanation_page(tame))
    assert read.tags == plain.tags
    data = json.loads("".join(read.texts["script"]).split('\n"use strict"')[0])
    assert {key: data[key] for key in data if key not in ("attention", "shapes")} == {
        key: wicked[key] for key in wicked if key not in ("attention", "shapes")
    }
    assert [word["text"] for word in data["words"]][:3] == ["one", "eins", "</script><script>alert(1)</script>"]
    assert "</script><script>alert(1)</script>" in read.texts["span"]


def test_nothing_is_fetched(content: dict[str, Any]) -> None:
    text = explanation_page(content)
    read = Read(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name in ("src", "href", "srcset", "action", "onclick")]
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text


def test_without_scripts_it_has_the_main_content(content: dict[str, Any]) -> None:
    read = Read(explanation_page(content))
    words = [word["text"] for word in content["words"]]
    assert read.texts["span"][: len(content["source_words"]) + len(words)] == [*content["source_words"], *words]
    cells = read.texts["td"]
    for word in content["words"]:
        assert word["text"] in cells
        assert html_percent(word["probability"]).replace("&lt;", "<") in read.texts["span"]
        shown = [one for one in word["alternatives"] if one["probability"] >= 0.001]
        assert " · ".join(f"{one['text']}\xa0{html_percent(one['probability'])}" for one in shown) in ["", *cells]
    for piece in content["pieces"]:
        assert piece["text"] in cells
    for node in content["search"]["nodes"]:
        if node["rank"] is not None:
            assert node["text"] in cells
    assert content["shapes"]["table"] in "".join(read.texts["pre"])


def test_without_scripts_every_cell_of_the_map_has_its_weight_as_its_name(content: dict[str, Any]) -> None:
    shares = [html_percent(weight).replace("&lt;", "<") for row in content["word_attention"] for weight in row]
    attributes = Read(explanation_page(content)).attributes
    assert [value for name, value in attributes if name == "title"] == shares
    labels = [value for name, value in attributes if name == "aria-label"]
    assert [value for value in labels if value and value.endswith("%")] == shares


def test_what_is_missing_is_said(content: dict[str, Any]) -> None:
    none = {**content, "word_attention": None, "links": [], "attention": dict.fromkeys(content["attention"])}
    assert "This model has no attention to the source" in explanation_page(none)
    assert 'id="attention"' not in explanation_page(none)
    crossing = {**content["attention"], "encoder": None, "decoder": None}
    assert "has no attention within the source or the output." in explanation_page({**content, "attention": crossing})
    assert "has no attention" not in explanation_page(content)
    cut = {**content, "found": [{**content["found"][0], "finished": False, "warning": "too <long>"}]}
    assert "The length limit cut this translation" in explanation_page(cut)
    assert "too &lt;long&gt;" in explanation_page(cut)
    assert "own translation" in explanation_page({**content, "given": True})
    settings = {**content["search"]["settings"], "groups": 2}
    assert "A beam of 4 in 2 groups:" in explanation_page(
        {**content, "search": {**content["search"], "settings": settings}}
    )
    assert "A beam of 4:" in explanation_page(content)


def test_a_few_lines_for_a_terminal(content: dict[str, Any]) -> None:
    first, empty, head, *rows = explanation_text(content).split("\n")
    assert (first, empty) == (content["translation"], "")
    assert head.split("  ")[0].strip() == "word"
    assert [row.split()[0] for row in rows] == [word["text"] for word in content["words"]]
    assert all(re.search(r"\d%", row) for row in rows)


# ------------------------------------------------------------------------------------------------ in a real browser


def opened(browser: Chrome, text: str, folder: Path) -> None:
    (folder / "page.html").write_text(text, encoding="utf-8")
    browser.get_log("browser")  # discard entries of other pages
    browser.get((folder / "page.html").as_uri())


def found(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements("css selector", selector)


def one(browser: Chrome, selector: str) -> WebElement:
    (element,) = found(browser, selector)
    return element


@pytest.fixture
def opened_page(browser: Chrome, content: dict[str, Any], tmp_path: Path) -> Chrome:
    opened(browser, explanation_page(content), tmp_path)
    return browser


def test_a_word_shows_where_it_looked(opened_page: Chrome, content: dict[str, Any]) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser = opened_page
    resting = len(found(browser, ".pair path"))
    assert resting == len(content["links"])
    words = found(browser, ".target .word")
    for place, word in enumerate(words[:2]):
        ActionChains(browser).move_to_element(word).perform()
        weights = content["word_attention"][place]
        linked = [source for source, target in content["links"] if target == place]
        drawn = {path.get_attribute("data-link") for path in found(browser, ".pair path")}
        strong = {source for source, weight in enumerate(weights) if weight >= 0.05} | set(linked)
        assert drawn == {f"{source}-{place}" for source in strong}
        for source, weight in zip(found(browser, ".source .word small"), weights, strict=True):
            assert bool(source.text) == (weight >= 0.005)
    ActionChains(browser).move_to_element(one(browser, "footer")).perform()
    assert len(found(browser, ".pair path")) == resting
    browser.execute_script("arguments[0].focus()", words[0])
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert browser.switch_to.active_element == words[1]
    assert "on" in words[1].get_attribute("class").split()
    (up,) = [source for source, target in content["links"] if target == 1][:1]
    ActionChains(browser).send_keys(Keys.ARROW_UP).perform()
    assert browser.switch_to.active_element == found(browser, ".source .word")[up]
    assert browser.get_log("browser") == []


def test_arrow_keys_follow_the_direction_of_the_text(browser: Chrome, content: dict[str, Any], tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    hebrew = ["שלום"] * len(content["source_words"])
    opened(browser, explanation_page({**content, "source_words": hebrew}), tmp_path)
    first, second = found(browser, ".source .word")[:2]
    assert second.rect["x"] < first.rect["x"]
    browser.execute_script("arguments[0].focus()", first)
    for key, word in ((Keys.ARROW_LEFT, second), (Keys.ARROW_RIGHT, first)):
        ActionChains(browser).send_keys(key).perform()
        assert browser.switch_to.active_element == word


LINKED = """
const [word, hidden] = arguments;
document.querySelectorAll(".pair .word")[word].dispatchEvent(new Event("mouseenter"));
document.querySelector(".pair svg").style.visibility = hidden ? "hidden" : "";
const ends = [...document.querySelectorAll(".pair path")].flatMap((path) =>
  path.dataset.link.split("-").map((at, side) =>
    document.querySelectorAll([".source .word", ".target .word"][side])[at]));
const labels = [...document.querySelectorAll(".pair .side, .pair .word span, .pair .word small")];
return labels.filter((one) => !ends.includes(one.parentElement)).map((one) => {
  const { left, top, right, bottom } = one.getBoundingClientRect();
  return [Math.ceil(left), Math.ceil(top), Math.floor(right), Math.floor(bottom)];
});
"""
"""Points at a word, shows or hides the links, and returns the places of all labels and words that are not linked."""


@pytest.mark.parametrize("repeated", [1, 6])
def test_links_cross_neither_labels_nor_words(
    browser: Chrome, content: dict[str, Any], repeated: int, tmp_path: Path
) -> None:
    """In sentences of one line and of several: no pixel of the words and labels changes when links are drawn."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    sides = {"source_words": content["source_words"] * repeated, "words": content["words"] * repeated}
    count = len(content["source_words"])
    weights = [row * repeated for row in content["word_attention"]] * repeated
    links = [(source + count * at, target) for at in range(repeated) for source, target in content["links"]]
    reduced = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", reduced)
    try:
        opened(browser, explanation_page({**content, **sides, "word_attention": weights, "links": links}), tmp_path)
        for word in (0, len(sides["source_words"]), len(sides["source_words"]) + len(sides["words"]) - 1):
            shown = []
            for hidden in (False, True):
                boxes = browser.execute_script(LINKED, word, hidden)
                shown.append(np.array(image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")))
            assert (shown[0] != shown[1]).any()  # there are links
            for left, top, right, bottom in boxes:
                assert (shown[0][top:bottom, left:right] == shown[1][top:bottom, left:right]).all()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert browser.get_log("browser") == []


IN_THE_TREE = """
const boxes = [...document.querySelectorAll("g.node text")].map((one) => one.getBBox()), found = [];
for (const path of document.querySelectorAll("#tree path")) {
  for (let step = 0; step <= 60; step++) {
    const { x, y } = path.getPointAtLength(path.getTotalLength() * step / 60);
    const inside = ({ x: left, y: top, width, height }) => x > left && x < left + width && y > top && y < top + height;
    if (boxes.some(inside)) found.push(path.id);
  }
}
return [found, boxes.length];
"""


@pytest.mark.parametrize("piece", ["\u2581eins", "\u2581犬も歩けば棒に当たる", "\u2581WWWWWWWW"])
def test_edges_of_the_tree_cross_no_token_in_any_script(
    browser: Chrome, content: dict[str, Any], piece: str, tmp_path: Path
) -> None:
    nodes = [{**node, "piece": piece} for node in content["search"]["nodes"]]
    opened(browser, explanation_page({**content, "search": {**content["search"], "nodes": nodes}}), tmp_path)
    one(browser, "#all").click()
    crossed_edges, tokens = browser.execute_script(IN_THE_TREE)
    assert (crossed_edges, tokens > 10) == ([], True)


def test_the_theme_button_says_what_it_does(opened_page: Chrome) -> None:
    button = one(opened_page, "#theme")
    light = opened_page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert button.accessible_name == button.text == "Dark colors"
    button.click()
    assert button.text == "Light colors"
    assert opened_page.execute_script("return getComputedStyle(document.body).backgroundColor") != light


def test_improbable_alternatives_are_not_shown(content: dict[str, Any], tmp_path: Path, browser: Chrome) -> None:
    others = [{**content["words"][0]["alternatives"][0], "text": f"p{p}", "probability": p} for p in (0.001, 0.0009)]
    words = [{**word, "alternatives": others} for word in content["words"]]
    page = explanation_page({**content, "words": words})
    opened(browser, page, tmp_path)
    assert [name.text for name in found(browser, "#alternatives .name")][1:] == ["p0.001"]
    assert "p0.0009" not in explanation_text({**content, "words": words})
    assert ["p0.0009" in text for text in Read(page).texts["td"]].count(True) == 0


def test_a_word_is_chosen_and_shows_what_it_could_have_been(opened_page: Chrome, content: dict[str, Any]) -> None:
    browser = opened_page
    least = min(range(len(content["words"])), key=lambda place: content["words"][place]["probability"])
    words = found(browser, ".target .word")
    assert [word.get_attribute("aria-pressed") for word in words].index("true") == least
    for place, word in enumerate(content["words"]):
        words[place].click()
        names = [name.text for name in found(browser, "#alternatives .name")]
        assert names == [word["text"], *(one["text"] for one in word["alternatives"] if one["probability"] >= 0.001)]
        pieces = [piece for piece in content["pieces"] if piece["word"] == place]
        assert [title.text for title in found(browser, "#choices h3 em")] == [piece["text"] for piece in pieces]
    assert browser.get_log("browser") == []


def test_every_map_can_be_chosen(opened_page: Chrome, content: dict[str, Any]) -> None:
    """The cells of the map are the weights of the data, for each kind of attention, layer, head, and the mean."""
    browser = opened_page
    for number, kind in enumerate(("cross", "encoder", "decoder")):
        found(browser, "#kinds button")[number].click()
        layers = content["attention"][kind]["layers"]
        for layer, heads in enumerate(layers):
            mean = [[sum(cells) / len(heads) for cells in zip(*rows, strict=True)] for rows in zip(*heads, strict=True)]
            for head, weights in [*enumerate(heads), (-1, mean)]:
                one(browser, f'[data-map="{layer}-{head}"]').click()
                most = max(max(row) for row in weights)
                shown = browser.execute_script(
                    "return [...document.querySelectorAll('#map td[data-at]')]"
                    ".map((cell) => Number(cell.style.getPropertyValue('--weight')))"
                )
                assert shown == pytest.approx([weight / most for row in weights for weight in row], abs=0.003)
        assert [name.text for name in found(browser, "#map thead th")] == content["attention"][kind]["columns"]
        assert [name.text for name in found(browser, "#map tbody th")] == content["attention"][kind]["rows"]
    assert browser.get_log("browser") == []


def test_every_cell_of_a_map_has_its_weight_as_its_name(
    browser: Chrome, content: dict[str, Any], tmp_path: Path
) -> None:
    cross = {"rows": ["one"], "columns": ["eins", "zwei", "drei", "</s>"], "layers": [[[[0.0, 0.002, 0.031, 0.967]]]]}
    opened(browser, explanation_page({**content, "attention": {**content["attention"], "cross": cross}}), tmp_path)
    cells = found(browser, "#map td[data-at]")
    assert [cell.accessible_name for cell in cells] == ["0.0%", "0.2%", "3.1%", "97%"]
    assert [cell.text for cell in cells] == ["", "", "", "97"]


def test_the_tree_of_the_search(opened_page: Chrome, content: dict[str, Any]) -> None:
    from selenium.webdriver import Keys

    browser = opened_page
    nodes = content["search"]["nodes"]
    last = max(node["step"] for node in nodes)
    browser.execute_script("const r = byId('until'); r.value = r.max; r.dispatchEvent(new Event('input'))")
    kept = [at for at, node in enumerate(nodes) if not at or node["place"] is not None or node["score"] is not None]
    assert shown_nodes(browser) == kept
    one(browser, "#all").click()
    assert shown_nodes(browser) == [*range(len(nodes))]
    # The nodes on the paths to the n best are drawn as found.
    way: set[int | None] = {0}
    for at, node in enumerate(nodes):
        place: int | None = at if node["rank"] is not None else None
        while place is not None:
            way.add(place)
            place = nodes[place]["parent"]
    assert {int(node.get_attribute("data-node") or -1) for node in found(browser, "g.node.best")} == way
    browser.execute_script("const r = byId('until'); r.value = 1; r.dispatchEvent(new Event('input'))")
    assert shown_nodes(browser) == [at for at, node in enumerate(nodes) if node["step"] <= 1]
    tree = one(browser, "#tree")
    tree.send_keys(Keys.ARROW_RIGHT)
    first = next(node["piece"] for node in nodes if node["step"] == 1 and nodes.index(node) in way)
    assert one(browser, "#fate").text.startswith(first.replace("\u2581", " ").strip() or "a blank")
    assert f"of {last} steps" in one(browser, "#step").text
    assert browser.get_log("browser") == []


def shown_nodes(browser: Chrome) -> list[int]:
    places: list[int] = browser.execute_script(
        "return [...document.querySelectorAll('g.node')].map((node) => Number(node.dataset.node))"
    )
    return sorted(places)


def test_any_text_any_width_and_both_themes(browser: Chrome, wicked: dict[str, Any], tmp_path: Path) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    long = "seven" * 100  # cannot be broken
    words = [{**wicked["words"][0], "text": long}, *wicked["words"][1:]]
    sides = {"source_words": [long, *wicked["source_words"][1:]], "words": words, "source": long, "translation": long}
    opened(browser, explanation_page({**wicked, **sides, "given": True}), tmp_path)
    assert [word.text.split("\n")[0] for word in found(browser, ".target .word")][2] == WICKED.split()[1]
    assert wicked["links"]
    assert found(browser, ".pair path") == []  # over several lines, links would cross words
    found(browser, ".target .word")[0].click()
    assert found(browser, ".pair path")
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text
    size = browser.get_window_size()
    try:
        for width in (500, 1200):
            browser.set_window_size(width, 900)
            wide, window = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide <= window
    finally:
        browser.set_window_size(size["width"], size["height"])
    colors = set()
    for _ in range(2):
        one(browser, "#theme").click()
        colors.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert len(colors) == 2
    assert browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    assert browser.get_log("browser") == []


def test_a_model_without_attention_has_a_page_all_the_same(
    browser: Chrome, content: dict[str, Any], tmp_path: Path
) -> None:
    none = {**content, "word_attention": None, "links": [], "attention": dict.fromkeys(content["attention"])}
    opened(browser, explanation_page(none), tmp_path)
    found(browser, ".target .word")[0].click()
    assert found(browser, "#alternatives .name")[0].text == content["words"][0]["text"]
    assert found(browser, "g.node.best")
    assert browser.get_log("browser") == []


def test_an_empty_translation_has_a_page(browser: Chrome, translator: Translator, tmp_path: Path) -> None:
    opened(browser, explain(translator, TEXT, "").page(), tmp_path)
    assert found(browser, ".target .word") == []
    assert browser.get_log("browser") == []
