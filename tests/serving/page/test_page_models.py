"""The page of a server with several models: their languages can be chosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.support.ui import Select

from multihead.errors import FormatError
from multihead.serving.served_model import ModelSource, Pair
from multihead.translating.request import Weights

if TYPE_CHECKING:
    from multihead import Translator


def of_two_pairs(serve_page: Any, translator: Translator) -> tuple[Any, Any]:
    """The page of a server from German to English and, with translations of two words, from English to French."""
    short = translator.searching(max_length=2)
    sources = [ModelSource(lambda: translator, Pair("de", "en")), ModelSource(lambda: short, Pair("en", "fr"))]
    page, server = serve_page(sources)
    page.until(lambda: page.find("#pair").is_displayed())
    return page, server


def test_one_model_has_nothing_to_choose(page: Any) -> None:
    assert not page.find("#pair").is_displayed()
    assert page.find("#model").text == "German → English"


def test_the_languages_of_several_models_can_be_chosen(serve_page: Any, translator: Translator) -> None:
    page, server = of_two_pairs(serve_page, translator)
    choice = Select(page.find("#pair"))
    assert [option.text for option in choice.options] == ["German → English", "English → French"]
    assert choice.first_selected_option.text == "German → English"
    assert page.translate("eins zwei drei") == server.ask("eins zwei drei")["text"]
    choice.select_by_visible_text("English → French")
    wanted = server.ask("eins zwei drei", source="en", target="fr")["text"]
    assert wanted != server.ask("eins zwei drei")["text"]
    page.until(lambda: page.finished() and page.translation == wanted)
    assert page.find("#source-language").text == "English"
    assert page.find("#target-language").text == "French"


def test_models_of_the_same_languages_are_chosen_by_name(serve_page: Any, translator: Translator) -> None:
    short, pair = translator.searching(max_length=2), Pair("de", "en")
    chosen = ModelSource(lambda: short, pair, name="ensemble, choosing", weights=Weights(forward=1.0))
    page, server = serve_page([ModelSource(lambda: translator, pair), chosen])
    page.until(lambda: page.find("#pair").is_displayed())
    choice = Select(page.find("#pair"))
    assert [option.text for option in choice.options] == ["German → English", "German → English · ensemble, choosing"]
    assert page.translate("eins zwei drei") == server.ask("eins zwei drei")["text"]
    assert "one is chosen" not in page.find("#what").text
    choice.select_by_index(1)
    wanted = server.ask("eins zwei drei", model="ensemble, choosing")["text"]
    page.until(lambda: page.finished() and page.translation == wanted)
    assert wanted != server.ask("eins zwei drei")["text"]
    assert page.find("#what").text.endswith("The translation is chosen among several candidates.")
    Select(page.find("#language")).select_by_value("de")
    assert [option.text for option in choice.options][1] == "Deutsch → Englisch · Ensemble, mit Auswahl"
    assert choice.first_selected_option.text == [option.text for option in choice.options][1]


def test_a_chosen_word_is_forgotten_with_its_model(serve_page: Any, translator: Translator) -> None:
    page, server = of_two_pairs(serve_page, translator)
    page.translate("eins zwei drei")
    page.word(1).click()
    page.all("#alternatives-list button")[0].click()
    page.until(lambda: page.finished() and page.all(".word.given"))
    Select(page.find("#pair")).select_by_visible_text("English → French")
    wanted = server.ask("eins zwei drei", source="en", target="fr")["text"]
    page.until(lambda: page.finished() and page.translation == wanted)
    assert page.all(".word.given") == []


def broken() -> Translator:
    raise FormatError("damaged")


HOLD = """
const real = window.fetch;
window.fetch = (where, how) => !(where.startsWith("info") && where.includes("target=fr")) ? real(where, how)
  : new Promise((go, no) => Object.assign(window, { go: () => go(real(where, how)), no }));
"""
"""Requests to the model into French are held until `go()` or `no()`."""


def test_a_model_that_cannot_be_loaded_is_said_until_another_is_chosen(serve_page: Any, translator: Translator) -> None:
    page, _ = serve_page([ModelSource(lambda: translator, Pair("de", "en")), ModelSource(broken, Pair("en", "fr"))])
    page.until(lambda: page.find("#pair").is_displayed())
    assert page.translate("eins zwei") == "one two"
    choice = Select(page.find("#pair"))
    choice.select_by_visible_text("English → French")
    page.until(lambda: "En-fr cannot be loaded now" in page.find("#notice").text)
    assert "Trying again in" in page.find("#notice").text
    choice.select_by_visible_text("German → English")
    page.until(page.finished)
    assert not page.find("#notice").is_displayed()
    page.run(HOLD)
    choice.select_by_visible_text("English → French")
    page.until(lambda: page.run("return 'no' in window"))
    choice.select_by_visible_text("German → English")
    page.until(page.finished)
    page.run("no(new TypeError('too late'))")
    assert not page.find("#notice").is_displayed()


def test_a_document_is_translated_while_its_model_is_loaded(
    serve_page: Any, translator: Translator, tmp_path: Path
) -> None:
    sources = [
        ModelSource(lambda: translator, Pair("de", "en")), ModelSource(lambda: translator, Pair("en", "fr")),
    ]  # fmt: skip
    page, _ = serve_page(sources)
    page.until(lambda: page.find("#pair").is_displayed())
    page.run(HOLD)
    Select(page.find("#pair")).select_by_visible_text("English → French")
    page.until(lambda: page.run("return 'go' in window"))
    (tmp_path / "a.html").write_text("<p>eins</p>", encoding="utf-8")
    page.find("#file-input").send_keys(str(tmp_path / "a.html"))
    page.until(lambda: page.find("#file-choose").is_displayed())
    assert page.find("#file-state").text.startswith("a.html: done, 1 of 1 passages")
    assert page.find("#file-download").get_attribute("download") == "a_fr.html"
    page.run("go()")
    page.until(lambda: page.find("#target-language").text == "French")
