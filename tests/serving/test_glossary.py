"""Glossaries: where terms are found, and that translations contain their phrases and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead import Translator
from multihead.serving import requests
from multihead.serving.glossary import MAX_TERMS, find_phrases

Client = Any


@pytest.mark.parametrize(
    ("term", "sentence", "found"),
    [
        ("Hund", "Ein Hund rennt.", True),
        ("Hund", "Hunde rennen.", False),
        ("Hund", "Der Jagdhund.", False),
        ("Hund", "ein hund", False),
        ("hund", "Ein Hund, ein HUND", True),
        ("New York", "in New York.", True),
        ("犬", "大きい犬がいる", True),
        ("개", "개가 있다", True),
        ("a_b", "a_b_c a_b", True),
        ("a_b", "a_b_c", False),
        ("C++", "in C++ and C", True),
        ("x", "", False),
        ("i", "İ i", True),
        ("घर", "मेरा घर है", True),
        ("घर", "घरों में", False),
        ("cafe", "cafe\u0301", False),
    ],
)
def test_where_a_term_is_found(term: str, sentence: str, found: bool) -> None:
    assert find_phrases({term: "y"}, sentence) == ([["y"]] if found else [])


def test_the_longest_term_counts_and_each_once() -> None:
    glossary = {"York": "1", "New York": ["2", "3"], "new": "4"}
    assert find_phrases(glossary, "New York, New York") == [["2", "3"]]
    assert find_phrases(glossary, "New York and York: new") == [["2", "3"], ["1"], ["4"]]


WORDS = st.sampled_from(["ab", "abc", "b", "c-d", "Ä"])


@given(words=st.lists(WORDS, max_size=8), term=st.sampled_from(["ab", "b", "Ä"]))
def test_a_term_is_found_exactly_where_it_is_a_word(words: list[str], term: str) -> None:
    assert bool(find_phrases({term: "x"}, " ".join(words))) == (term in words)


def test_translations_contain_the_phrases(client: Client, translator: Translator) -> None:
    glossary = {"eins": "seven", "zwei drei": ["nine", "eight"]}
    texts = ["eins vier", "zwei drei", "zwei vier drei", "fünf\neins sechs"]
    found = client.post(text=texts, glossary=glossary).texts
    wanted = translator.translate(
        ["eins vier", "zwei drei", "zwei vier drei", "fünf", "eins sechs"],
        phrases=[["seven"], [["nine", "eight"]], [], [], ["seven"]],
    )
    assert found == [*wanted[:3], "\n".join(wanted[3:])]
    assert "seven" in found[0]
    assert found[2] == client.post(text=texts[2]).texts[0]
    assert client.post(text=texts, glossary={"zehn": "x"}).texts == client.post(text=texts).texts


@pytest.mark.parametrize(
    "fields", [{"beam": 1}, {"n_best": 2}, {"prefix": "two"}, {"guard": "retry"}, {"alignment": True}]
)
def test_a_glossary_goes_with_everything(fields: dict[str, Any], client: Client) -> None:
    (found,) = client.post(text="eins zwei", glossary={"eins": "seven"}, **fields).json["translations"]
    assert "seven" in found["text"]
    assert found["text"].startswith(fields.get("prefix", ""))
    assert all("seven" in one["text"] for one in found["n_best"])
    *_, (name, last) = client.post("/translate/stream", text="eins zwei", glossary={"eins": "seven"}, **fields).events
    assert (name, last["text"]) == ("done", found["text"])


@pytest.mark.parametrize(
    ("text", "glossary"),
    [
        ("eins", {"": "x"}),
        ("eins", {"eins": ""}),
        ("eins", {"eins": []}),
        ("eins", {"eins": ["x", " "]}),
        ("eins", {"eins": 5}),
        ("eins", ["eins"]),
        ("eins", {"eins": "seven " * 200}),
        ("eins", {f"a{number}": "x" for number in range(MAX_TERMS + 1)}),
    ],
)
def test_an_impossible_glossary_is_refused(text: str, glossary: Any, client: Client) -> None:
    reply = client.post(text=text, glossary=glossary)
    assert (reply.status, reply.json["error"]) == (422, "invalid_request")
    assert client.post(text="eins").status == 200


def test_a_sentence_with_too_many_terms_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_FOUND", 1)
    reply = client.post(text="drei\neins zwei", glossary={"eins": "one", "zwei": "two"})
    assert (reply.status, "sentence 2 has 2 terms" in reply.json["message"]) == (422, True)
