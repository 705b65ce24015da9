"""Accessibility and layout of the page: contrast, names, widths, light and dark, writing direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.support.ui import Select


def test_everything_has_a_name(page: Any) -> None:
    page.translate("eins zwei")
    page.word(0).click()
    page.find("summary").click()
    controls = page.all("button, input, select, textarea, summary, a, [role=button]")
    assert [one.get_attribute("outerHTML") for one in controls if one.is_displayed() and not one.accessible_name] == []
    assert page.find("#source").accessible_name == "German"
    assert page.find("html").get_attribute("lang") == "en"
    assert [page.find(f"#{name}").get_attribute("lang") for name in ("source", "output")] == ["de", "en"]


CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (color) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].map((v, i) => (i < 3 ? v : v / 255));
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const light = (c) => {
  const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (e) => {
  const below = e.parentElement ? ground(e.parentElement) : [255, 255, 255];
  return over(rgba(getComputedStyle(e).backgroundColor), below);
};
const ratio = (ink, paper) => {
  const [a, b] = [light(over(ink, paper)), light(paper)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const bad = [], seen = new Set();
for (const e of document.querySelectorAll("body *")) {
  const style = getComputedStyle(e);
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.closest(".unseen, .skip, .mirror, [inert]")) continue;
  const papers = [ground(e)];
  const bar = e.closest(".bar");
  if (bar) papers.push(over(rgba(getComputedStyle(bar, "::before").backgroundColor), papers[0]));
  seen.add(e.className || e.id || e.tagName);
  for (const paper of papers) {
    const found = ratio(rgba(style.color), paper);
    if (found < 4.5) bad.push([e.outerHTML, found]);
  }
}
const area = document.querySelector("#source"), ink = rgba(getComputedStyle(area).color);
for (const mark of document.querySelectorAll(".mark")) {
  const found = ratio(ink, over(rgba(getComputedStyle(mark).backgroundColor), ground(area)));
  if (found < 4.5) bad.push([mark.outerHTML, found]);
}
return [bad, [...seen]];
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(page: Any, served: Any, theme: str, tmp_path: Path) -> None:
    page.run("document.documentElement.dataset.theme = arguments[0]", theme)
    (tmp_path / "a.pdf").write_bytes(b"x")
    page.find("#file-input").send_keys(str(tmp_path / "a.pdf"))  # which is refused
    page.translate("eins zwei\n" + "drei " * served.longest)
    page.word(0).click()
    page.find("summary").click()
    page.run("document.querySelectorAll('.mark').forEach((m) => m.style.setProperty('--weight', 1))")
    bad, seen = page.run(CONTRAST)
    assert bad == []
    assert {"word", "words", "figure", "remark bad", "count over", "source-language", "bad"} <= set(seen)


def test_the_theme_button_says_what_it_does_and_the_theme_is_remembered(page: Any) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    button = page.find("#theme")
    assert (button.aria_role, button.accessible_name) == ("button", "Dark colors")
    light = page.run(ground)
    button.click()
    dark = page.run(ground)
    assert dark != light
    page.open()
    page.until(lambda: page.find("#theme").accessible_name == "Light colors")
    assert page.run(ground) == dark
    page.find("#theme").click()
    assert page.run(ground) == light


def test_dark_where_the_system_is(page: Any) -> None:
    light = page.run("return getComputedStyle(document.body).backgroundColor")
    features = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    try:
        assert page.run("return getComputedStyle(document.body).backgroundColor") != light
        page.until(lambda: page.find("#theme").accessible_name == "Light colors")  # updated by an event
    finally:
        page.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_phone_shows_everything_in_its_width(page: Any, served: Any) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        Select(page.find("#language")).select_by_value("de")  # whose words are long
        page.translate("eins zwei drei vier fünf sechs\n" + "Donaudampfschiff" * 10 + "\n" + "w" * 2 * served.longest)
        page.word(0).click()
        page.find("summary").click()
        wide = page.run(
            "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.unseen, .skip'))"
            ".filter(e => e.getBoundingClientRect().right > 360).map(e => e.outerHTML.slice(0, 100))"
        )
        assert wide == []
        assert page.run("return document.documentElement.scrollWidth") == 360
        low = page.run("return [...document.querySelectorAll('button')].filter(b => b.checkVisibility())"
                       ".filter(b => b.offsetHeight < 24).map(b => b.outerHTML)")  # fmt: skip
        assert low == []
    finally:
        page.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_script_that_runs_from_right_to_left(page: Any) -> None:
    page.translate("שלום עולם")
    edges = page.run(
        """const area = document.querySelector("#source"), row = document.querySelector("#mirror div");
        const range = document.createRange(); range.selectNodeContents(row);
        const [right, end] = [range, area].map((one) => one.getBoundingClientRect().right);
        return [getComputedStyle(area).unicodeBidi, right, end];"""
    )
    assert edges[0] == "plaintext"
    assert edges[1] == pytest.approx(edges[2], abs=1)


def test_text_is_never_html(page: Any) -> None:
    hostile = "<img src=x onerror='broken=1'> <script>broken=1</script> &amp;"
    page.translate(hostile)
    page.imported(
        """const [text] = given, words = text.split(" ");
        const [{ Output }, { Inspector }] = [await import("./static/output.js"), await import("./static/inspector.js")];
        const line = { source: text, text, prefix: text, state: "done", problem: null, result: {
          finished: false, warning: text, guard: { suspicious: true, retried: true, reasons: [text] },
          n_best: [{ text, score: -1 }, { text: text + text, score: -2 }],
          alternatives: words.map(() => [{ text, probability: 0.5 }]),
          alignment: { source_words: words, target_words: words, links: [], weights: words.map(() => [0.2, 0.2]) } } };
        const growing = { ...line, state: "running" };
        new Output(document.querySelector("#output"), {}).arrange([line, growing]);
        new Inspector({}).show(line, 0);""",
        hostile,
    )
    assert page.translation == f"{hostile}\n{hostile}"
    assert page.find("#mirror").get_attribute("textContent") == hostile
    assert page.listed("alternatives")[0][0] == hostile
    assert page.listed("others")[1][0] == hostile * 2
    assert [remark.text.count(hostile) for remark in page.all(".remark")] == [0, 1, 1] * 2
    assert page.run("return [window.broken, document.querySelectorAll('main img, main script').length]") == [None, 0]
