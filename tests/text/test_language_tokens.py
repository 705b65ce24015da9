"""Symbols of languages: ids of text stay as they are, and no text becomes a symbol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, FormatError, InputError
from multihead.interop.formats.tokenizer_json import as_library_tokenizer
from multihead.text.language_tokens import LanguageTokenizer, toward, with_languages
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import Tokenizer

INNER = Tokenizer.learn(["Ein Hund rennt. >>de<< >>en<<", "A dog runs.", "A cat sleeps."] * 9, 330)
BOTH = LanguageTokenizer(INNER, ["de", "en", "pt-BR"])
texts = st.text(max_size=12) | st.sampled_from([">>de<<", ">>en<< A dog", "▁>>de<<▁", " >>pt-BR<<"])


@settings(max_examples=40)
@given(st.lists(texts, max_size=4), st.sampled_from([None, "de", "pt-BR"]))
def test_a_source_is_its_symbol_and_the_ids_of_its_text(rows: list[str], language: str | None) -> None:
    marked = BOTH.toward(language)
    assert marked.prefix == (() if language is None else (len(INNER) + BOTH.languages.index(language),))
    for row, ids in zip(rows, marked.encode_batch(rows), strict=True):
        plain = INNER.encode(row)
        assert ids == marked.encode(row) == ([*marked.prefix, *plain] if plain else [])
        assert marked.decode(ids) == row
        # No text becomes a symbol, whatever is typed.
        assert all(i < len(INNER) for i in ids[len(marked.prefix) :])
        assert marked.encode_phrase(row) == plain
        assert len(marked.spans(row)) == len(ids)
        assert marked.spans(row)[: len(marked.prefix) if ids else 0] == [(0, 0)] * (len(marked.prefix) if ids else 0)


def test_symbols_are_entries_that_no_search_emits() -> None:
    assert len(BOTH) == len(INNER) + 3 == len(BOTH.vocabulary) == len(BOTH.entries)
    assert BOTH.vocabulary[len(INNER) :] == (">>de<<", ">>en<<", ">>pt-BR<<")
    assert BOTH.pieces(BOTH.toward("en").encode("A dog"))[0] == ">>en<<"
    assert set(BOTH.forbidden_in_output) == {*INNER.forbidden_in_output, *range(len(INNER), len(BOTH))}
    assert BOTH.special_ids == INNER.special_ids
    with pytest.raises(InputError, match="there is no id"):
        BOTH.decode([len(BOTH)])


def test_a_file_holds_all_directions(tmp_path: Path) -> None:
    BOTH.toward("en").save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert isinstance(loaded, LanguageTokenizer)
    assert (loaded.prefix, loaded.languages) == ((), BOTH.languages)
    assert loaded.digest == BOTH.digest == BOTH.toward("de").digest != INNER.digest
    assert LanguageTokenizer(INNER, ["en", "de", "pt-BR"]).digest != BOTH.digest
    assert loaded.toward("en").encode("A dog") == BOTH.toward("en").encode("A dog")


@pytest.mark.parametrize("damage", [{"languages": "de"}, {"languages": [1]}, {"languages": ["de", "de"]}, {"inner": 3}])
def test_a_damaged_file_is_refused(damage: dict[str, object]) -> None:
    fields = json.loads(BOTH.to_json()) | damage
    with pytest.raises(FormatError):
        Tokenizer.from_json(json.dumps(fields))


def test_what_is_no_language() -> None:
    for codes, message in (
        (["de", "de"], "not all different"),
        (["d e"], "not a language code"),
        ([""], "not a language"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            LanguageTokenizer(INNER, codes)
    with pytest.raises(ConfigurationError, match="no token for the language 'fr'; it has de, en, pt-BR"):
        BOTH.toward("fr")
    assert with_languages(INNER, ()) is INNER is toward(INNER, "fr")
    assert toward(BOTH, "en").prefix == BOTH.toward("en").prefix


@pytest.mark.parametrize("language", [None, "de", "pt-BR"])
def test_the_library_gives_the_same_ids(language: str | None) -> None:
    ours = BOTH.toward(language)
    theirs = as_library_tokenizer(ours)
    assert (theirs.prefix, len(theirs), theirs.vocabulary[-3:]) == (ours.prefix, len(ours), ours.vocabulary[-3:])
    assert set(theirs.forbidden_in_output) == set(ours.forbidden_in_output)
    rows = ["Ein Hund rennt.", ">>de<< A dog runs.", "  ü \n 你好", ""]
    assert theirs.encode_batch(rows) == ours.encode_batch(rows)
    assert [theirs.decode(ids) for ids in theirs.encode_batch(rows)] == rows
    assert as_library_tokenizer(INNER) is INNER


@settings(max_examples=30)
@given(st.lists(texts, min_size=1, max_size=4), st.floats(0.1, 1.0))
def test_subwords_are_drawn_behind_the_symbol(rows: list[str], dropout: float) -> None:
    keys = list(range(len(rows)))
    plain = Segmenter(INNER, dropout, seed=3).segment(INNER.encode_batch(rows), keys, epoch=2, side=0)
    marked = BOTH.toward("en")
    found = Segmenter(marked, dropout, seed=3).segment(marked.encode_batch(rows), keys, epoch=2, side=0)
    assert found == [[*marked.prefix, *ids] if ids else [] for ids in plain]
