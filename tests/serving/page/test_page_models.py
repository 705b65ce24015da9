"""The page of a server with several models: their languages can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.support.ui import Select

from multihead.serving.served_model import ModelSource, Pair
from multihead.translating.request import Weights

if TYPE_CHECKING:
    from multihead import Translator


def test_one_model_has_nothing_to_choose(page: Any) -> None:
    assert not page.find("#pair").is_displayed()
    assert page.find("#model").text == "German → English"


def test_the_languages_of_several_models_can_be_chosen(serve_page: Any, translator: Translator) -> None:
    short = translator.searching(max_length=2)
    sources = [
        ModelSource(lambda: translator, Pair("de", "en")), ModelSource(lambda: short, Pair("en", "fr")),
    ]  # fmt: skip
    page, server = serve_page(sources)
    page.until(lambda: page.find("#pair").is_displayed())
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
    assert page.find("#what").text.endswith("Of several candidates, one is chosen.")
    Select(page.find("#language")).select_by_value("de")
    assert [option.text for option in choice.options][1] == "Deutsch → Englisch · Ensemble, mit Auswahl"
    assert choice.first_selected_option.text == [option.text for option in choice.options][1]
