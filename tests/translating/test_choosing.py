"""Choosing among candidates: corners are the plain choices, features are the scores, batches do not matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead import Translator
from multihead.bundle import Bundle
from multihead.errors import ConfigurationError
from multihead.judging.score import score
from multihead.translating.choosing import FEATURES, measure
from multihead.translating.consensus import chrf_table, chrf_utility, consensus
from multihead.translating.request import CHANNEL, Sampling, TranslationRequest, Weights

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["eins zwei drei", "", "sieben", "vier fünf", "zehn neun acht eins", "Xylophon"]
ALL = Weights(forward=0.4, reverse=0.3, agreement=0.2, length=-0.1)


@pytest.fixture(scope="module")
def back(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """A model of the opposite direction with its own vocabularies, after a few updates."""
    output = tmp_path_factory.mktemp("back") / "run"
    turned = {"source": numbers.train["target"], "target": numbers.train["source"]}
    turned |= {"valid_source": numbers.valid["valid_target"], "valid_target": numbers.valid["valid_source"]}
    short = {"updates": 6, "validate_every": 6, "log_every": 6, "vocab_size": 290}
    numbers.learn(output, **{**numbers.settings, **short, **turned})
    return Translator.load(output)


@pytest.fixture(scope="module")
def translator(trained: Path, back: Translator) -> Translator:
    return Translator.load(trained).searching(beam=4).with_reverse(back)


def request(translator: Translator, **asked: Any) -> TranslationRequest:
    return TranslationRequest(translator.search_settings(), TEXTS, **asked)


def chosen(translator: Translator, **asked: Any) -> list[str]:
    return [row[0].text for row in translator.run(request(translator, **asked))]


def test_the_weight_of_the_search_alone_is_the_choice_of_the_search(translator: Translator) -> None:
    plain = [row[0].text for row in translator.n_best(TEXTS, 4)]
    assert chosen(translator, weights=Weights(forward=2.0)) == plain
    penalized = translator.searching(alpha=0.3, length_penalty="wu")
    assert chosen(penalized, weights=Weights(forward=1.0)) == [row[0].text for row in penalized.n_best(TEXTS, 4)]


def test_the_weight_of_agreement_alone_is_minimum_bayes_risk(translator: Translator) -> None:
    """Of a beam, of samples, and of the hypotheses of both with the samples as references."""
    drawing = Sampling(sample=5, seed=2)
    for asked in ({}, {"sampling": drawing}, {"sampling": drawing, "both": True}):
        assert chosen(translator, weights=Weights(agreement=3.0), **asked) == chosen(translator, metric="chrf", **asked)
    both = chosen(translator, metric="chrf", sampling=drawing, both=True)
    drawn = translator.candidates(request(translator, sampling=drawing))
    beams = translator.n_best(TEXTS, 4)
    utility = chrf_utility()
    for text, beam, samples in zip(both, beams, drawn, strict=True):
        rated = [sum(utility(one.text, other.text) for other in samples) for one in [*beam, *samples]]
        (place, *_) = [place for place, one in enumerate([*beam, *samples]) if one.text == text]
        assert rated[place] == pytest.approx(max(rated), abs=1e-9)


def test_features_are_the_scores_of_both_models(translator: Translator) -> None:
    """`judging.score` scores the tokenizer's segmentation; other ones of a text are left out here."""
    reverse, target = translator.reverse, translator.bundle.target_tokenizer
    assert reverse is not None
    compared = 0
    for text, found in zip(TEXTS, measure(translator, request(translator, weights=ALL)), strict=True):
        for one, row in zip(found.translations, found.features, strict=True):
            values = dict(zip(FEATURES, row.tolist(), strict=True))
            (own,), (other,) = score(translator, [text], [one.text]), score(reverse, [one.text], [text])
            search = translator.search_settings()
            if text and own.tokens:
                read = len(translator.bundle.source_tokenizer.encode(text)) + 1
                assert values["length"] == one.tokens / read
                mean = other.log_probability / len(other.tokens)
                assert values["reverse"] == pytest.approx(mean, abs=1e-5)
            if one.finished and one.tokens == len(target.encode(one.text)) + 1 and one.text:
                compared += 1
                assert values["forward"] == pytest.approx(own.score(search.alpha, search.penalty), abs=1e-4)
            assert 0 <= values["agreement"] <= 1
    assert compared > 5


def test_sentences_together_and_one_by_one(translator: Translator) -> None:
    asked = request(translator, weights=ALL, sampling=Sampling(sample=3), both=True, batch_tokens=40)
    together = measure(translator, asked)
    for place, found in enumerate(together):
        (alone,) = measure(translator, replace(asked.select([place]), batch_tokens=4096))
        assert [one.text for one in alone.translations] == [one.text for one in found.translations]
        assert alone.features == pytest.approx(found.features, abs=1e-4)
    assert [row[0].text for row in translator.run(asked)] == [each.best(ALL).text for each in together]


def test_an_ensemble_is_reversed_by_an_ensemble(translator: Translator, back: Translator) -> None:
    """The mean of a model with itself is the model."""
    twice = translator.ensemble([translator]).with_reverse(back.ensemble([back]))
    one, two = (measure(each, request(each, weights=ALL)) for each in (translator, twice))
    for own, other in zip(one, two, strict=True):
        assert [each.text for each in own.translations] == [each.text for each in other.translations]
        assert own.features == pytest.approx(other.features, abs=1e-4)
    rounded = twice.searching(precision="bfloat16")
    assert len(chosen(rounded, weights=ALL)) == len(TEXTS) or not rounded.compiled


@settings(max_examples=30)
@given(st.lists(st.text("abc d我é", max_size=20), min_size=1, max_size=5))
def test_the_table_of_chrf_is_chrf(texts: list[str]) -> None:
    table, utility = chrf_table(texts), chrf_utility()
    for one in texts:
        assert [table(one, other) for other in texts] == pytest.approx([utility(one, other) for other in texts])


def test_incomplete_candidates_lose_to_complete_ones(translator: Translator) -> None:
    cut = translator.searching(max_length=2)
    for found in measure(cut, request(cut, weights=ALL)):
        assert len({one.finished for one in found.translations}) == 1
        assert len({one.text for one in found.translations}) == len(found.translations)


def test_weights_are_text() -> None:
    assert Weights.parse("forward=0.5, length=-0.25") == Weights(forward=0.5, length=-0.25)
    assert Weights.parse(str(ALL)) == ALL
    assert str(CHANNEL) == "forward=1,reverse=0.25"
    for text, said in (("", "expected text"), ("forward", "expected text"), ("forwards=1", "did you mean 'forward'")):
        with pytest.raises(ConfigurationError, match=said):
            Weights.parse(text)
    for wrong in ("forward=x", "reverse=-1", "length=inf"):
        with pytest.raises(ConfigurationError, match=wrong.partition("=")[0]):
            Weights.parse(wrong)


def test_what_cannot_be_chosen(translator: Translator, trained: Path, back: Translator) -> None:
    alone = Translator.load(trained)
    with pytest.raises(ConfigurationError, match="reverse needs a reverse model"):
        alone.run(request(alone, weights=CHANNEL))
    with pytest.raises(ConfigurationError, match="the weights choose among several"):
        request(translator.searching(beam=1), weights=CHANNEL)
    with pytest.raises(ConfigurationError, match="n_best"):
        request(translator, weights=CHANNEL, n_best=2)
    with pytest.raises(ConfigurationError, match="both"):
        request(translator, sampling=Sampling(sample=2), both=True)
    known: Callable[[Bundle, str, str], Translator] = lambda bundle, read, written: Translator(  # noqa: E731
        replace(bundle, source_language=read, target_language=written)
    )
    forward = known(alone.bundle, "de", "en")
    assert forward.with_reverse(known(back.bundle, "en", "de")).reverse is not None
    with pytest.raises(ConfigurationError, match="the reverse model translates de to en, expected en to de"):
        forward.with_reverse(known(back.bundle, "de", "en"))


def test_one_candidate_of_an_empty_line(translator: Translator) -> None:
    found = measure(translator, request(translator, weights=ALL))[1]
    assert [one.text for one in found.translations] == [""]
    assert np.isfinite(found.features).all()


def test_consensus_refuses_nothing_to_choose_from() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        consensus([])
