"""The compiled search equals `decoding.beam` for every Transformer, and results do not depend on other sentences."""

from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from multihead.attention.multihead import PackedLinear
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.recording import Recorder
from multihead.decoding.restrictions import NoRepeat
from multihead.decoding.scoring import force
from multihead.decoding.search import MEANS, Search, Symbols, wu
from multihead.decoding.shortlist import Shortlist
from multihead.decoding.task import SearchTask
from multihead.engine import search as module
from multihead.engine.drafting import DraftedSearch
from multihead.engine.ensemble import EngineEnsemble
from multihead.engine.networks import why_not
from multihead.engine.search import CompiledSearch, Engine, EngineCache
from multihead.engine.weights import PRECISIONS, Precision
from multihead.errors import ConfigurationError, MultiheadError, ShapeError
from multihead.kernels import native as natively
from multihead.models.config import RecurrentConfig
from multihead.models.layers import sinusoid
from multihead.models.recurrent.network import RecurrentTranslator


def test_it_finds_what_the_search_in_pytorch_finds(drawn: Any, kind: str, without_checks: Any) -> None:
    model, sources = drawn.model(kind), drawn.sentences()
    limits, least = drawn.limits(sources)
    engine = Engine(model)
    for beam, n_best, more in (
        (1, 1, {}),
        (4, 4, {"alpha": 0.7}),
        (3, 1, {"stopping": "ahead", "penalty": wu}),
        (5, 2, {"stopping": "patience", "patience": 1.5, "alpha": 0.0}),
        (10, 2, {"stopping": "patience", "patience": 1.1}),  # 1.1 * 10 > 11 in float64
    ):
        asked = {"max_lengths": limits, "min_lengths": least, "beam": beam, "n_best": n_best, **more}
        with without_checks():  # `test_forcing.py` checks the signatures of a step of each model
            expected = beam_search(model, *drawn.padded(sources), *drawn.split(drawn.symbols, **asked))  # type: ignore[arg-type]
        found = engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=2)  # type: ignore[arg-type]
        same = [drawn.alike(one, other) for one, other in zip(found, expected, strict=True)]
        assert sum(same) >= len(same) - 1  # a near tie


@pytest.mark.parametrize("beam", [1, 3])
def test_forced_symbols_begin_every_hypothesis_at_no_cost(drawn: Any, beam: int) -> None:
    """As in PyTorch: the rest is scored after the forced symbols; a hypothesis without room is returned unfinished."""
    model, sources = drawn.model("pre-norm"), drawn.sentences()
    symbols = replace(drawn.symbols, forced=(7, 2, 9), forbidden=(0, 1, 2, 9))
    task, search = SearchTask(symbols, max_lengths=11, n_best=beam), Search(beam=beam, alpha=0.7)
    found = Engine(model).search(sources, task, search, workers=2)
    expected = beam_search(model, *drawn.padded(sources), task, search)
    assert all(drawn.alike(one, other) for one, other in zip(found, expected, strict=True))
    best = [hypotheses[0] for hypotheses in found]
    assert {h.tokens[:3] for h in best} == {(7, 2, 9)}
    scores = force(model, *drawn.padded(sources), [h.tokens for h in best], symbols)
    for one, values in zip(best, scores, strict=True):
        assert one.log_probability == pytest.approx(sum(values[3 : len(one.tokens) + one.finished]), abs=drawn.near)
        assert one.score == pytest.approx(one.log_probability / (len(one.tokens) + one.finished) ** 0.7, rel=1e-6)
    with pytest.raises(ConfigurationError, match=r"3 fixed symbols.*raise the limit to 4"):
        Engine(model).search(sources, replace(task, max_lengths=3), search)
    with Engine(model).open(task, search, 3, 1) as running:
        running.add(0, sources[0], 2)
        ((_, (cut,)),) = running.run(1.0)
    assert (cut.tokens, cut.finished, cut.log_probability) == ((7, 2), False, 0.0)


def test_a_beam_of_one_is_greedy(drawn: Any) -> None:
    model, sources = drawn.model(), drawn.sentences()
    found = Engine(model).search(sources, SearchTask(drawn.symbols, max_lengths=12), Search(beam=1))
    expected = greedy_search(model, *drawn.padded(sources), SearchTask(drawn.symbols, max_lengths=12))
    for (one,), other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=drawn.near)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["pre-norm", "silu, halves, biased output"])
def test_without_scores_greedy_search_chooses_the_same_symbols(drawn: Any, kind: str, precision: Precision) -> None:
    """For a model, with a shortlist or a draft, and for an ensemble; other searches always have scores."""
    model, sources = drawn.model(kind), drawn.sentences()
    limits, least = drawn.limits(sources)
    engine, other = Engine(model, precision), Engine(drawn.model(kind, 5), precision)
    short = Engine(model, precision, Shortlist([3, *range(20, 70)], [0] * (drawn.vocab + 1), []))
    searches: list[CompiledSearch] = [engine, short, DraftedSearch(engine, other, most=3, least=0.0)]
    searches += [EngineEnsemble([engine, other], mean) for mean in MEANS]
    task = SearchTask(
        replace(drawn.symbols, forced=(7,)), max_lengths=[limit + 1 for limit in limits], min_lengths=least
    )
    for search in searches:
        scored = search.search(sources, task, workers=2, search=Search(beam=1))
        for stopping in ("exact", "patience"):
            asked = Search(beam=1, stopping=stopping)
            found = search.search(sources, replace(task, scores=False), asked, workers=2)
            assert [[(one.tokens, one.finished) for one in row] for row in found] == [
                [(one.tokens, one.finished) for one in row] for row in scored
            ]
            assert all(math.isnan(one.log_probability) and math.isnan(one.score) for row in found for one in row)
    for asked in (Search(beam=2), Search(beam=1, stopping="ahead"), Search(beam=1, stopping="patience", patience=2)):
        expected = engine.search(sources, task, asked)
        assert engine.search(sources, replace(task, scores=False), asked) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 3])
def test_its_company_changes_no_bit_of_a_sentence(
    drawn: Any, precision: Any, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in any order, with any number of threads and rows, joining later: equal to the last bit."""
    engine, sources = Engine(drawn.model("pre-norm"), precision), drawn.sentences(24)
    asked: dict[str, Any] = {"max_lengths": 14, "beam": beam, "n_best": beam}
    together = engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
    assert engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=3) == together
    assert engine.search(sources[::-1], *drawn.split(drawn.symbols, **asked), workers=1) == together[::-1]
    assert [engine.search([one], *drawn.split(drawn.symbols, **asked), workers=2)[0] for one in sources] == together
    monkeypatch.setattr(module, "_ROWS", 4)
    assert engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=2) == together
    joining: list[list[Hypothesis]] = [[]] * len(sources)
    with engine.open(SearchTask(drawn.symbols, n_best=beam), Search(beam=beam), 14, 2) as running:
        for number, source in enumerate(sources):
            running.add(number, source, 14)
            for place, hypotheses in running.run(0.0):  # a step
                joining[place] = hypotheses
        while running.left:
            for place, hypotheses in running.run(0.01):
                joining[place] = hypotheses
    assert joining == together


def rounded(x: torch.Tensor, precision: str, rows: bool) -> torch.Tensor:
    """The inputs of a product after rounding."""
    if precision == "bfloat16":
        return x.bfloat16().float()
    negative = (x < 0).any(dim=-1, keepdim=True)
    top = torch.where(negative, 127.0, 255.0) if rows else torch.full_like(negative, 127.0, dtype=torch.float)
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / top
    return (x / scale).round() * scale


@pytest.mark.parametrize("name", ["pre-norm", "odd widths, no biases", "geglu, normed embeddings", "T5"])
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_precision_rounds_both_sides_of_every_product_and_what_is_kept(
    drawn: Any, name: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model in PyTorch, rounded in the same places, gives the compiled search's probabilities."""
    model, sources = drawn.model(name), drawn.sentences(10)
    engine = Engine(model, precision)
    found = [
        hypotheses[0] for hypotheses in engine.search(sources, SearchTask(drawn.symbols, max_lengths=9), Search(beam=2))
    ]

    def scores() -> torch.Tensor:
        forced = force(model, *drawn.padded(sources), [h.tokens for h in found], drawn.symbols)
        return torch.tensor([sum(one[: len(h.tokens) + h.finished]) for one, h in zip(forced, found, strict=True)])

    got, exact, linear = torch.tensor([h.log_probability for h in found]), scores(), F.linear

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return linear(rounded(x, precision, True), rounded(weight, precision, False), bias)

    def keep_rounded(projection: PackedLinear) -> None:
        """The queries, which come first, stay as they are."""
        project = projection.forward

        def forward(x: torch.Tensor, first: int = 0, last: int | None = None) -> tuple[torch.Tensor, ...]:
            parts = enumerate(project(x, first, last), start=first)
            return tuple(part if place == 0 else part.bfloat16().float() for place, part in parts)

        monkeypatch.setattr(projection, "forward", forward)

    monkeypatch.setattr(F, "linear", product)
    with torch.no_grad():
        for embedding in {model.source_embedding, model.target_embedding}:
            embedding.table.weight.copy_(rounded(embedding.table.weight, precision, False))
    for layer in model.decoder:
        keep_rounded(layer.self_attention.in_projection)  # type: ignore[arg-type, union-attr]
        keep_rounded(layer.cross_attention.in_projection)  # type: ignore[arg-type, union-attr]
    error, rounding = (got - scores()).abs(), (got - exact).abs()
    # A number at the edge of a step may be rounded the other way: seldom, and by a step.
    assert error.median() < 2e-3
    assert error.median() < 0.1 * rounding.median()
    assert error.max() < 0.5 * rounding.max()


def test_no_sentence_is_too_long(drawn: Any) -> None:
    """Positions beyond the table are computed; the longest sentence comes last."""
    model = drawn.model("pre-norm")
    sources = [*drawn.sentences(2), [5, 9] * 350 + [3]]
    engine = Engine(model)
    found = engine.search(sources, SearchTask(drawn.symbols, max_lengths=6), Search(beam=1))
    expected = greedy_search(model, *drawn.padded(sources), SearchTask(drawn.symbols, max_lengths=6))
    for (one,), other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4)
    for table in engine.packed.positions(1500):
        expected = sinusoid(torch.arange(len(table)), model.config.width)
        np.testing.assert_array_max_ulp(table.numpy(), expected.numpy(), maxulp=1)
        assert len(table) >= 1500
    learned = Engine(drawn.model("learned positions, gelu"))
    assert torch.equal(learned.packed.positions(1500)[1], learned.model.target_embedding.positions.table.weight)


def test_nothing_in_nothing_out(drawn: Any) -> None:
    assert Engine(drawn.model()).search([], SearchTask(drawn.symbols, max_lengths=9)) == []


def test_every_sentence_is_told_of_once(drawn: Any) -> None:
    told: list[int] = []
    Engine(drawn.model()).search(drawn.sentences(), SearchTask(drawn.symbols, max_lengths=9), progress=told.append)
    assert sum(told) == len(drawn.sentences())


def test_what_cannot_be_is_refused_in_words(drawn: Any) -> None:
    engine, sources = Engine(drawn.model()), drawn.sentences(3)
    for asked, message in (
        ({"beam": 256}, "beams up to 255"),
        ({"beam": 0}, "beam: .* greater than or equal to 1"),
        ({"n_best": 9}, "widen the beam"),
        ({"max_lengths": 0}, "at least 1"),
        ({"min_lengths": 9}, "do not fit"),
        ({"alpha": -1.0}, "alpha: .* greater than or equal to 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            engine.search(sources, *drawn.split(drawn.symbols, **{"max_lengths": 9, **asked}))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one number, or one each"):
        engine.search(sources, SearchTask(drawn.symbols, max_lengths=[9]))
    for ids in ([], [-1], [drawn.vocab]):
        with pytest.raises(ConfigurationError, match=f"ids from 0 to {drawn.vocab - 1}"):
            engine.search([ids], SearchTask(drawn.symbols, max_lengths=9))
    with pytest.raises(ConfigurationError, match="not of a vocabulary"):
        engine.search(sources, SearchTask(Symbols(2, drawn.vocab, ()), max_lengths=9))
    others: dict[str, Any] = {"restrictions": [NoRepeat(2)], "coverage": 0.2, "recorder": Recorder(drawn.symbols)}
    for name, value in others.items():
        with pytest.raises(ConfigurationError, match="no restrictions, coverage or recorder"):
            engine.open(*drawn.split(drawn.symbols, beam=2, **{name: value}), 9)
    for workers in (0, -1, 1025):
        with pytest.raises(ConfigurationError, match="threads, from 1 to 1024, got"):
            engine.search(sources, SearchTask(drawn.symbols, max_lengths=9), workers=workers)
    running = engine.open(SearchTask(drawn.symbols), Search(beam=2), 9)
    with pytest.raises(ConfigurationError, match="limit <= 9"):
        running.add(0, sources[0], 10)
    running.__exit__(None, None, None)
    with pytest.raises(ConfigurationError, match="closed"):
        running.add(0, sources[0], 9)


def test_several_of_pythons_threads_can_search_at_once(drawn: Any) -> None:
    engine, sources = Engine(drawn.model()), drawn.sentences(12)
    alone = engine.search(sources, SearchTask(drawn.symbols, max_lengths=12), Search(beam=2))
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(
                lambda _: engine.search(sources, SearchTask(drawn.symbols, max_lengths=12), Search(beam=2), workers=2),
                range(6),
            )
        )
    assert found == [alone] * 6


def test_nothing_permitted_is_said(drawn: Any) -> None:
    engine = Engine(drawn.model())
    everything = tuple(range(3)) + tuple(range(4, drawn.vocab))
    with pytest.raises(MultiheadError, match="every permitted symbol the probability 0"):
        engine.search(drawn.sentences(2), SearchTask(Symbols(2, 3, everything), max_lengths=9, min_lengths=1))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("where", ["output", "decoder.1.feed_forward", "encoder.0.self_attention"])
def test_numbers_that_run_over_are_said(where: str, precision: Precision, drawn: Any) -> None:
    model = drawn.model("pre-norm")
    with torch.no_grad():
        for parameter in model.get_submodule(where).parameters():
            parameter.div_(parameter.abs().max()).mul_(3e38)
    task = SearchTask(drawn.symbols, max_lengths=9)
    for asked in (task, replace(task, scores=False)):
        with pytest.raises(MultiheadError, match="NaN"):
            Engine(model, precision).search(drawn.sentences(2), asked, Search(beam=1))
    with pytest.raises(MultiheadError, match="NaN"):
        Engine(model, precision).search(drawn.sentences(2), task)


@pytest.mark.parametrize("sign", [-1, 1])
def test_one_symbol_that_runs_over_is_said_with_and_without_scores(drawn: Any, sign: int) -> None:
    """Wherever it is, also if it is forbidden; -inf alone is a symbol of probability 0."""
    told = []
    for symbol in (0, 1, 40, 89):
        model = drawn.model("fairseq's positions")
        with torch.no_grad():
            model.output.weight[symbol] = sign * 3e38
        engine, outcomes = Engine(model), []
        for scores in (True, False):
            try:
                task = SearchTask(drawn.symbols, max_lengths=9, scores=scores)
                found = engine.search(drawn.sentences(2), task, Search(beam=1))
                outcomes.append([row[0].tokens for row in found])
            except MultiheadError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        told.append("NaN" in outcomes[0])
    assert any(told)


def test_models_that_it_is_not_for(drawn: Any) -> None:
    assert why_not(drawn.model()) is None
    recurrent = RecurrentTranslator(RecurrentConfig(source_vocab=9, target_vocab=9, width=8))
    assert "RecurrentTranslator" in str(why_not(recurrent))
    assert "not float32" in str(why_not(drawn.model().double()))
    watched = drawn.model()
    handle = watched.decoder[0].register_forward_hook(lambda *_: None)
    assert "hooks" in str(why_not(watched))
    handle.remove()
    assert why_not(watched) is None
    watched.encoder[0].feed_forward = torch.nn.Identity()  # type: ignore[union-attr]
    assert "not a Transformer's own" in str(why_not(watched))
    broken = drawn.model()
    with torch.no_grad():
        broken.output.weight[5, 0] = torch.nan
    with pytest.raises(ConfigurationError, match="not a finite number"):
        Engine(broken)


def test_looking_draws_no_random_number(drawn: Any) -> None:
    model = drawn.model()
    before = torch.get_rng_state()
    Engine(model).search(drawn.sentences(2), SearchTask(drawn.symbols, max_lengths=5))
    assert torch.equal(torch.get_rng_state(), before)


def test_changed_weights_are_noticed_and_copies_are_made_anew(drawn: Any) -> None:
    model, engines, sources = drawn.model(), EngineCache(), drawn.sentences(4)
    first = engines.get(model, "float32")
    assert isinstance(first, Engine)
    assert engines.get(model, "float32") is first
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert copied.packed.handle != first.packed.handle
        assert copied.search(sources, SearchTask(drawn.symbols, max_lengths=9)) == first.search(
            sources, SearchTask(drawn.symbols, max_lengths=9)
        )
    with torch.no_grad():
        model.output.weight.mul_(0.5)
    assert not first.current
    second = engines.get(model, "float32")
    assert isinstance(second, Engine)
    (expected,) = beam_search(model, *drawn.padded(sources[:1]), SearchTask(drawn.symbols, max_lengths=9))
    assert drawn.alike(second.search(sources[:1], SearchTask(drawn.symbols, max_lengths=9))[0], expected)
    other = RecurrentTranslator(RecurrentConfig(source_vocab=9, target_vocab=9, width=8))
    assert engines.get(other, "int8") == engines.get(other, "int8") == why_not(other)


def test_weights_made_in_inference_mode_are_searched_like_any(drawn: Any) -> None:
    with torch.inference_mode():
        model = drawn.model()
    engines, sources = EngineCache(), drawn.sentences(4)
    engine = engines.get(model, "int8")
    assert isinstance(engine, Engine)
    assert engines.get(model, "int8") is engine
    expected = Engine(drawn.model(), "int8").search(sources, SearchTask(drawn.symbols, max_lengths=9))
    assert engine.search(sources, SearchTask(drawn.symbols, max_lengths=9)) == expected


def test_without_a_compiler_there_is_a_reason(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = drawn.model()
    monkeypatch.setenv(natively.VARIABLE, "0")
    natively.clear_loaded()
    try:
        assert "MULTIHEAD_NATIVE=0" in str(why_not(model))
        with pytest.raises(ConfigurationError, match=r"use decoding\.beam"):
            Engine(model)
    finally:
        natively.clear_loaded()
