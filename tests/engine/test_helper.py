"""A second thread that helps to translate one sentence changes no bit of the result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.test_drafting import disturbed

from multihead.engine.drafting import DraftedSearch
from multihead.engine.ensemble import EngineEnsemble
from multihead.engine.search import CompiledSearch, Engine
from multihead.engine.weights import PRECISIONS, Precision, load_search_library


@pytest.fixture(autouse=True)
def _small_models() -> Iterator[None]:
    """Use a second thread for small models too."""
    library = load_search_library().library
    assert library is not None
    before = library.decoding_large(0)
    yield
    library.decoding_large(before)


def agree(search: CompiledSearch, drawn: Any, **asked: Any) -> None:
    """One and two threads find the same, for single sentences and for the last of several."""
    sources = drawn.sentences(9)
    asked = {"max_lengths": 12, **asked}
    alone = search.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
    assert alone == search.search(sources, *drawn.split(drawn.symbols, **asked), workers=2)
    for source, found in zip(sources, alone, strict=True):
        assert search.search([source], *drawn.split(drawn.symbols, **asked), workers=2) == [found]


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_threads_find_what_one_finds(drawn: Any, precision: Precision, beam: int) -> None:
    agree(Engine(drawn.model("post-norm"), precision), drawn, beam=beam, n_best=beam)


def test_so_they_do_with_every_kind_of_layer(drawn: Any, kind: str) -> None:
    agree(Engine(drawn.model(kind), "int8"), drawn, beam=3)


def test_so_do_several_models_and_a_draft(drawn: Any) -> None:
    model = drawn.model("pre-norm")
    one, other = Engine(model, "int8"), Engine(disturbed(model, 0.3), "int8")
    agree(EngineEnsemble([one, other]), drawn, beam=4)
    agree(DraftedSearch(one, other), drawn, beam=1)
