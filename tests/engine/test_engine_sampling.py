"""Compiled samples equal those of `decoding.sampling`, independent of other sentences and of the number of samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.conftest import MODELS
from tests.engine.test_engine_ensemble import shortlist_of

from multihead.decoding.ensemble import Ensemble
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.sampling import sample as step_by_step
from multihead.decoding.scoring import force
from multihead.decoding.search import MEANS, Mean, Search, wu
from multihead.decoding.sharpening import Sharpening, streams
from multihead.decoding.shortlist import Shortlisted
from multihead.decoding.task import SearchTask
from multihead.engine import search as module
from multihead.engine.drafting import DraftedSearch
from multihead.engine.ensemble import EngineEnsemble
from multihead.engine.sampling import TOGETHER, RunningSampling, sample
from multihead.engine.search import Engine
from multihead.engine.weights import PRECISIONS, Precision, integers
from multihead.errors import ConfigurationError, MultiheadError, ShapeError

HOW = (
    Sharpening(),
    Sharpening(temperature=0.6),
    Sharpening(temperature=2.5, top_k=7),
    Sharpening(top_p=0.8),
    Sharpening(min_p=0.05),
    Sharpening(epsilon=0.02),
    Sharpening(temperature=1.5, top_k=30, top_p=0.95, min_p=0.01, epsilon=0.004),
)


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], near: float) -> list[bool]:
    """Whether the tokens of each sample are equal; equal samples must have equal probabilities."""
    results = []
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other)
        for got, wanted in zip(one, other, strict=True):
            results.append(got.tokens == wanted.tokens)
            if results[-1]:
                assert got.finished == wanted.finished
                assert (got.log_probability, got.score) == pytest.approx(
                    (wanted.log_probability, wanted.score), abs=near
                )
    return results


def test_it_draws_what_is_drawn_in_pytorch(drawn: Any, kind: str, without_checks: Any) -> None:
    """Each model in three ways, each way with many models."""
    model, sources = drawn.model(kind), drawn.sentences()
    first = list(MODELS).index(kind)
    limits, least = drawn.limits(sources)
    engine, keys = Engine(model), [10**15 - number for number in range(len(sources))]
    for number in range(first, first + 3):
        sharpening = HOW[number % len(HOW)]
        more = {"penalty": wu, "alpha": 0.7} if number % 2 else {}
        samples = (1, 4, 3)[number % 3]
        asked = drawn.split(drawn.symbols, max_lengths=limits, min_lengths=least, n_best=samples, **more)
        how: dict[str, Any] = {"seed": number - 3, "keys": keys, "sharpening": sharpening}
        with without_checks():
            expected = step_by_step(model, *drawn.padded(sources), *asked, **how)
        results = same(sample(engine, sources, *asked, **how, workers=2), expected, drawn.near)
        assert sum(results) >= len(results) - 1  # a random number on the border of two symbols


@pytest.mark.parametrize("precision", PRECISIONS)
def test_neither_company_nor_number_changes_a_bit_of_a_sample(
    drawn: Any, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sources = Engine(drawn.model("pre-norm"), precision), drawn.sentences(12)
    keys, sharpening = list(range(12)), Sharpening(top_p=0.97)

    def draw(some: list[int], samples: int, workers: int | None = None) -> list[list[Hypothesis]]:
        task = SearchTask(drawn.symbols, max_lengths=14, n_best=samples)
        rows, own = [sources[i] for i in some], [keys[i] for i in some]
        return sample(engine, rows, task, seed=4, keys=own, sharpening=sharpening, workers=workers)

    together = draw(keys, 5, workers=1)
    assert len({h.tokens for row in together for h in row}) > 50
    assert draw(keys, 5, workers=3) == together
    assert draw(keys[::-1], 5) == together[::-1]
    assert [draw([number], 5)[0] for number in keys] == together
    many = draw(keys[:3], 2 * TOGETHER + 1, workers=2)
    assert [row[:5] for row in many] == together[:3]
    assert [len(row) for row in many] == [2 * TOGETHER + 1] * 3
    assert [row[:1] for row in together] == draw(keys, 1)
    monkeypatch.setattr(module, "_ROWS", 4)
    assert draw(keys, 5, workers=2) == together


@pytest.mark.parametrize("mean", MEANS)
def test_an_ensemble_draws_from_its_mean(drawn: Any, mean: Mean, without_checks: Any) -> None:
    names, weights, sources = ["pre-norm", "odd widths, no biases", "T5"], [0.2, 0.5, 0.3], drawn.sentences()
    models = [drawn.model(name, seed) for seed, name in enumerate(names)]
    plain, compiled = Ensemble(models, mean, weights), EngineEnsemble(list(map(Engine, models)), mean, weights)
    task = SearchTask(drawn.symbols, max_lengths=11, min_lengths=2, n_best=3)
    for sharpening in HOW[::2]:
        with without_checks():
            expected = step_by_step(plain, *drawn.padded(sources), task, seed=1, sharpening=sharpening)
        results = same(sample(compiled, sources, task, seed=1, sharpening=sharpening), expected, drawn.near)
        assert sum(results) >= len(results) - 1


@pytest.mark.parametrize("members", [1, 2])
def test_with_a_shortlist_it_draws_among_its_symbols(drawn: Any, members: int, without_checks: Any) -> None:
    shortlist, sources = shortlist_of(drawn.vocab), drawn.sentences()
    models = [drawn.model(name) for name in ("pre-norm", "T5")][:members]
    within = [Shortlisted(model, shortlist, drawn.vocab) for model in models]
    engines = [Engine(model, shortlist=shortlist) for model in models]
    task = SearchTask(drawn.symbols, max_lengths=11, min_lengths=2, n_best=3)
    plain: Any = within[0] if members == 1 else Ensemble(within)
    compiled = engines[0] if members == 1 else EngineEnsemble(engines)
    for sharpening in HOW[:4]:
        with without_checks():
            expected = step_by_step(plain, *drawn.padded(sources), task, seed=2, sharpening=sharpening)
        found = sample(compiled, sources, task, seed=2, sharpening=sharpening)
        results = same(found, expected, drawn.near)
        assert sum(results) >= len(results) - 1
        for source, row in zip(sources, found, strict=True):
            assert all(set(one.tokens) <= set(shortlist.of(source).tolist()) for one in row)


def test_frequencies_are_the_probabilities(drawn: Any) -> None:
    """Of the first symbol, over many samples of a sentence: Pearson's chi-square within four deviations of its mean."""
    model, (source,), count = drawn.model(), drawn.sentences(1), 6000
    task = SearchTask(drawn.symbols, max_lengths=1, n_best=count)
    (row,) = sample(Engine(model), [source], task, Search(alpha=0.0))
    found = np.bincount([(*h.tokens, drawn.symbols.end)[0] for h in row], minlength=drawn.vocab)
    with torch.no_grad():
        log_probabilities, _ = model.step(torch.tensor([drawn.symbols.begin]), model.start(*drawn.padded([source])))
    log_probabilities[0, list(drawn.symbols.forbidden)] = -torch.inf
    wanted = count * log_probabilities[0].double().softmax(0).numpy()
    assert not found[list(drawn.symbols.forbidden)].any()
    likely = wanted >= 5
    rest = found[~likely].sum(), wanted[~likely].sum()
    square = sum((a - b) ** 2 / b for a, b in [*zip(found[likely], wanted[likely], strict=True), rest])
    freedom = likely.sum()
    assert square <= freedom + 4 * (2 * freedom) ** 0.5


def test_the_one_most_probable_symbol_is_greedy_and_a_draft_rests(drawn: Any) -> None:
    model, sources = drawn.model("rotary"), drawn.sentences()
    engine, task = Engine(model), SearchTask(drawn.symbols, max_lengths=12, n_best=2)
    greedy = greedy_search(model, *drawn.padded(sources), replace(task, n_best=1))
    drafted = DraftedSearch(engine, Engine(drawn.model("pre-norm")))
    for sharpening in (
        Sharpening(top_k=1), Sharpening(temperature=1e-6), Sharpening(top_p=1e-9), Sharpening(min_p=1.0),
        Sharpening(epsilon=1.0), Sharpening(temperature=1e-300),
    ):  # fmt: skip
        for row, best in zip(sample(engine, sources, task, sharpening=sharpening), greedy, strict=True):
            assert [h.tokens for h in row] == [best.tokens] * 2
        alone = sample(drafted, sources, replace(task, n_best=1), sharpening=sharpening)
        assert [one.tokens for (one,) in alone] == [best.tokens for best in greedy]


def test_forced_symbols_begin_every_sample_at_no_cost(drawn: Any) -> None:
    model, sources = drawn.model("pre-norm"), drawn.sentences()
    symbols = replace(drawn.symbols, forced=(7, 2, 9), forbidden=(0, 1, 2, 9))
    task = SearchTask(symbols, max_lengths=11, n_best=3)
    engine = Engine(model)
    found = sample(engine, sources, task)
    results = same(found, step_by_step(model, *drawn.padded(sources), task), drawn.near)
    assert sum(results) >= len(results) - 1
    assert {h.tokens[:3] for row in found for h in row} == {(7, 2, 9)}
    settings = Search(beam=3)
    with RunningSampling(engine, task, settings, 3, 1, Sharpening()) as running:
        running.add_samples([0], [sources[0]], [2], [0], list(streams(0, [0], 3)))
        ((_, cut),) = running.run(1.0)
    assert [(h.tokens, h.finished, h.log_probability) for h in cut] == [((7, 2), False, 0.0)] * 3


def test_log_probabilities_are_the_models_own(drawn: Any) -> None:
    model, sources = drawn.model("post-norm"), drawn.sentences()
    task = SearchTask(drawn.symbols, max_lengths=9)
    found = [row[0] for row in sample(Engine(model), sources, task, sharpening=Sharpening(temperature=3.0, top_k=40))]
    scores = force(model, *drawn.padded(sources), [h.tokens for h in found], drawn.symbols)
    for one, values in zip(found, scores, strict=True):
        own = values[: len(one.tokens) + one.finished]
        assert one.log_probability == pytest.approx(sum(own), abs=drawn.near)
        assert one.score == pytest.approx(sum(own) / len(own), abs=drawn.near)


def test_progress_counts_sentences(drawn: Any) -> None:
    counted: list[int] = []
    sample(
        Engine(drawn.model()),
        drawn.sentences(5),
        SearchTask(drawn.symbols, n_best=TOGETHER + 3),
        progress=counted.append,
    )
    assert counted == [1] * 5
    assert sample(Engine(drawn.model()), [], SearchTask(drawn.symbols)) == []


def test_what_cannot_be_drawn_is_refused(drawn: Any) -> None:
    engine, sources, task = Engine(drawn.model()), drawn.sentences(2), SearchTask(drawn.symbols, max_lengths=5)
    with pytest.raises(ConfigurationError, match="at least 1 sample"):
        sample(engine, sources, replace(task, n_best=0))
    with pytest.raises(ShapeError, match="got 1 keys for 2 sentences"):
        sample(engine, sources, task, keys=[1])
    with pytest.raises(ConfigurationError, match="no restrictions"):
        sample(engine, sources, task, Search(no_repeat=2))
    others = tuple(symbol for symbol in range(drawn.vocab) if symbol != drawn.symbols.end)
    nothing = replace(task, symbols=replace(drawn.symbols, forbidden=others), min_lengths=1)
    with pytest.raises(MultiheadError, match="every permitted symbol the probability 0"):
        sample(engine, sources, nothing)
    broken = drawn.model("pre-norm")
    with torch.no_grad():
        for parameter in broken.output.parameters():
            parameter.div_(parameter.abs().max()).mul_(3e38)
    for mean in (None, *MEANS):
        members = list(map(Engine, [broken] if mean is None else [drawn.model("pre-norm"), broken]))
        with pytest.raises(MultiheadError, match="NaN"):
            sample(members[0] if mean is None else EngineEnsemble(members, mean), sources, task)


def test_the_library_refuses_impossible_samples(drawn: Any) -> None:
    """Calls that `sample` never makes: without streams, with too many, after a sentence was added, or with a draft."""
    engine, source, task, settings = Engine(drawn.model()), [5, 6, 3], SearchTask(drawn.symbols), Search(beam=2)
    with RunningSampling(engine, task, settings, 9, 1, Sharpening()) as running:
        with pytest.raises(ShapeError, match="1 to 2 random streams for each of 1 sentences, got \\[3\\]"):
            running.add_samples([0], [source], [9], [0], list(streams(0, [0], 3)))
        with pytest.raises(MultiheadError):
            running.add(0, source, 9)
        library, handle = running._library, running._search
        given = [*map(integers, ([0], source, [3], [9], [0]))]
        seeds = streams(0, [0], 3)
        for count in (-1, 0, 3):
            assert library.decoding_add_samples(handle, 1, *given, integers([count]), seeds.ctypes.data) == 0
        assert running.left == 0
        assert library.decoding_run(handle, 0.0) == 0
        running.add_samples([0], [source], [9], [0], list(streams(0, [0], 2)))
        assert library.decoding_sharpen(handle, 1.0, 0, 0.0, 0.0, 0.0) == 1
        assert running.drop(0)
        for wrong in (
            (0.0, 0, 0.0, 0.0, 0.0),
            (1.0, -1, 0.0, 0.0, 0.0),
            (1.0, 0, 1.5, 0.0, 0.0),
            (1.0, 0, 0.0, -1.0, 0.0),
        ):
            assert library.decoding_sharpen(handle, *wrong) == 1
    with engine.open(task, settings, 9, 1) as searching:
        given = [*map(integers, ([0], source, [3], [9], [0], [1]))]
        assert searching._library.decoding_add_samples(searching._search, 1, *given, seeds.ctypes.data) == 0
    draft = DraftedSearch(engine, Engine(drawn.model()))
    with draft.open(task, Search(beam=1), 9, 1) as guessing:
        assert guessing._library.decoding_sharpen(guessing._search, 1.0, 0, 0.0, 0.0, 0.0) == 1
