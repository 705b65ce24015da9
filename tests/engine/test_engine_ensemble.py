"""An ensemble of engines is the `Ensemble` of their models, and its sentences do not influence each other."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.ensemble import Ensemble
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.scoring import force
from multihead.decoding.search import MEANS, Mean, Search
from multihead.decoding.shortlist import Shortlist, Shortlisted
from multihead.decoding.task import SearchTask
from multihead.engine.ensemble import MOST_MODELS, EngineEnsemble
from multihead.engine.search import Engine
from multihead.engine.weights import PRECISIONS, load_search_library
from multihead.errors import ConfigurationError, MultiheadError
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

MIXED = ["pre-norm", "odd widths, no biases", "T5", "learned positions, gelu", "no source end"]
"""Models that differ in everything but their vocabularies."""


def engines(drawn: Any, names: list[str], precision: Any = "float32", shortlist: Any = None) -> list[Engine]:
    return [Engine(drawn.model(name, seed), precision, shortlist) for seed, name in enumerate(names, start=1)]


def shortlist_of(vocab: int) -> Shortlist:
    draw = np.random.default_rng(1)
    always = [0, 2, 3, *draw.choice(np.arange(4, vocab), 20, replace=False).tolist()]
    return Shortlist(always, np.arange(vocab + 1) * 4, draw.integers(4, vocab, vocab * 4))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(
    ("names", "weights", "more"),
    [
        (MIXED[:2], None, {"beam": 1, "n_best": 1}),
        (MIXED[:2], [0.2, 0.8], {"beam": 5, "n_best": 2, "stopping": "patience", "patience": 1.5, "alpha": 0.0}),
        (MIXED, [1.0, 2.0, 0.5, 3.0, 1.5], {"beam": 4, "n_best": 4, "alpha": 0.7}),
    ],
)
def test_it_finds_what_the_ensemble_in_pytorch_finds(
    drawn: Any, mean: Mean, names: list[str], weights: Any, more: dict[str, Any], without_checks: Any
) -> None:
    members, sources = engines(drawn, names), drawn.sentences()
    limits, least = drawn.limits(sources)
    asked = {"max_lengths": limits, "min_lengths": least, **more}
    plain = Ensemble([engine.model for engine in members], mean, weights)
    with without_checks():
        expected = beam_search(plain, *drawn.padded(sources), *drawn.split(drawn.symbols, **asked))
    found = EngineEnsemble(members, mean, weights).search(sources, *drawn.split(drawn.symbols, **asked), workers=2)
    same = [drawn.alike(one, other) for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(same) - 1  # a near tie


@pytest.mark.parametrize("mean", MEANS)
def test_with_a_shortlist_each_model_is_normalized_within_it(drawn: Any, mean: Mean) -> None:
    shortlist, sources = shortlist_of(drawn.vocab), drawn.sentences()
    members = engines(drawn, MIXED[:3], shortlist=shortlist)
    plain = Ensemble([Shortlisted(engine.model, shortlist, drawn.vocab) for engine in members], mean)
    asked: dict[str, Any] = {"max_lengths": 11, "beam": 4, "n_best": 4, "min_lengths": 2}
    expected = beam_search(plain, *drawn.padded(sources), *drawn.split(drawn.symbols, **asked))
    found = EngineEnsemble(members, mean).search(sources, *drawn.split(drawn.symbols, **asked))
    assert sum(drawn.alike(one, other) for one, other in zip(found, expected, strict=True)) >= len(found) - 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mean", MEANS)
def test_of_a_model_with_itself_it_is_that_model(drawn: Any, precision: Any, mean: Mean) -> None:
    (alone,), sources = engines(drawn, ["pre-norm"], precision), drawn.sentences()
    asked: dict[str, Any] = {"max_lengths": 12, "beam": 4, "n_best": 4, "min_lengths": 2}
    expected = alone.search(sources, *drawn.split(drawn.symbols, **asked))
    assert EngineEnsemble([alone], mean).search(sources, *drawn.split(drawn.symbols, **asked)) == expected
    twice = EngineEnsemble([alone, alone], mean).search(sources, *drawn.split(drawn.symbols, **asked))
    if mean == "log-probabilities":
        assert twice == expected  # twice half of a logit: exact
    assert all(drawn.alike(one, other, 1e-5) for one, other in zip(twice, expected, strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("short", [False, True])
def test_its_company_changes_no_bit_of_a_sentence(drawn: Any, precision: Any, mean: Mean, short: bool) -> None:
    shortlist = shortlist_of(drawn.vocab) if short else None
    together = EngineEnsemble(engines(drawn, MIXED[:3], precision, shortlist), mean, [1.0, 2.0, 3.0])
    sources, asked = drawn.sentences(24), {"max_lengths": 14, "beam": 3, "n_best": 3}
    found = together.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
    assert together.search(sources, *drawn.split(drawn.symbols, **asked), workers=2) == found
    assert together.search(sources[::-1], *drawn.split(drawn.symbols, **asked), workers=1) == found[::-1]
    assert [together.search([one], *drawn.split(drawn.symbols, **asked))[0] for one in sources] == found


@pytest.mark.parametrize("mean", MEANS)
def test_rows_of_a_large_vocabulary_that_are_kept_in_parts(drawn: Any, mean: Mean) -> None:
    """More logits than are kept at a time: 64 rows of 40,000 symbols and two models."""
    sizes: dict[str, Any] = {"width": 16, "heads": 2, "inner": 16, "encoder_layers": 1, "decoder_layers": 1}
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = TransformerConfig(source_vocab=90, target_vocab=40_000, tie_embeddings=False, **sizes)
        models.append(Transformer(config).eval())
    sources, asked = drawn.sentences(14), {"max_lengths": 4, "beam": 5, "n_best": 2}
    together = EngineEnsemble([Engine(model) for model in models], mean)
    found = together.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
    assert [together.search([one], *drawn.split(drawn.symbols, **asked))[0] for one in sources] == found
    expected = beam_search(Ensemble(models, mean), *drawn.padded(sources), *drawn.split(drawn.symbols, **asked))
    assert sum(drawn.alike(one, other) for one, other in zip(found, expected, strict=True)) >= len(found) - 1


@pytest.mark.parametrize("mean", MEANS)
def test_its_log_probability_is_the_ensembles(drawn: Any, mean: Mean) -> None:
    """Forced symbols cost nothing, forbidden ones keep their share of the probabilities."""
    members, sources = engines(drawn, MIXED[:3]), drawn.sentences()
    plain = Ensemble([engine.model for engine in members], mean)
    symbols = replace(drawn.symbols, forced=(7, 9), forbidden=(0, 1, 2, 9, 11, 40))
    task = SearchTask(symbols, max_lengths=9, min_lengths=5)
    found = [row[0] for row in EngineEnsemble(members, mean).search(sources, task, Search(beam=3))]
    assert {one.tokens[:2] for one in found} == {(7, 9)}
    assert not {11, 40} & {token for one in found for token in one.tokens}
    scores = force(plain, *drawn.padded(sources), [one.tokens for one in found], symbols)
    for one, values in zip(found, scores, strict=True):
        assert one.log_probability == pytest.approx(sum(values[2 : len(one.tokens) + one.finished]), abs=drawn.near)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("forced", [(), (7,)])
def test_nan_of_one_model_is_an_error(drawn: Any, mean: Mean, forced: tuple[int, ...]) -> None:
    good, bad = engines(drawn, ["pre-norm", "pre-norm"])
    with torch.no_grad():
        bad.model.target_embedding.table.weight.mul_(math.nan)  # not copied
    task = SearchTask(replace(drawn.symbols, forced=forced), max_lengths=9)
    assert EngineEnsemble([good, good], mean).search(drawn.sentences(2), task)
    for members in ([good, bad], [bad, good]):
        with pytest.raises(MultiheadError, match="NaN"):
            EngineEnsemble(members, mean).search(drawn.sentences(2), task)


def test_engines_that_do_not_fit_are_refused(drawn: Any) -> None:
    one = Engine(drawn.model())
    sizes: dict[str, Any] = {"width": 32, "heads": 2, "inner": 48, "encoder_layers": 1, "decoder_layers": 1}
    untied = {"tie_embeddings": False, "tie_output": False}
    for side, vocabularies in (("source", (91, 90)), ("target", (90, 91))):
        config = TransformerConfig(source_vocab=vocabularies[0], target_vocab=vocabularies[1], **sizes, **untied)
        with pytest.raises(ConfigurationError, match=rf"one {side} vocabulary, got \[90, 91\]"):
            EngineEnsemble([one, Engine(Transformer(config).eval())])
    with pytest.raises(ConfigurationError, match="one precision"):
        EngineEnsemble([one, Engine(drawn.model(), "int8")])
    with pytest.raises(ConfigurationError, match="same shortlist, or none"):
        EngineEnsemble([one, Engine(drawn.model(), shortlist=shortlist_of(drawn.vocab))])
    with pytest.raises(ConfigurationError, match="at least one model"):
        EngineEnsemble([])
    with pytest.raises(ConfigurationError, match=f"up to {MOST_MODELS} models"):
        EngineEnsemble([one] * (MOST_MODELS + 1))
    with pytest.raises(ConfigurationError, match="as many positive weights"):
        EngineEnsemble([one, one], weights=[1.0, math.nan])


def test_it_is_current_as_long_as_all_its_models_are(drawn: Any) -> None:
    members = engines(drawn, MIXED[:2])
    together = EngineEnsemble(members)
    assert together.current
    with torch.no_grad():
        members[1].model.output.weight.mul_(1.0)
    assert not together.current


def test_sentences_join_and_leave_a_running_ensemble(drawn: Any) -> None:
    together, sources = EngineEnsemble(engines(drawn, MIXED)), drawn.sentences(20)
    expected = together.search(sources, SearchTask(drawn.symbols, max_lengths=12, n_best=2), Search(beam=3))
    found: dict[int, list[Hypothesis]] = {}
    with together.open(SearchTask(drawn.symbols, n_best=2), Search(beam=3), 12, 2) as running:
        for number, source in enumerate(sources):
            running.add(number, source, 12)
            found.update(running.run(0.0))
        dropped = {number for number in (17, 18, 19) if running.drop(number)}
        while running.left:
            found.update(running.run(1.0))
    assert found.keys() | dropped == set(range(20))
    assert all(found[number] == expected[number] for number in found)


def test_the_c_interface_refuses_models_that_do_not_fit(drawn: Any) -> None:
    library = load_search_library().library
    assert library is not None
    one, other = engines(drawn, MIXED[:2])
    short = Engine(one.model, shortlist=shortlist_of(drawn.vocab))
    fewer = Engine(other.model, shortlist=Shortlist([2, 3], [0] * (drawn.vocab + 1), []))
    narrow = Engine(other.model, "int8")
    divisors = (ctypes.c_double * 10)(*[1.0] * 10)

    def opened(members: list[Engine], lists: list[Any], shares: list[float], count: int, mean: int) -> Any:
        numbers = (ctypes.c_int64 * 10)(count, 2, 1, 0, 2, 3, 1, 64, mean, 1)
        models = (ctypes.c_void_p * len(members))(*[engine.packed.handle for engine in members])
        shortlists = (ctypes.c_void_p * len(lists))(*lists)
        weights = (ctypes.c_double * len(shares))(*shares)
        return library.decoding_search(models, shortlists, weights, numbers, 1.0, None, 0, None, 0, divisors, 10)

    lists = [short.packed.shortlist_handle, fewer.packed.shortlist_handle]
    for members, shortlists, shares, count, mean in (
        ([one, other], [None, None], [0.5, 0.5], 0, 0),
        ([one, other], [None, None], [0.5, 0.5], -1, 0),
        ([one, other], [None, None], [0.5, 0.5], MOST_MODELS + 1, 0),
        ([one, other], [None, None], [0.5, 0.5], 2, 2),
        ([one, other], [None, None], [0.5, 0.5], 2, -1),
        ([one, other], [None, None], [0.5, -0.5], 2, 0),
        ([one, other], [None, None], [0.5, math.nan], 2, 0),
        ([one, other], [None, None], [0.5, math.inf], 2, 0),
        ([one, narrow], [None, None], [0.5, 0.5], 2, 0),
        ([short, other], [lists[0], None], [0.5, 0.5], 2, 0),
        ([one, short], [lists[0], lists[0]], [0.5, 0.5], 2, 0),
        ([short, fewer], lists, [0.5, 0.5], 2, 0),
    ):
        assert opened(members, shortlists, shares, count, mean) is None
    search = opened([one, other], [None, None], [0.5, 0.5], 2, 1)
    assert search is not None
    table, words = torch.zeros(8, 64), (ctypes.c_int64 * 1)(4)
    for number in (-1, 2, 2**40):
        assert library.decoding_positions(search, number, table.data_ptr(), 1, table.data_ptr(), 1) == 1
    assert library.decoding_positions(search, 0, table.data_ptr(), 1, table.data_ptr(), 1) == 0
    assert library.decoding_add(search, 1, words, 1, 9, 0) == 1  # the second model has no positions
    library.decoding_search_free(search)
