"""The page in English, Chinese, German and French: complete, chosen by the browser or the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.support.ui import Select

from multihead.judging.guard_signs import SIGNS, reasons
from multihead.serving.openapi import ERROR_EXAMPLES

CODES = ("en", "zh", "de", "fr")
SENT = ("error_", "sign_", "use: ")
"""Texts that come from the server in English."""


def test_every_text_is_there_in_every_language(page: Any) -> None:
    """With the same placeholders; English has no entries for texts that come from the server in English."""
    texts = page.imported(
        """const all = {};
        for (const code of given[0]) all[code] = (await import(`./static/${code}.js`)).default;
        return all;""",
        CODES,
    )

    def own(code: str) -> dict[str, set[str]]:
        kept = {name: text for name, text in texts[code].items() if not name.startswith(SENT)}
        return {name: {part.split("}")[0] for part in text.split("{")[1:]} for name, text in kept.items()}

    assert {code: own(code) for code in CODES} == dict.fromkeys(CODES, own("en"))
    words = {f"error_{word}" for words in ERROR_EXAMPLES.values() for word in words}
    others = [{name for name in texts[code] if name not in own("en")} for code in CODES[1:]]
    assert others[0] == others[1] == others[2]
    assert {name for name in others[0] if name.startswith("error_")} <= words
    assert {name for name in others[0] if name.startswith("sign_")} == {f"sign_{name}" for name in SIGNS}
    assert all(text.strip() for code in CODES for text in texts[code].values())


def test_the_elements_have_the_english_texts(page: Any) -> None:
    changed = page.imported(
        """const { writeTexts } = await import("./static/language.js");
        const html = await (await fetch("./")).text();
        const [before, after] = [0, 1].map(() => new DOMParser().parseFromString(html, "text/html"));
        writeTexts(after);
        const named = [...before.querySelectorAll("[data-name]")].every((one) => one.ariaLabel);
        return [before.body.innerHTML === after.body.innerHTML, named];"""
    )
    assert changed == [True, True]


@pytest.fixture
def accept(page: Any) -> Iterator[Any]:
    """Opens the page in a browser with these languages."""
    agent = page.run("return navigator.userAgent")

    def accept(languages: str) -> None:
        page.chrome.execute_cdp_cmd("Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": languages})
        page.open()
        page.until(lambda: "→" in page.chrome.title)

    yield accept
    page.chrome.execute_cdp_cmd("Emulation.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": "en-US"})


@pytest.mark.parametrize(
    ("languages", "lang", "title", "settings"),
    [
        ("de-AT,en", "de", "Deutsch → Englisch", "Einstellungen"),
        ("ja,fr-CA,de", "fr", "allemand → anglais", "Réglages"),
        ("zh-TW,zh", "zh-Hans", "德语 → 英语", "设置"),
        ("ja", "en", "German → English", "Settings"),
    ],
)
def test_the_browsers_language_is_that_of_the_page(
    page: Any, accept: Any, languages: str, lang: str, title: str, settings: str
) -> None:
    accept(languages)
    assert page.find("html").get_attribute("lang") == lang
    assert page.find("#model").text == title
    assert page.find("summary span").text == settings


def test_reasons_of_the_guard_are_translated(page: Any) -> None:
    """As the guard writes them; other messages of the guard stay unchanged."""
    said = reasons({"copy": 0.83, "length": 3.14, "loop": 3.0})
    shown = page.imported(
        """const [{ remarksOn }, { useLanguage }] =
          [await import("./static/output.js"), await import("./static/language.js")];
        useLanguage("de");
        return remarksOn({ guard: { suspicious: true, reasons: [...given[0], "other: $& {value}"] } });""",
        said,
    )
    assert said[0] == "copy: 83% of its words are copied from the source"
    german = ["83\xa0% der Wörter sind die des Ausgangstexts", "3 Wörter werden gleich noch einmal gesagt"]
    german += ["die Länge weicht um das 3,1fache der üblichen Streuung ab", "other: $& {value}"]
    assert shown == [["Zweifelhaft: " + "; ".join(german) + ".", True]]


def test_a_language_is_chosen_and_remembered(page: Any, served: Any) -> None:
    page.translate("eins zwei")
    page.word(0).click()
    Select(page.find("#language")).select_by_visible_text("Deutsch")
    assert page.translation == "one two"  # no request is sent again
    assert page.find("#source-language").text == "Deutsch"
    assert page.find("#settings-summary").text.startswith("Beam ")
    assert page.find("#language").accessible_name == "Sprache dieser Seite"
    assert page.find("#theme").text == "Dunkle Farben"
    page.word(1).click()
    assert page.find("#looked h2").text == "Wohin two geblickt hat"  # the quotation marks are those of the style
    assert page.listed("looked")[0][1].endswith("\xa0%")
    assert "," in page.listed("others")[0][1]
    page.translate("eins\n" + "drei " * served.longest)
    assert page.find(".remark").text.startswith(f"Zu lang: Angenommen werden höchstens {served.longest} Zeichen")
    assert page.find(".way").text == "Noch einmal versuchen"
    page.open()
    page.until(lambda: page.chrome.title == "Deutsch → Englisch · multihead")
    assert Select(page.find("#language")).first_selected_option.text == "Deutsch"


@pytest.mark.parametrize("code", CODES[1:])
def test_nothing_is_left_in_english(page: Any, code: str) -> None:
    """Every text node differs from English, except for nodes that are not the page's own text."""
    page.translate("eins zwei drei")
    page.word(0).click()
    page.find("summary").click()
    script = """const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    const kept = "noscript, .brand, #mirror, #output, #language, .bar, q, kbd, #what, .count";
    while (walk.nextNode()) {
      const { data, parentElement } = walk.currentNode;
      if (data.trim() && !parentElement.closest(kept)) found.push(data.trim());
    }
    return found;"""
    english = set(page.run(script))
    Select(page.find("#language")).select_by_value(code)
    page.word(0).click()
    assert {text for text in page.run(script) if text in english} <= {"Beam", "Token"}
