"""Every kind of search on text: forbidden text does not appear, required text does, batches do not matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from multihead import Translator
from multihead.decoding.beam import beam_search
from multihead.decoding.lexical import table_size
from multihead.decoding.ranking import Ahead, Patience
from multihead.decoding.restrictions import NoRepeat
from multihead.decoding.risk import least_risk
from multihead.decoding.search import Search, wu
from multihead.decoding.sharpening import Sharpening
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, InputError
from multihead.translating import searching
from multihead.translating import translator as module
from multihead.translating.searching import search_batch, symbols_of

TEXTS = ["eins zwei drei", "", "sieben", "vier fünf", "zehn neun acht eins"]


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


def close(one, other):
    """Equal texts; scores equal up to rounding."""
    assert [[(t.text, t.finished) for t in row] for row in one] == [
        [(t.text, t.finished) for t in row] for row in other
    ]
    scores = [[t.score for row in rows for t in row] for rows in (one, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"length_penalty": "wu"}, {"penalty": wu}),
        ({"stopping": "ahead"}, {"stop": Ahead()}),
        ({"stopping": "patience", "patience": 0.5}, {"stop": Patience(0.5)}),
        ({"no_repeat": 1}, {"restrictions": [NoRepeat(1)]}),
    ],
)
def test_settings_reach_the_search(translator, asked, given):
    encoded = [translator.bundle.source_tokenizer.encode(text) for text in TEXTS if text]
    source, lengths = translator.collate(encoded)
    limits = [translator.bundle.generation.limit(int(length)) for length in lengths]
    task = SearchTask(symbols_of(translator.bundle.target_tokenizer), max_lengths=limits, n_best=4, **given)
    found = beam_search(translator.bundle.model, source, lengths, task, Search(beam=4, alpha=0.8))
    decode = translator.bundle.target_tokenizer.decode
    expected = [[(decode(h.tokens), pytest.approx(h.score, abs=1e-4)) for h in row] for row in found]
    got = translator.searching(**asked).n_best(TEXTS, 4, beam=4, alpha=0.8)
    assert [[(t.text, t.score) for t in row] for row, text in zip(got, TEXTS, strict=True) if text] == expected
    if next(iter(given)) != "stop":
        assert got != translator.n_best(TEXTS, 4, beam=4, alpha=0.8)


def test_a_translator_that_searches_otherwise_leaves_the_first_alone(translator):
    other = translator.searching(beam=2, length_penalty="wu")
    again = other.searching(no_repeat=2)
    assert again.search_settings().length_penalty == "wu"
    assert again.search_settings(max_length=9).no_repeat == 2
    assert again.search_settings().beam == 2
    assert translator.search_settings() == translator.bundle.generation


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("length_penalty", ["power", "wu"])
def test_greedy_scores_are_of_the_penalty(translator, beam, length_penalty):
    searching = translator.searching(length_penalty=length_penalty, alpha=0.7)
    patient = searching.searching(stopping="patience")
    close([searching.translations(TEXTS, beam=1)], [patient.translations(TEXTS, beam=1)])
    assert searching.translations(TEXTS, beam=beam)[0].score < 0


@pytest.mark.parametrize("beam", [1, 4])
def test_a_forbidden_word_does_not_come_out(translator, beam):
    usual = translator.translate(TEXTS, beam=beam)
    words = usual[0].split()[:2]
    other = translator.searching(without=words)
    found = [t.text for row in other.n_best(TEXTS, beam, beam=beam) for t in row]
    ids = [tuple(translator.bundle.target_tokenizer.encode(word)) for word in words]
    for text in found:
        written = tuple(translator.bundle.target_tokenizer.encode(text))
        assert not any(written[i : i + len(part)] == part for part in ids for i in range(len(written)))
    assert other.translate(TEXTS, beam=beam)[0] != usual[0]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_begins_as_it_is_told(translator, beam):
    prefixes = ["seven eight", "", "", "Xylophon ", "one"]
    found = translator.n_best(TEXTS, beam, beam=beam, prefixes=prefixes, max_length=20)
    for prefix, row in zip(prefixes, found, strict=True):
        assert row
        assert all(t.text.startswith(prefix.rstrip()) for t in row)
    drawn = translator.sample(TEXTS, 3, prefixes=prefixes, max_length=20)
    assert all(t.text.startswith(p.rstrip()) for p, row in zip(prefixes, drawn, strict=True) for t in row)
    alone = [
        translator.n_best([t], beam, beam=beam, prefixes=[p], max_length=20)[0]
        for t, p in zip(TEXTS, prefixes, strict=True)
    ]
    close(found, alone)


@pytest.mark.parametrize("beam", [1, 5])
def test_phrases_appear(translator, beam):
    phrases = [["seven", "four five"], [], [("eight", "nine")], ["three"], []]
    found = translator.n_best(TEXTS, beam, beam=beam, phrases=phrases, max_length=16)
    for wanted, row in zip(phrases, found, strict=True):
        for translation in row:
            for phrase in wanted:
                alternatives = [phrase] if isinstance(phrase, str) else phrase
                assert any(alternative in translation.text for alternative in alternatives)
    alone = [
        translator.n_best([t], beam, beam=beam, phrases=[p], max_length=16)[0]
        for t, p in zip(TEXTS, phrases, strict=True)
    ]
    close(found, alone)
    close(
        [translator.translations(TEXTS, beam=3, phrases=[[]] * 5)],
        [translator.translations(TEXTS, beam=3)],
    )


def test_tables_of_phrases_stay_small(translator, monkeypatch):
    """A sentence with many phrases does not share its batch with many others, which changes nothing."""
    phrases = [["seven", "four five"], [], ["two"], [("eight", "nine")], []]
    expected = translator.n_best(TEXTS, 3, beam=3, phrases=phrases, max_length=16)
    batches = []
    monkeypatch.setattr(module, "search_batch", lambda *given: batches.append(given[-1]) or search_batch(*given))
    for most in (1, 600, 1 << 24):
        monkeypatch.setattr(searching, "_MOST_STATES", most)
        close(translator.n_best(TEXTS, 3, beam=3, phrases=phrases, max_length=16), expected)
        assert all(len(own) * max(map(table_size, own)) <= most or len(own) == 1 for own in batches)
        assert sum(map(len, batches)) == 4
        batches.clear()


def test_groups_differ_and_one_is_beam_search(translator):
    diverse = translator.searching(beam=6, groups=3, diversity=5.0)
    found = diverse.n_best(TEXTS, 3)
    firsts = [{text.text.split(" ")[0] for text in row} for row, text in zip(found, TEXTS, strict=True) if text]
    assert any(len(words) > 1 for words in firsts)
    close(translator.searching(beam=4, groups=1, diversity=5.0).n_best(TEXTS, 4), translator.n_best(TEXTS, 4, beam=4))


def test_samples_do_not_depend_on_batch_or_order(translator):
    whole = translator.sample(TEXTS, 3, seed=4)
    assert [len(row) for row in whole] == [3, 1, 3, 3, 3]
    close(translator.sample(TEXTS[::-1], 3, seed=4)[::-1], whole)
    close([translator.sample([text], 3, seed=4, batch_tokens=1)[0] for text in TEXTS], whole)
    close([row[:1] for row in whole], translator.sample(TEXTS, seed=4))
    assert translator.sample(TEXTS, 3, seed=5) != whole
    assert translator.sample(TEXTS, 3, seed=-1) == translator.sample(TEXTS, 3, seed=2**64 - 1) != whole
    twice = translator.sample(["eins zwei"] * 2, 5, keys=[1, 2], sharpening=Sharpening(temperature=3.0))
    assert twice[0] != twice[1]


def test_the_surest_sample_is_greedy(translator):
    close(
        translator.sample(TEXTS, sharpening=Sharpening(top_k=1)),
        [[translation] for translation in translator.translations(TEXTS, beam=1)],
    )


def test_samples_can_be_chosen_from(translator):
    """With exact match as the utility, the most frequent sample wins."""
    (drawn,) = translator.sample(["eins zwei drei"], 9, seed=1)
    texts = [translation.text for translation in drawn]
    assert texts[least_risk(texts, lambda h, r: float(h == r))] == max(texts, key=texts.count)


def test_what_cannot_be_asked(translator):
    for settings, said in (
        ({"beam": 4, "groups": 3}, "groups must divide the beam, got 3 groups and a beam of 4"),
        ({"stopping": "soon"}, "stopping"),
        ({"patience": 0.0}, "patience"),
        ({"no_repeat": -1}, "no_repeat"),
        ({"without": ["eins", " "]}, "has no characters"),
        ({"penalty": "wu"}, "no setting 'penalty'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            translator.searching(**settings)
    both = {"prefixes": ["one", *[""] * 4], "phrases": [["two"], *[[]] * 4]}
    room = 1 + max(len(translator.bundle.target_tokenizer.encode(word)) for word in ("one", "two"))  # for one of them
    for given, error, said in (
        ({"prefixes": ["a"]}, InputError, "prefixes: expected one for each of 5 texts, got 1"),
        ({"phrases": [[]] * 4}, InputError, "phrases: expected one for each of 5 texts, got 4"),
        ({"phrases": ["one", "", "", "", ""]}, InputError, "phrases: expected a list of phrases for each text"),
        ({"phrases": [[], [], ["one"] * 30, [], []]}, ConfigurationError, "text 3: its 30 phrases .* are too many"),
        ({"prefixes": ["", "a", "", "", ""]}, InputError, "text 2 is empty, so it cannot have prefixes"),
        ({"phrases": [["a", ""], [], [], [], []]}, InputError, "text 1: a phrase .* no characters"),
        ({"phrases": [["a", ()], [], [], [], []]}, InputError, "text 1: a phrase .* no characters"),
        ({"prefixes": ["", "", "", "one two three", ""], "max_length": 3}, ConfigurationError, "text 4: its prefix"),
        ({"phrases": [[], [], ["one two three"], [], []], "max_length": 3}, ConfigurationError, "text 3: its phrases"),
        (both | {"max_length": room}, ConfigurationError, "text 1: its prefix and phrases and the end symbol need"),
    ):
        with pytest.raises(error, match=said):
            translator.translate(TEXTS, **given)
    with pytest.raises(ConfigurationError, match="cannot be combined with groups"):
        translator.searching(beam=4, groups=2).translate(["eins"], phrases=[["one"]])
    with pytest.raises(InputError, match=r"translate\(\[text\]\)"):
        translator.sample("eins")
    with pytest.raises(InputError, match="keys: expected one for each of 5 texts, got 1"):
        translator.sample(TEXTS, keys=[1])
    with pytest.raises(ConfigurationError, match="at least 1 sample"):
        translator.sample(TEXTS, 0)
