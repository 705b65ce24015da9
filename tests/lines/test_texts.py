"""Requests beyond a plain search: the consensus of several, ensembles, and options that exclude each other."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from multihead import Translator
from multihead.decoding.search import Search
from multihead.decoding.sharpening import Sharpening
from multihead.errors import ConfigurationError
from multihead.judging.guard_signs import GuardSettings
from multihead.judging.selftest import NetworkWrapper
from multihead.lines.windows import LineOptions, translate_texts
from multihead.text.tokenizer import Tokenizer
from multihead.translating.consensus import chrf_utility, consensus
from multihead.translating.lengths import most_tokens
from multihead.translating.request import Sampling, TranslationRequest
from multihead.translating.searching import Translation

TEXTS = ["eins zwei drei", "", "sieben", "zehn neun acht eins"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@settings(max_examples=60)
@given(hypothesis=st.text("abc d我é", max_size=25), reference=st.text("abc d我é", max_size=25))
def test_chrf_is_sacrebleus(hypothesis, reference):
    expected = CHRF().sentence_score(hypothesis, [reference]).score
    assert chrf_utility()(hypothesis, reference) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_consensus_is_the_best_on_average_over_the_others(metric):
    texts = ["a dog runs fast", "a dog runs quickly", "the dog runs fast", "a cat", "a dog runs fast"]
    scores = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}[metric]
    candidates = [Translation(text, 0.0, True, None, -float(place)) for place, text in enumerate(texts)]
    means = [sum(scores.sentence_score(one, [two]).score for two in texts) for one in texts]
    assert consensus(candidates, metric) is candidates[means.index(max(means))]
    # A hypothesis with nearly all of the probability is its own consensus.
    sure = [Translation(text, 0.0, True, None, 0.0 if text == "a cat" else -60.0) for text in texts]
    assert consensus(sure, metric, drawn=False).text == "a cat"


def test_the_metric_chooses_among_samples_or_the_beam(translator):
    asked = TranslationRequest(
        translator.search_settings(), TEXTS, sampling=Sampling(sample=6, epsilon=0.02, seed=3), metric="chrf"
    )
    drawn = translator.sample(TEXTS, 6, seed=3, sharpening=Sharpening(epsilon=0.02))
    assert [each.translations for each in translate_texts(translator, asked)] == [[consensus(row)] for row in drawn]
    beam = TranslationRequest(translator.search_settings(), TEXTS, metric="bleu")
    found = translator.n_best(TEXTS, translator.search_settings().beam)
    expected = [[consensus(row, "bleu", drawn=False)] for row in found]
    assert [each.translations for each in translate_texts(translator, beam)] == expected


def test_settings_of_samples_reach_them(translator):
    limits = {"temperature": 2.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "epsilon": 0.001}
    asked = TranslationRequest(translator.search_settings(), TEXTS, sampling=Sampling(sample=3, seed=5, **limits))
    expected = translator.sample(TEXTS, 3, seed=5, sharpening=Sharpening(**limits))
    assert [each.translations for each in translate_texts(translator, asked)] == expected


def test_each_of_several_translations_is_guarded(translator):
    asked = TranslationRequest(translator.search_settings(), TEXTS, n_best=3)
    found = translate_texts(translator, asked, GuardSettings())
    assert [each.translations for each in found] == translator.n_best(TEXTS, 3)
    assert [[g.translation for g in each.guarded] for each in found] == [each.translations for each in found]


def close(one, other):
    assert [(t.text, t.finished, t.tokens) for t in one] == [(t.text, t.finished, t.tokens) for t in other]
    assert [t.score for t in one] == pytest.approx([t.score for t in other], abs=1e-4)


@pytest.mark.parametrize("mean", ["probabilities", "log-probabilities"])
def test_a_model_with_itself_is_the_model(translator, trained, mean):
    together = translator.ensemble([Translator.load(trained), translator], mean)
    assert together.compiled == translator.compiled
    for settings_of in ({"beam": 1}, {"beam": 4}):
        close(together.translations(TEXTS, **settings_of), translator.translations(TEXTS, **settings_of))
    close(*[[t for row in each.sample(TEXTS, 3, seed=2) for t in row] for each in (together, translator)])
    searching = together.searching(beam=4, no_repeat=1)
    close(searching.translations(TEXTS), translator.searching(beam=4, no_repeat=1).translations(TEXTS))


def test_different_models_as_one(translator, trained):
    """Same vocabulary, other weights: in either order they form the same ensemble, which differs from both models."""
    other, generator = Translator.load(trained), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.bundle.model.parameters():
            weight.mul_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
    for mean in ("probabilities", "log-probabilities"):
        both = [
            one.ensemble([two], mean).translations(TEXTS) for one, two in ((translator, other), (other, translator))
        ]
        close(*both)
        for single in (translator, other):
            alone = [t.score for t in single.translations(TEXTS)]
            assert [t.score for t in both[0]] != pytest.approx(alone, abs=1e-3)


def test_an_ensemble_of_ensembles_has_all_their_models(translator, trained):
    others = [Translator.load(trained), Translator.load(trained)]
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for other in others:
            for weight in other.bundle.model.parameters():
                weight.mul_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
    one, two = others
    expected = translator.ensemble(others).translations(TEXTS)
    close(translator.ensemble([one.ensemble([two])]).translations(TEXTS), expected)
    close(translator.ensemble([one]).ensemble([two]).translations(TEXTS), expected)
    fewer = [t.score for t in translator.ensemble([one]).translations(TEXTS)]
    assert fewer != pytest.approx([t.score for t in expected], abs=1e-4)


class Short(NetworkWrapper):
    """A model that distinguishes only seven positions."""

    @property
    def max_positions(self):
        return 7


def test_an_ensemble_reaches_as_far_as_its_shortest(translator):
    short = Translator(replace(translator.bundle, model=Short(translator.bundle.model)), translator.folder)
    together = translator.ensemble([short])
    assert (translator.reach, short.reach, together.reach) == (None, 7, 7)
    assert most_tokens(together.lengths, together.reach) == (7, 7)
    (found,) = together.translations(["eins zwei drei vier fünf sechs sieben acht"], beam=1)
    assert "learned 7 positions" in found.warning


def test_an_ensemble_needs_one_vocabulary(translator, numbers):
    with pytest.raises(ConfigurationError, match="needs at least two models"):
        translator.ensemble([])
    tokenizer = Tokenizer.learn(["eins zwei"] * 3, 300)
    other = Translator(replace(translator.bundle, target_tokenizer=tokenizer))
    with pytest.raises(ConfigurationError, match=r"model 3 of the ensemble has another target vocabulary \(SHA-256 "):
        translator.ensemble([translator, other])


def test_the_least_length_follows_the_source(translator):
    texts = ["eins zwei drei vier fünf", "eins"]
    tokens = [len(translator.bundle.source_tokenizer.encode(text)) + 1 for text in texts]
    for compiled in ({}, {"no_repeat": 9}):
        found = translator.searching(min_factor=1.5, **compiled).translations(texts)
        assert all(t.tokens - 1 >= int(1.5 * count) for t, count in zip(found, tokens, strict=True))
        (short,) = translator.searching(min_factor=50.0, max_length=4, **compiled).translations(texts[:1])
        assert short.tokens == 4, "there is always room for the end"


def line_options(search: Search, **wishes: Any) -> LineOptions:
    names = {field.name for field in fields(LineOptions)} & wishes.keys()
    own = {name: wishes.pop(name) for name in names}
    return LineOptions(TranslationRequest(search, **wishes), **own)


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"n_best": 2, "metric": "chrf"}, "n_best applies to a search"),
        ({"n_best": 2, "sampling": Sampling(sample=2)}, "n_best applies to a search"),
        ({"sampling": Sampling(), "metric": "chrf"}, "chooses among several"),
        ({"n_best": 2, "guard": GuardSettings(mode="retry")}, "not for several"),
        ({"sampling": Sampling(sample=2), "guard": GuardSettings(mode="retry")}, "not for several"),
        ({"max_source": 1}, "max_source"),
        ({"max_source": 9, "max_sentence": 8}, "max_sentence"),
    ],
)
def test_what_excludes_what(wishes, said):
    with pytest.raises(ConfigurationError, match=said):
        line_options(Search(beam=3), **wishes)


def test_samples_know_no_phrases(translator):
    asked = TranslationRequest(translator.search_settings(), TEXTS, sampling=Sampling(sample=2))
    with pytest.raises(ConfigurationError, match="cannot be combined with samples"):
        translate_texts(translator, replace(asked, phrases=[["one"], [], [], []]))
