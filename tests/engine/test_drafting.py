"""Greedy search with a draft equals greedy search without one, bit for bit, whatever the draft guesses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engine.test_engine_ensemble import MIXED, engines, shortlist_of

from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.engine.drafting import DraftedSearch
from multihead.engine.ensemble import EngineEnsemble
from multihead.engine.search import CompiledSearch, Engine
from multihead.errors import ConfigurationError
from multihead.models.transformer import Transformer


def disturbed(model: Transformer, noise: float) -> Transformer:
    """A model that often, but not always, makes the same choices as the given one."""
    other = deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight += noise * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
    return other


def run(
    search: CompiledSearch, drawn: Any, sources: list[list[int]], workers: int = 1, **asked: Any
) -> tuple[list[list[Hypothesis]], tuple[int, int]]:
    """The hypotheses of all sentences; guesses, and how many were right."""
    task, settings = drawn.split(drawn.symbols, beam=1, **asked)
    limits, minimums = task.length_lists(settings, [len(source) for source in sources])
    found: dict[int, list[Hypothesis]] = {}
    with search.open(task, settings, max(limits), workers) as running:
        for number, source in enumerate(sources):
            running.add(number, source, limits[number], minimums[number])
        while running.left:
            found |= dict(running.run(0.01))
        return [found[number] for number in range(len(sources))], running.guesses


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("pre-norm", "float32"),
        ("pre-norm", "int8"),
        ("rotary", "bfloat16"),
        ("T5", "int8"),
        ("linear positions, vectors", "float32"),
        ("learned positions, gelu", "float32"),
        ("positions of keys and values, odd widths", "bfloat16"),
        ("parallel blocks, gated, RMS", "float32"),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.1, 10.0])
def test_the_same_to_the_last_bit(drawn: Any, name: str, precision: Any, noise: float) -> None:
    model, sources = drawn.model(name), drawn.sentences()
    limits, least = drawn.limits(sources)
    asked = {"max_lengths": limits, "min_lengths": least}
    plain = Engine(model, precision)
    drafted = DraftedSearch(plain, Engine(disturbed(model, noise), precision), most=5, least=0.0)
    expected, none = run(plain, drawn, sources, **asked)
    found, (guessed, right) = run(drafted, drawn, sources, **asked)
    alone = [run(drafted, drawn, [source], max_lengths=limit, min_lengths=minimum)
             for source, limit, minimum in zip(sources, limits, least, strict=True)]  # fmt: skip
    assert found == expected == [one[0] for one, _ in alone]
    assert none == (0, 0)
    guesses = sum(counts[0] for _, counts in alone), sum(counts[1] for _, counts in alone)
    assert 0 <= right <= guessed
    assert guesses[0] > 0
    if noise == 0.0:  # a model guesses itself, except for an end symbol that a minimum length forbids
        assert guesses[1] > 0.5 * guesses[0]


@pytest.mark.parametrize("other", ["another network", "another precision"])
def test_a_draft_of_any_kind(drawn: Any, other: str) -> None:
    sources = drawn.sentences()
    plain = Engine(drawn.model("pre-norm"))
    draft = Engine(drawn.model("T5", 2)) if other == "another network" else Engine(drawn.model("pre-norm"), "int8")
    expected, _ = run(plain, drawn, sources, max_lengths=12)
    assert run(DraftedSearch(plain, draft, least=0.0), drawn, sources, workers=2, max_lengths=12)[0] == expected


def test_guesses_of_itself_are_all_right(drawn: Any) -> None:
    engine = Engine(drawn.model("rotary"))
    (source, *_) = drawn.sentences()
    found, (guessed, right) = run(DraftedSearch(engine, engine, least=0.0), drawn, [source], max_lengths=40)
    assert found == run(engine, drawn, [source], max_lengths=40)[0]
    assert guessed - right <= 8  # those after an end, or beyond the limit
    assert right >= min(len(found[0][0].tokens), 40) * 0.7


def test_an_ensemble_and_a_shortlist_can_have_a_draft(drawn: Any) -> None:
    sources, shortlist = drawn.sentences(), shortlist_of(drawn.vocab)
    for chosen in (None, shortlist):
        members = engines(drawn, MIXED[:3], shortlist=chosen)
        together = EngineEnsemble(members)
        drafted = DraftedSearch(together, Engine(members[0].model), least=0.0)
        assert run(drafted, drawn, sources, max_lengths=11)[0] == run(together, drawn, sources, max_lengths=11)[0]


def test_forced_symbols_and_other_stopping_rules(drawn: Any) -> None:
    model, sources = drawn.model("pre-norm"), drawn.sentences()
    plain, draft = Engine(model), Engine(disturbed(model, 0.1))
    for more in ({"stopping": "ahead"}, {"stopping": "patience", "patience": 2.0}, {"alpha": 0.0}):
        asked = {"max_lengths": 12, **more}
        assert run(DraftedSearch(plain, draft), drawn, sources, **asked)[0] == run(plain, drawn, sources, **asked)[0]
    symbols = replace(drawn.symbols, forced=(7, 9))
    task, search = SearchTask(symbols, max_lengths=9), Search(beam=1)
    assert DraftedSearch(plain, draft).search(sources, task, search) == plain.search(sources, task, search)


def test_in_a_beam_search_it_rests(drawn: Any) -> None:
    engine, sources = Engine(drawn.model("pre-norm")), drawn.sentences()
    task, search = drawn.split(drawn.symbols, beam=4, max_lengths=9)
    assert DraftedSearch(engine, engine).search(sources, task, search) == engine.search(sources, task, search)


def test_what_cannot_be(drawn: Any) -> None:
    engine = Engine(drawn.model("odd widths, no biases"))
    with pytest.raises(ConfigurationError, match="source vocabulary of 90 entries, got 91"):
        DraftedSearch(engine, Engine(Transformer(engine.config.model_copy(update={"source_vocab": 91}))))
    with pytest.raises(ConfigurationError, match="no shortlist"):
        DraftedSearch(engine, Engine(engine.model, shortlist=shortlist_of(drawn.vocab)))
    with pytest.raises(ConfigurationError, match="at least 1 guess"):
        DraftedSearch(engine, engine, most=0)
