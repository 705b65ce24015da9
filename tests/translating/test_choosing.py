"""Choosing among candidates: single weights give the plain choices, features equal scores, batches do not matter."""

from __future__ import annotations

import time
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
from multihead.judging.analysis import analyze_pairs
from multihead.judging.score import score
from multihead.translating.choosing import FEATURES, measure
from multihead.translating.consensus import chrf_table, chrf_utility, consensus
from multihead.translating.request import USUAL, Sampling, TranslationRequest, Weights
from multihead.translating.searching import Translation

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["eins zwei drei", "", "sieben", "vier fünf", "zehn neun acht eins", "Xylophon"]
ALL = Weights(forward=0.4, reverse=0.3, agreement=0.2, length=-0.1, judge=0.2)


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
def turned(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """A model that writes from right to left, with its own vocabularies, after a few updates."""
    output = tmp_path_factory.mktemp("turned") / "run"
    short = {"updates": 6, "validate_every": 6, "log_every": 6, "vocab_size": 290, "right_to_left": True}
    numbers.learn(output, **numbers.train, **numbers.valid, **{**numbers.settings, **short})
    return Translator.load(output)


@pytest.fixture(scope="module")
def translator(trained: Path, back: Translator, turned: Translator) -> Translator:
    return Translator.load(trained).searching(beam=4).with_reverse(back).with_judge(turned)


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


def test_greedy_translations_and_samples_are_candidates_together(translator: Translator) -> None:
    """A greedy translation among samples has its score, also if no scores are requested."""
    greedy, drawing = translator.searching(beam=1), Sampling(sample=3, seed=2)
    rows = [
        [own, *drawn] for own, drawn in zip(greedy.translations(TEXTS), greedy.sample(TEXTS, 3, seed=2), strict=True)
    ]
    rows = [[one for one in row if one.finished] or row for row in rows]
    for scores in (True, False):
        asked: dict[str, Any] = {"sampling": drawing, "both": True, "scores": scores}
        for found, row in zip(measure(greedy, request(greedy, weights=ALL, **asked)), rows, strict=True):
            assert [one.text for one in found.translations] == list(dict.fromkeys(one.text for one in row))
            best = [max(one.score for one in row if one.text == other.text) for other in found.translations]
            assert found.features[:, 0].tolist() == best
            assert np.isfinite(found.features).all()
        likely = [max(row, key=lambda one: one.score).text for row in rows]
        assert chosen(greedy, weights=Weights(forward=1.0), **asked) == likely
        assert len(chosen(greedy, metric="chrf", **asked)) == len(TEXTS)


def complete_texts(row: list[Translation]) -> list[str]:
    """Different texts, of the complete translations where there are any."""
    return list(dict.fromkeys(one.text for one in [one for one in row if one.finished] or row))


def test_one_sample_is_a_candidate_beside_a_beam(translator: Translator) -> None:
    """It is the only reference, so it is chosen, whether the beam has it or not."""
    drawing = Sampling(sample=1, seed=2, temperature=1.5)
    asked: dict[str, Any] = {"sampling": drawing, "both": True, "metric": "chrf"}
    drawn = [sample for (sample,) in translator.candidates(request(translator, sampling=drawing))]
    beams = translator.n_best(TEXTS, 4)
    for found, beam, sample in zip(measure(translator, request(translator, **asked)), beams, drawn, strict=True):
        assert [one.text for one in found.translations] == complete_texts([*beam, sample])
    assert chosen(translator, **asked) == [sample.text for sample in drawn]
    assert any(sample.text not in complete_texts(beam) for beam, sample in zip(beams, drawn, strict=True))


def test_features_are_the_scores_of_the_models(translator: Translator) -> None:
    """`judging.score` scores the tokenizer's segmentation; other ones of a text are left out here."""
    reverse, judge, target = translator.reverse, translator.judge, translator.bundle.target_tokenizer
    assert reverse is not None
    assert judge is not None
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
                (third,) = score(judge, [text], [one.text])
                assert values["judge"] == pytest.approx(third.log_probability / len(third.tokens), abs=1e-5)
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


def test_an_ensemble_is_judged_by_ensembles(translator: Translator, back: Translator, turned: Translator) -> None:
    """The mean of a model with itself is the model."""
    twice = translator.ensemble([translator]).with_reverse(back.ensemble([back])).with_judge(turned.ensemble([turned]))
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


def test_a_text_that_says_one_word_again_and_again_does_not_slow_the_table_down() -> None:
    """There is a product for each number of times that two texts have an n-gram, not one has it."""
    draw = np.random.default_rng(1)
    texts = ["".join(draw.choice(list("abcdefghij "), 150)) for _ in range(50)]
    took = []
    for more in (["ha "], ["ha " * 3000]):
        began = time.process_time()
        table = chrf_table([*texts, *more])
        took.append(time.process_time() - began)
        assert table(texts[0], more[0]) == pytest.approx(chrf_utility()(texts[0], more[0]))
    assert took[1] < 10 * took[0] + 0.5


def test_incomplete_candidates_lose_to_complete_ones(translator: Translator) -> None:
    cut, both = translator.searching(max_length=2), 0
    for found, row in zip(measure(cut, request(cut, weights=ALL)), cut.n_best(TEXTS, 4), strict=True):
        assert [one.text for one in found.translations] == complete_texts(row)
        both += len({one.finished for one in row}) > 1
    assert both


def test_weights_are_text() -> None:
    assert Weights.parse("forward=0.5, length=-0.25") == Weights(forward=0.5, length=-0.25)
    assert Weights.parse(str(ALL)) == ALL
    assert str(USUAL) == "forward=1,reverse=0.2,agreement=1,judge=0.2"
    for text, said in (
        ("", "expected text"),
        ("forward", "expected text"),
        ("forward=1, forward=2", "each name once"),
        ("forwards=1", "did you mean 'forward'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Weights.parse(text)
    for wrong in ("forward=x", "reverse=-1", "length=inf"):
        with pytest.raises(ConfigurationError, match=wrong.partition("=")[0]):
            Weights.parse(wrong)


def test_what_cannot_be_chosen(translator: Translator, trained: Path, back: Translator) -> None:
    alone = Translator.load(trained)
    with pytest.raises(ConfigurationError, match="reverse needs a reverse model"):
        alone.run(request(alone, weights=USUAL))
    with pytest.raises(ConfigurationError, match="judge needs another model"):
        alone.run(request(alone, weights=Weights(judge=1)))
    with pytest.raises(ConfigurationError, match="the weights choose among several"):
        request(translator.searching(beam=1), weights=USUAL)
    with pytest.raises(ConfigurationError, match="n_best"):
        request(translator, weights=USUAL, n_best=2)
    with pytest.raises(ConfigurationError, match="both"):
        request(translator, sampling=Sampling(sample=2), both=True)
    known: Callable[[Bundle, str, str], Translator] = lambda bundle, read, written: Translator(  # noqa: E731
        replace(bundle, source_language=read, target_language=written)
    )
    forward = known(alone.bundle, "de", "en")
    assert forward.with_reverse(known(back.bundle, "en", "de")).reverse is not None
    with pytest.raises(ConfigurationError, match="the reverse model translates de to en, expected en to de"):
        forward.with_reverse(known(back.bundle, "de", "en"))
    with pytest.raises(ConfigurationError, match="the judge translates en to de, expected de to en"):
        forward.with_judge(known(back.bundle, "en", "de"))


def test_the_weight_of_a_judge_alone_is_the_choice_of_the_judge(translator: Translator) -> None:
    judge = translator.judge
    assert judge is not None
    for text, row, best in zip(
        TEXTS, translator.n_best(TEXTS, 4), chosen(translator, weights=Weights(judge=2)), strict=True
    ):
        if not text:
            continue
        complete = [one.text for one in row if one.finished] or [one.text for one in row]
        scored = score(judge, [text] * len(complete), complete)
        means = {one: each.log_probability / len(each.tokens) for one, each in zip(complete, scored, strict=True)}
        assert means[best] == pytest.approx(max(means.values()), abs=1e-5)


def test_models_of_both_orders_are_no_ensemble_and_the_turned_one_continues_nothing(
    translator: Translator, turned: Translator
) -> None:
    with pytest.raises(ConfigurationError, match="another source vocabulary"):
        turned.ensemble([translator])
    with pytest.raises(ConfigurationError, match="writes from right to left: prefixes need one"):
        turned.translate(["eins zwei"], prefixes=["one"])
    with pytest.raises(ConfigurationError, match="writes from right to left: analyses of words need one"):
        analyze_pairs(turned, ["eins zwei"], ["one two"])
    phrased = turned.translate(["eins zwei"], phrases=[["seven eight"]])[0]
    assert "seven eight" in phrased


def test_one_candidate_of_an_empty_line(translator: Translator) -> None:
    found = measure(translator, request(translator, weights=ALL))[1]
    assert [one.text for one in found.translations] == [""]
    assert np.isfinite(found.features).all()


def test_consensus_refuses_nothing_to_choose_from() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        consensus([])
