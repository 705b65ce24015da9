"""Terms in sources: where they are found, how they are annotated, and which forms of a word count."""

from __future__ import annotations

import pickle
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, DataError
from multihead.text import terms
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.placeholders import PlaceholderTokenizer, learn_with_placeholders, parse_rules
from multihead.text.terms import MOST, OF_SOURCES, Term, Terms, for_sources, is_form, knows_terms, parse_terms
from multihead.text.tokenizer import Tokenizer
from multihead.text.user_symbols import learn_with_symbols

LIST = parse_terms(
    [
        *("# animals", "", "Hund\tdog", "große Hunde\thound\thounds\tthe hounds"),
        *("Haus\thouse", "Häuser\thouse", "Haus\thome"),
    ]
)
LINES = ["Ein Hund rennt ins Haus.", "A dog runs into the house, at 12:30."] * 6
KNOWS = learn_with_symbols(LINES, 330, OF_SOURCES)


@pytest.mark.parametrize(
    ("word", "lemma", "form"),
    [
        ("dogs", "dog", True),
        ("Dogs", "dog", True),
        ("dog", "dogs", True),
        ("houses", "house", True),
        ("cities", "city", True),
        ("do", "dog", False),
        ("dot", "dog", False),
        ("Häuser", "Haus", False),
        ("houseboats", "house", False),
        ("go", "go", True),
        ("goes", "go", False),
        ("gespielt", "spielen", False),
    ],
)
def test_forms_begin_alike(word: str, lemma: str, form: bool) -> None:
    assert is_form(word, lemma) == form


@pytest.mark.parametrize(
    ("source", "annotated"),
    [
        ("Ein Hund rennt.", "Ein⟨term⟩ Hund⟨as⟩ dog⟨/term⟩ rennt."),
        ("Hunde!", "⟨term⟩Hunde⟨as⟩ dog⟨/term⟩!"),
        ("(Hund) Hundehütte", "(⟨term⟩Hund⟨as⟩ dog⟨/term⟩) Hundehütte"),
        ("Zwei großen  Hunden", "Zwei⟨term⟩ großen  Hunden⟨as⟩ hound⟨/term⟩"),
        ("große Katzen, HAUS", "große Katzen,⟨term⟩ HAUS⟨as⟩ house⟨/term⟩"),
        ("nichts", "nichts"),
        ("", ""),
    ],
)
def test_a_source_is_annotated(source: str, annotated: str) -> None:
    assert LIST.annotate(source) == annotated


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["Hund", "große", "Hunde", "Haus", ",", "x", " ", "ein"]), max_size=14))
def test_without_its_annotations_a_source_is_as_before(words: list[str]) -> None:
    source = " ".join(words)
    found = LIST.annotate(source)
    assert found.count("⟨term⟩") == found.count("⟨as⟩") == found.count("⟨/term⟩") <= MOST
    plain = "".join(part.split("⟨as⟩")[0] for part in found.replace("⟨/term⟩", "⟨term⟩").split("⟨term⟩"))
    assert plain == source
    ids = KNOWS.encode(found)
    assert KNOWS.decode(ids) == found


def test_training_pairs_need_the_lemma_and_every_second_is_annotated() -> None:
    sources = [f"Ein Hund {number}" for number in range(200)]
    annotated = [LIST.annotate_pair(source, "Some dogs.") != source for source in sources]
    assert 70 < sum(annotated) < 130
    assert annotated == [LIST.annotate_pair(source, "Some dogs.") != source for source in sources]
    assert not any(LIST.annotate_pair(source, "A cat.") != source for source in sources)
    # Of several translations, the one in the target counts; the list can have further forms.
    homes = {LIST.annotate_pair(f"Haus {number}", "at home") for number in range(20)}
    assert any("⟨as⟩ home⟨/term⟩" in text for text in homes)
    assert not any("⟨as⟩ house" in text for text in homes)
    given = {parse_terms(["x\tsee\tsaw"]).annotate_pair(f"x {number}", "I saw it") for number in range(20)}
    assert any("⟨as⟩ see⟨/term⟩" in text for text in given)


def test_a_form_is_looked_for_once_in_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Term] = []

    def has_form(_: object, term: Term) -> bool:
        asked.append(term)
        return False

    monkeypatch.setattr(terms, "has_form", has_form)
    source = "Hund Haus " * 200
    assert LIST.annotate_pair(source, "nothing") == source
    assert len(asked) == len(set(asked)) > 1


def test_a_pair_is_hashed_for_few_of_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash reads the whole pair: once for each word would take quadratic time."""
    hashed: list[bytes] = []

    def crc32(data: bytes) -> int:
        hashed.append(data)
        return zlib.crc32(data)

    monkeypatch.setattr(terms, "zlib", SimpleNamespace(crc32=crc32))
    assert LIST.annotate_pair("Hund Haus " * 200, "A dog.").count("⟨term⟩") == MOST
    assert MOST <= len(hashed) < 100
    hashed.clear()
    assert "⟨term⟩" not in LIST.annotate_pair("Hund Haus " * 200, "nothing")
    assert hashed == []


@pytest.mark.parametrize("line", ["Hund", "Hund\t", "\tdog", "Hund\t...", "Hund dog", "Hund\t⟨as⟩ x"])
def test_what_is_no_term(line: str) -> None:
    with pytest.raises(DataError, match=r"^list:2: expected a term, a TAB and its translation"):
        parse_terms(["a\tb", line], "list")


def test_lists_and_tokenizers() -> None:
    assert LIST.entries[1] == Term("große Hunde", "hound", ("hounds", "the hounds"))
    again: Terms = pickle.loads(pickle.dumps(LIST))
    assert (again, again.digest) == (LIST, LIST.digest)
    with pytest.raises(DataError, match="has no terms"):
        parse_terms(["# nothing"])
    plain = Tokenizer.learn(LINES, 330)
    assert knows_terms(KNOWS)
    assert knows_terms(LanguageTokenizer(KNOWS, ["de"], "de"))
    assert not knows_terms(plain)
    with pytest.raises(ConfigurationError, match=r"trained without them \(train --terms FILE\)"):
        for_sources(LIST, plain)
    # No search writes an annotation, and copied text is not annotated.
    assert set(OF_SOURCES) == {KNOWS.vocabulary[i] for i in KNOWS.forbidden_in_output} - set(plain.vocabulary)
    copies = learn_with_placeholders(LINES, 340, symbols=OF_SOURCES, rules=parse_rules(["numbers"]))
    assert isinstance(copies, PlaceholderTokenizer)
    both = parse_terms(["Covid-19\tCovid-19", "Hund\tdog"])
    assert for_sources(both, copies.reading).entries == (Term("Hund", "dog"),)
