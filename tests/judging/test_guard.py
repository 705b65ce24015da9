"""The guard marks planted faults and nothing else; a retry never harms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multihead import Translator
from multihead.errors import InputError, SettingsError
from multihead.judging import guard
from multihead.judging.guard import (
    GuardedTranslation,
    _attention_received,
    _safer,
    assess,
    retry,
    translate_guarded,
)
from multihead.judging.guard_signs import GuardSettings
from multihead.judging.score import score
from multihead.text.terms import parse_terms
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation

MARK, RETRY = GuardSettings(), GuardSettings(mode="retry", beam=5, samples=3)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("setting", ["beam", "samples", "no_repeat"])
def test_what_no_search_takes_is_refused_before_any_line_is_suspicious(setting: str) -> None:
    with pytest.raises(SettingsError, match=setting):
        GuardSettings(**{setting: 1 << 40})


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@pytest.fixture(scope="module")
def pairs(numbers: Any) -> list[tuple[str, str]]:
    """Sources of four to six words and their correct translations."""
    return [pair for pair in numbers.pairs(60, 21) if len(pair[0].split()) >= 4][:9]


def loop(source: str, target: str) -> str:
    words = target.split()
    return " ".join(words[:2] * 4 + words[2:])


def cut(source: str, target: str) -> str:
    return target.split()[0]


def copied(source: str, target: str) -> str:
    return source


def planted(translator: Translator, sources: list[str], texts: list[str]) -> list[Translation]:
    """Translations with these texts and their probabilities, as a search would return them."""
    return [
        Translation(text, scored.score(1.0), True, None, scored.log_probability, len(scored.tokens))
        for text, scored in zip(texts, score(translator, sources, texts), strict=True)
    ]


@pytest.mark.parametrize("closer", [False, True])
@pytest.mark.parametrize("fault", [loop, cut, copied], ids=lambda fault: fault.__name__)
def test_planted_faults_are_marked_and_nothing_else_is(
    translator: Translator, pairs: list[tuple[str, str]], fault: Callable[[str, str], str], closer: bool
) -> None:
    sources = [source for source, _ in pairs]
    texts = [fault(*pair) if place % 3 == 0 else pair[1] for place, pair in enumerate(pairs)]
    settings = GuardSettings(closer=closer)
    judged = assess(translator, sources, planted(translator, sources, texts), settings)
    assert [each.marked for each in judged] == [place % 3 == 0 for place in range(len(pairs))]
    for each, text in zip(judged, texts, strict=True):
        assert each.translation.text == text
        assert each.marked == (each.score >= 0.5) == (each.remark is not None)
        assert not each.marked or each.reasons
        assert ("coverage" in each.signs, "surprise" in each.signs) == (closer, closer)


def test_another_sentence_is_more_suspicious_than_the_right_one(
    translator: Translator, pairs: list[tuple[str, str]]
) -> None:
    sources, texts = [source for source, _ in pairs], [target for _, target in pairs]
    right, wrong = (
        assess(translator, sources, planted(translator, sources, given), MARK)
        for given in (texts, texts[1:] + texts[:1])
    )
    assert all(one.score < other.score for one, other in zip(right, wrong, strict=True))
    assert all(other.signs["doubt"] > one.signs["doubt"] for one, other in zip(right, wrong, strict=True))
    assert sum(each.marked for each in wrong) > len(pairs) / 2


def test_words_that_were_left_out_were_never_looked_at(translator: Translator, pairs: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in pairs]
    texts = [cut(*pair) for pair in pairs]
    closer = GuardSettings(closer=True)
    short = assess(translator, sources, planted(translator, sources, texts), closer)
    right = assess(translator, sources, planted(translator, sources, [target for _, target in pairs]), closer)
    unseen = [sum(each.signs["coverage"] for each in judged) / len(judged) for judged in (short, right)]
    assert unseen[0] > unseen[1] + 0.2


@pytest.mark.parametrize("text", ["Ein Hund rennt", "Hund", "(Hunde), Hund.", "die roten Katzen und Hunde"])
def test_a_wanted_translation_is_no_further_word_of_the_source(text: str) -> None:
    """A source with terms has the same words as without, and no attention is lost."""
    words = parse_terms(["rote Katze\tginger cat", "Hund\tdog"]).annotate(text).split()
    assert len(words) > len(text.split())
    received = _attention_received([[0.5] * len(words), [1.0] * len(words)], words)
    assert len(received) == len(text.split())
    assert sum(received) == 1.5 * len(words)
    assert _attention_received([[0.5, 1.0], [2.0, 0.25]], ["Ein", "Hund"]) == [2.5, 1.25]


def test_marking_changes_no_translation_and_costs_no_search(
    translator: Translator, pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [source for source, _ in pairs] + ["", " "]
    expected = translator.translations(texts)
    assert [each.translation for each in translate_guarded(translator, texts)] == expected
    monkeypatch.setattr(Translator, "run", None)
    judged = assess(translator, texts, expected, MARK)
    assert [(each.score, each.signs, each.marked) for each in judged[-2:]] == [(0.0, {}, False)] * 2
    assert retry(translator, TranslationRequest(translator.search_settings(), texts), judged, RETRY) == judged, (
        "nothing is marked, so nothing is searched"
    )


def test_what_is_searched_again_gets_better(translator: Translator, pairs: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in pairs]
    texts = [loop(*pair) if place % 4 == 0 else pair[1] for place, pair in enumerate(pairs)]
    first = assess(translator, sources, planted(translator, sources, texts), MARK)
    results = retry(translator, TranslationRequest(translator.search_settings(), sources), first, RETRY)
    assert [each.first for each in results] == [each if each.marked else None for each in first]
    for before, after in zip(first, results, strict=True):
        if before.marked:
            assert after.score < before.score
            assert after.translation.text != before.translation.text
            assert "searched again" in after.remark
        else:
            assert after is before
    assert sum(each.marked for each in results) <= 1


def test_where_nothing_helps_the_first_stays(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, without_checks: Any
) -> None:
    """Of equal scores the earliest stays: the first translation, then that of the second search, then the samples."""
    texts = ["Xylophon qwertz"]  # unseen words, whose translation stays suspicious
    settings = GuardSettings(mode="retry", threshold=0.01, beam=2, samples=2)
    (before,) = translate_guarded(translator, texts, settings=GuardSettings(threshold=0.01))
    (after,) = translate_guarded(translator, texts, settings=settings)
    assert before.marked
    assert after.first == before
    assert after.score <= before.score
    safer = _safer(translator, settings, settings.no_repeat)
    (again,) = safer.run(TranslationRequest(safer.search_settings(), texts))
    drawn: list[Translation] = []

    def assess_equally(_: object, __: object, found: list[Translation], *___: object) -> list[GuardedTranslation]:
        drawn[:] = found
        return [GuardedTranslation(one, 0.5, (), True, {}) for one in found]

    monkeypatch.setattr(guard, "assess", assess_equally)
    for own, kept in ((0.4, before.translation), (0.5, before.translation), (0.6, again[0])):
        first = replace(before, score=own)
        request = TranslationRequest(translator.search_settings(), texts)
        with without_checks():
            (after,) = retry(translator, request, [first], settings)
        assert after.first == first
        assert after.translation == kept
        assert str(after.remark).endswith("nothing better was found") == (kept == before.translation)
    assert len({before.translation.text, again[0].text, drawn[0].text}) == 3


def test_a_second_search_keeps_what_is_demanded(translator: Translator, pairs: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in pairs[:4]]
    texts = [loop(*pair) for pair in pairs[:4]]
    first = assess(translator, sources, planted(translator, sources, texts), MARK)
    prefixes = ["ten ten", "", "seven", "two"]
    phrases = [["zero", ("one two", "two one")], [], ["five five five five"], []]
    begun = retry(
        translator, TranslationRequest(translator.search_settings(), sources, prefixes=prefixes), first, RETRY
    )
    with_phrases = retry(
        translator, TranslationRequest(translator.search_settings(), sources, phrases=phrases), first, RETRY
    )
    for found, demands in ((begun, prefixes), (with_phrases, phrases)):  # the first ones do not comply
        assert any(one.translation != one.first.translation for one, own in zip(found, demands, strict=True) if own)
    for each, prefix in zip(begun, prefixes, strict=True):
        assert each.translation.text.startswith(prefix) or each.translation == each.first.translation
    for each, wanted in zip(with_phrases, phrases, strict=True):
        for phrase in wanted if each.translation != each.first.translation else []:
            assert any(
                alternative in each.translation.text for alternative in [phrase] * isinstance(phrase, str) or phrase
            )


def test_what_the_first_search_forbade_stays_forbidden(translator: Translator) -> None:
    """The guard's own limits apply if they are stricter."""
    own = _safer(translator, RETRY, RETRY.no_repeat).search_settings()
    assert (own.no_repeat, own.beam) == (RETRY.no_repeat, RETRY.beam)
    assert 0 < own.min_factor < 1
    for asked in ({"no_repeat": 2, "min_factor": 1.5, "beam": 7}, {"no_repeat": 9, "min_factor": 0.001, "beam": 1}):
        both = _safer(translator.searching(**asked), RETRY, RETRY.no_repeat).search_settings()
        assert both.no_repeat == min(asked["no_repeat"], RETRY.no_repeat)
        assert both.min_factor == max(asked["min_factor"], own.min_factor)
        assert both.beam == max(asked["beam"], RETRY.beam)
        assert _safer(translator.searching(**asked), RETRY, 0).search_settings().no_repeat == asked["no_repeat"]


def test_phrases_of_one_line_are_nothing_to_another(translator: Translator, pairs: list[tuple[str, str]]) -> None:
    sources, texts = [source for source, _ in pairs[:4]], [loop(*pair) for pair in pairs[:4]]
    first = assess(translator, sources, planted(translator, sources, texts), MARK)
    expected = retry(translator, TranslationRequest(translator.search_settings(), sources), first, RETRY)
    for phrases in ([[], [], [], []], [["zero"], [], [], []]):
        found = retry(
            translator, TranslationRequest(translator.search_settings(), sources, phrases=phrases), first, RETRY
        )
        rest = [place for place, own in enumerate(phrases) if not own]
        assert [found[place].translation.text for place in rest] == [expected[place].translation.text for place in rest]


def test_company_changes_nothing(translator: Translator, pairs: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in pairs[:4]]
    texts = [loop(*pair) for pair in pairs[:4]]
    first = assess(translator, sources, planted(translator, sources, texts), MARK)
    whole = retry(translator, TranslationRequest(translator.search_settings(), sources), first, RETRY)
    alone = [
        retry(translator, TranslationRequest(translator.search_settings(), [source]), [own], RETRY)[0]
        for source, own in zip(sources, first, strict=True)
    ]
    assert [each.translation.text for each in whole] == [each.translation.text for each in alone]
    assert [each.score for each in whole] == pytest.approx([each.score for each in alone], abs=1e-4)


def test_a_model_that_paraphrases_may_copy(translator: Translator, pairs: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in pairs]
    same = Translator(replace(translator.bundle, source_language="de", target_language="de"), translator.folder)
    found = planted(translator, sources, sources)
    assert all("copy" in each.signs for each in assess(translator, sources, found, MARK))
    assert not any("copy" in each.signs for each in assess(same, sources, found, MARK))


def test_what_does_not_fit(translator: Translator) -> None:
    with pytest.raises(InputError, match="got 1 translations of 2 texts"):
        assess(translator, ["eins", "zwei"], [Translation("one", -1.0, True)], MARK)


def test_remarks() -> None:
    calm = GuardedTranslation(Translation("a", 0.0, True), 0.1, (), False, {})
    first = replace(calm, score=0.9, reasons=("loop: 4 words are repeated at once", "doubt: 2"), marked=True)
    assert calm.remark is None
    assert first.remark == "suspicious (0.90): loop: 4 words are repeated at once; doubt: 2"
    better = replace(calm, translation=Translation("b", 0.0, True), first=first)
    assert better.remark == f"{first.remark}; searched again (0.10)"
    assert replace(first, first=first).remark == f"{first.remark}; searched again, and nothing better was found"
