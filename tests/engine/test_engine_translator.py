"""A translator uses the compiled search wherever it supports the request, and reports where it does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multihead import Translator
from multihead.decoding.sharpening import Sharpening
from multihead.engine.search import CompiledSearch
from multihead.errors import ConfigurationError
from multihead.kernels import native as natively
from multihead.translating.searching import Translation

TEXTS = ["eins zwei drei", "", "sieben", "vier fünf", "zehn neun acht eins", "🎉", "eins " * 9]


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@contextmanager
def plainly() -> Iterator[None]:
    """As on a machine without a compiler."""
    before = dict(natively._loaded)
    natively._loaded["decoding"] = natively.Native(None, "plain decoding: a test")
    try:
        yield
    finally:
        natively._loaded.clear()
        natively._loaded.update(before)


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many sentences each compiled search was given."""
    calls: list[int] = []
    search = CompiledSearch.search

    def counting(self: CompiledSearch, sources: Any, *given: Any, **more: Any) -> Any:
        calls.append(len(sources))
        return search(self, sources, *given, **more)

    with patch.context() as within:
        within.setattr(CompiledSearch, "search", counting)
        yield calls


def close(one: list[list[Translation]], other: list[list[Translation]], near: float = 1e-4) -> None:
    assert [[(t.text, t.finished) for t in row] for row in one] == [
        [(t.text, t.finished) for t in row] for row in other
    ]
    for ours, theirs in zip(one, other, strict=True):
        assert [t.score for t in ours] == pytest.approx([t.score for t in theirs], abs=near)


@pytest.mark.parametrize(
    "asked",
    [{}, {"length_penalty": "wu", "alpha": 0.6}, {"stopping": "ahead"}, {"stopping": "patience", "patience": 0.5}],
)
@pytest.mark.parametrize("beam", [1, 3])
def test_it_is_the_search_without_a_compiler(
    trained: Path, translator: Translator, asked: dict[str, Any], beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as calls:
        found = translator.searching(**asked).n_best(TEXTS, beam, beam=beam, min_length=1)
    assert calls == [len(TEXTS) - 1]  # all in one call
    with plainly():
        slow = Translator.load(trained)
        assert not slow.compiled
        close(found, slow.searching(**asked).n_best(TEXTS, beam, beam=beam, min_length=1))


def test_what_it_has_not_is_searched_as_ever(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as calls:
        translator.searching(no_repeat=2).translate(TEXTS)
        translator.searching(without=["one"]).translate(TEXTS)
        translator.searching(groups=2, beam=4).translate(TEXTS)
        translator.translate(TEXTS, prefixes=["one"] + [""] * 6)
        translator.translate(TEXTS, phrases=[["one"]] + [[]] * 6)
        translator.sample(TEXTS)
        assert calls == []
        translator.translate(TEXTS, prefixes=[""] * 7, phrases=[[]] * 7)
        assert len(calls) == 1


@pytest.mark.parametrize("mean", ["probabilities", "log-probabilities"])
def test_an_ensemble_is_compiled(
    trained: Path, translator: Translator, mean: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Translator.load(trained)
    other.bundle.model.output.weight.data = other.bundle.model.output.weight.data * 0.7
    with counted(monkeypatch) as calls:
        both = translator.ensemble([other], mean)
        found = both.n_best(TEXTS, 3, beam=3, min_length=1)
        close(both.searching(precision="int8").n_best(TEXTS[:3], 1, beam=3), [row[:1] for row in found[:3]], 0.05)
    assert calls == [len(TEXTS) - 1, 2]
    with plainly():
        ones = [Translator(one.bundle) for one in (translator, other)]
        slow = ones[0].ensemble([ones[1]], mean)
        assert not slow.compiled
        close(found, slow.n_best(TEXTS, 3, beam=3, min_length=1))
    other.bundle.model.output.weight.data = other.bundle.model.output.weight.data * 0.7
    assert [[t.score for t in row] for row in both.n_best(TEXTS[:1], 3, beam=3)] != [[t.score for t in found[0]]]


def test_an_ensemble_with_a_model_that_is_not_compiled_is_searched_in_pytorch(translator: Translator) -> None:
    other = Translator(translator.bundle)
    assert translator.ensemble([other]).compiled
    hooked = copy.deepcopy(translator.bundle.model)
    hooked.output.register_forward_hook(lambda *_: None)
    watched = Translator(replace(translator.bundle, model=hooked))
    both = translator.ensemble([watched])
    assert not both.compiled
    assert both.translate(TEXTS[:5]) == translator.translate(TEXTS[:5])
    with pytest.raises(ConfigurationError, match=r"model 2 of the ensemble: hooks watch .*use float32"):
        both.searching(precision="int8").translate(TEXTS[:1])


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_translate_what_they_can(translator: Translator, precision: str) -> None:
    """On a well-learned language of eleven words, rounding changes no word; the scores show that there is rounding."""
    other = translator.searching(precision=precision)
    assert other.compiled
    known = TEXTS[:5]
    ours, exact = other.translations(known), translator.translations(known)
    assert [t.text for t in ours] == [t.text for t in exact]
    assert [t.score for t in ours] == pytest.approx([t.score for t in exact], abs=0.05)
    assert [t.score for t in ours] != [t.score for t in exact]
    for search in (
        lambda: other.searching(no_repeat=2).translate(known),
        lambda: other.translate(known, prefixes=["one", "", "", "", ""]),
        lambda: other.searching(no_repeat=2).sample(known),
    ):
        with pytest.raises(ConfigurationError, match=f"precision {precision} is not available here: .*use float32"):
            search()
    with plainly(), pytest.raises(ConfigurationError, match="plain decoding: a test"):
        Translator(translator.bundle).searching(precision=precision).translate(known)


def test_samples_are_those_of_pytorch(translator: Translator) -> None:
    """Except for numbers on the border of two symbols. Empty lines have one translation, and lines are counted."""
    how: dict[str, Any] = {"seed": 3, "sharpening": Sharpening(temperature=1.5, top_p=0.98), "max_length": 14}
    counted: list[int] = []
    found = translator.sample(TEXTS, 3, **how, progress=counted.append)
    assert sum(counted) == len(TEXTS)
    with plainly():
        expected = Translator(translator.bundle).sample(TEXTS, 3, **how)
    assert [len(row) for row in found] == [len(row) for row in expected]
    pairs = [pair for rows in zip(found, expected, strict=True) for pair in zip(*rows, strict=True)]
    same = [(one, other) for one, other in pairs if one.text == other.text]
    assert len(same) >= len(pairs) - 1
    assert [one.score for one, _ in same] == pytest.approx([other.score for _, other in same], abs=1e-4)
    rounded = translator.searching(precision="int8").sample(TEXTS, 3, **how)
    assert [[t.score for t in row] for row in rounded] != [[t.score for t in row] for row in found]
    assert rounded == translator.searching(precision="int8").sample(TEXTS, 3, **how)


def test_a_translator_follows_its_weights(trained: Path) -> None:
    translator = Translator.load(trained)
    before = translator.translations(TEXTS)
    translator.bundle.model.output.weight.data = translator.bundle.model.output.weight.data * 0.5
    after = translator.translations(TEXTS)
    assert [t.score for t in after] != [t.score for t in before]
    with plainly():
        again = Translator(translator.bundle).translations(TEXTS)
    close([after], [again])


def test_attention_is_of_the_translation_that_translate_gives(translator: Translator) -> None:
    assert translator.attention(TEXTS[0]).translation == translator.translate(TEXTS[:1])[0]


def test_a_draft_changes_nothing_but_the_steps(translator: Translator, trained: Path) -> None:
    drafted = translator.with_draft(Translator.load(trained))
    greedy = {"beam": 1, "max_length": 12}
    assert drafted.translations(TEXTS, **greedy) == translator.translations(TEXTS, **greedy)
    assert drafted.translations(TEXTS) == translator.translations(TEXTS)
    alone = translator.searching(beam=1).with_draft(Translator.load(trained, lazily=True))
    assert alone.engine is not None
    assert alone.engine.together.draft is not None
    assert alone.sample(TEXTS[:1], 2) == translator.sample(TEXTS[:1], 2)
