"""The page of a server with several models: their languages can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.support.ui import Select

from multihead.serving.models import ModelSource, Pair

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
