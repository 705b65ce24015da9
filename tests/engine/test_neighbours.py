"""The compiled search with a datastore equals a model mixed with the neighbours of its states."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.ensemble import Ensemble
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.sampling import sample as step_by_step
from multihead.decoding.search import MEANS, Mean, Search
from multihead.decoding.sharpening import Sharpening
from multihead.decoding.shortlist import Shortlist
from multihead.decoding.task import SearchTask
from multihead.engine import search as module
from multihead.engine.datastore import MOST, Cells, PackedDatastore
from multihead.engine.drafting import DraftedSearch
from multihead.engine.ensemble import EngineEnsemble
from multihead.engine.neighbours import NeighbourSearch
from multihead.engine.sampling import sample
from multihead.engine.search import Engine
from multihead.engine.weights import PRECISIONS, Precision
from multihead.errors import ConfigurationError, ShapeError
from multihead.translating.cells import divide, rounded

COUNT, SHARE, TEMPERATURE = 5, 0.4, 3.0


def in_bytes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows as bytes, and the scale of each."""
    steps = (np.abs(rows).max(axis=1) / 127).astype(np.float32)
    return np.rint(rows / steps[:, None]).astype(np.int8), steps


def entries_of(drawn: Any, model: Any, count: int = 300, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The states of a model with drawn sentences, each with a symbol that was drawn, too."""
    draw = np.random.default_rng(seed)
    source, lengths = drawn.padded(drawn.sentences(40, seed=seed))
    target = torch.from_numpy(draw.integers(4, drawn.vocab, (40, 12)))
    with torch.no_grad():
        states = model.hidden(source, lengths, target).flatten(0, 1)[:count].numpy()
    return *in_bytes(states), draw.integers(3, drawn.vocab, count).astype(np.int32)


class Mixed:
    """A stepper with neighbours in plain arithmetic; its queries are rounded as those of the compiled search are."""

    def __init__(self, stepper: Any, model: Any, entries: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        keys, steps, symbols = entries
        self.stepper, self.symbols = stepper, torch.from_numpy(symbols).long()
        self.keys = torch.from_numpy(keys * steps[:, None]).double()
        model.output.register_forward_pre_hook(lambda _, given: setattr(self, "states", given[0]))
        self.start = stepper.start
        self.states = torch.zeros(0)

    def step(self, tokens: Any, state: Any) -> tuple[torch.Tensor, Any]:
        found, state = self.stepper.step(tokens, state)
        states = self.states.reshape(len(tokens), -1).double()
        top = torch.where((states < 0).any(dim=1, keepdim=True), 127.0, 255.0)
        scale = states.abs().amax(dim=1, keepdim=True) / top
        distances = torch.cdist((states / scale).round() * scale, self.keys) ** 2
        near, places = (-distances).topk(COUNT, dim=1)
        its = torch.zeros(found.shape, dtype=torch.float64)
        its.scatter_add_(1, self.symbols[places], (near / TEMPERATURE).softmax(dim=1))
        return ((1 - SHARE) * found.double().exp() + SHARE * its).log().float(), state


def mixed(models: list[Any], entries: Any, mean: Mean = "probabilities") -> Mixed:
    watched = [copy.deepcopy(model) for model in models]
    return Mixed(watched[0] if len(models) == 1 else Ensemble(watched, mean), watched[0], entries)


def with_neighbours(search: Any, entries: Any) -> NeighbourSearch:
    return NeighbourSearch(search, PackedDatastore(*entries), COUNT, SHARE, TEMPERATURE)


def agree(drawn: Any, found: list[list[Hypothesis]], expected: list[list[Hypothesis]], others: int = 1) -> None:
    """Equal except for a few sentences, in which rounding decides between two neighbours or two hypotheses."""
    same = 0
    for one, other in zip(found, expected, strict=True):
        if [h.tokens for h in one] == [h.tokens for h in other]:
            same += 1
            assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=2e-3)
    assert same >= len(found) - others


@pytest.mark.parametrize("name", ["pre-norm", "post-norm", "odd widths, no biases", "T5", "rotary", "wide heads"])
def test_it_finds_what_the_search_in_pytorch_finds(drawn: Any, name: str, without_checks: Any) -> None:
    model, sources = drawn.model(name), drawn.sentences()
    entries, limits = entries_of(drawn, model), drawn.limits(sources)[0]
    compiled = with_neighbours(Engine(model), entries)
    plain = Engine(model).search(sources, SearchTask(drawn.symbols, max_lengths=limits), Search(beam=4))
    for beam, n_best in ((1, 1), (4, 2)):
        task, search = SearchTask(drawn.symbols, max_lengths=limits, n_best=n_best), Search(beam=beam)
        with without_checks():
            expected = beam_search(mixed([model], entries), *drawn.padded(sources), task, search)
        found = compiled.search(sources, task, search, workers=2)
        agree(drawn, found, expected)
    assert [row[0].tokens for row in plain] != [row[0].tokens for row in found]


@pytest.mark.parametrize("mean", MEANS)
def test_an_ensemble_remembers_by_the_states_of_its_first_model(drawn: Any, mean: Mean) -> None:
    models, sources = [drawn.model("pre-norm"), drawn.model("odd widths, no biases")], drawn.sentences()
    entries, task = entries_of(drawn, models[0]), SearchTask(drawn.symbols, max_lengths=11, min_lengths=2, n_best=3)
    compiled = with_neighbours(EngineEnsemble(list(map(Engine, models)), mean), entries)
    expected = beam_search(mixed(models, entries, mean), *drawn.padded(sources), task, Search(beam=3))
    agree(drawn, compiled.search(sources, task, Search(beam=3)), expected)


def test_samples_are_drawn_from_the_mixture(drawn: Any) -> None:
    model, sources = drawn.model("pre-norm"), drawn.sentences()
    entries, task = entries_of(drawn, model), SearchTask(drawn.symbols, max_lengths=9, n_best=3)
    how: dict[str, Any] = {"seed": 2, "sharpening": Sharpening(top_p=0.95)}
    found = sample(with_neighbours(Engine(model), entries), sources, task, **how)
    expected = step_by_step(mixed([model], entries), *drawn.padded(sources), task, **how)
    pairs = [pair for rows in zip(found, expected, strict=True) for pair in zip(*rows, strict=True)]
    assert sum(one.tokens == other.tokens for one, other in pairs) >= len(pairs) - 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_its_company_changes_no_bit_of_a_sentence(
    drawn: Any, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = drawn.model("pre-norm"), drawn.sentences(20)
    compiled = with_neighbours(Engine(model, precision), entries_of(drawn, model))
    asked = SearchTask(drawn.symbols, max_lengths=12, n_best=3), Search(beam=3)
    together = compiled.search(sources, *asked, workers=1)
    assert compiled.search(sources[::-1], *asked, workers=3) == together[::-1]
    assert [compiled.search([one], *asked, workers=2)[0] for one in sources] == together
    monkeypatch.setattr(module, "MANY_ROWS", 6)
    assert compiled.search(sources, *asked, workers=2) == together


def test_the_nearest_are_those_of_plain_arithmetic() -> None:
    """With whole numbers nothing is rounded: equal to the last bit, and of equal distances the first."""
    draw = np.random.default_rng(1)
    keys, states = draw.integers(-99, 99, (1000, 40)), draw.integers(-99, 99, (70, 40))
    keys[:, 0], states[:, 0] = 127, -127  # the largest number of each row is 127 steps of 1
    keys[500:510] = keys[:10]
    store = PackedDatastore(keys.astype(np.int8), np.ones(1000, np.float32), np.arange(1000, dtype=np.int32))
    scores = states @ keys.T - 0.5 * (keys**2).sum(axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :30]
    for threads in (1, 3):
        entries, values = store.nearest(states.astype(np.float32), 30, threads)
        assert np.array_equal(entries, order)
        assert np.array_equal(values, np.take_along_axis(scores, order, axis=1))
    few = PackedDatastore(keys[:2].astype(np.int8), np.ones(2, np.float32), np.arange(2, dtype=np.int32))
    entries, values = few.nearest(states[:1].astype(np.float32), 4)
    assert sorted(entries[0, :2]) == [0, 1]
    assert list(entries[0, 2:]) == [-1, -1]
    assert np.isneginf(values[0, 2:]).all()


def in_cells(entries: Any) -> tuple[PackedDatastore, Cells, np.ndarray]:
    """Entries in cells of some 20, and their order in them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multihead.translating.cells.CELL", 20)
        order, cells = divide(*entries[:2])
    return PackedDatastore(*(one[order] for one in entries), cells), cells, order


def test_in_all_cells_it_finds_what_it_finds_without(drawn: Any) -> None:
    model, sources = drawn.model(), drawn.sentences()
    entries = entries_of(drawn, model)
    store, cells, _ = in_cells(entries)
    asked = SearchTask(drawn.symbols, max_lengths=11, n_best=2), Search(beam=3)
    expected = with_neighbours(Engine(model), entries).search(sources, *asked)
    for probes in (0, len(cells.sizes), len(cells.sizes) + 5):
        found = NeighbourSearch(Engine(model), store, COUNT, SHARE, TEMPERATURE, probes)
        agree(drawn, found.search(sources, *asked), expected)
    fewer = NeighbourSearch(Engine(model), store, COUNT, SHARE, TEMPERATURE, 1).search(sources, *asked)
    assert fewer != expected


def test_the_nearest_of_some_cells_are_those_of_plain_arithmetic(drawn: Any) -> None:
    entries = entries_of(drawn, drawn.model())
    store, cells, order = in_cells(entries)
    assert sorted(order) == list(range(300))
    keys = (entries[0] * entries[1][:, None]).astype(np.float64)[order]
    centre_of = np.repeat(np.arange(len(cells.sizes)), cells.sizes)
    queries = np.random.default_rng(5).normal(size=(50, 32)).astype(np.float32)

    def scores(rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = queries @ rows.T - 0.5 * (rows**2).sum(axis=1)
        return found

    ranks = np.argsort(np.argsort(-scores(cells.centres.astype(np.float64)), axis=1), axis=1)
    for probes in (1, 3, 6):
        inside = ranks[:, centre_of] < probes
        expected = np.argsort(np.where(inside, -scores(keys), np.inf), axis=1)[:, :COUNT]
        found, values = store.nearest(queries, COUNT, probes=probes)
        assert (found == expected).mean() > 0.9  # rounding can exchange neighbours, and cells of entries on a border
        assert (np.diff(values, axis=1) <= 0).all()
        for threads, some in ((1, slice(None)), (3, slice(7, 9))):
            again = store.nearest(queries[some], COUNT, threads, probes=probes)
            assert np.array_equal(again[0], found[some])
            assert np.array_equal(again[1], values[some])
        assert np.take_along_axis(inside, found, axis=1).mean() > 0.95


def test_many_small_cells_are_looked_into_like_few() -> None:
    """Whole numbers are not rounded, so an entry of one cell is found in the nearest one of 500."""
    draw = np.random.default_rng(6)
    keys = draw.integers(-99, 99, (5_000, 16)).astype(np.int8)
    keys[:, 0] = 127  # the largest number of each row is 127 steps of 1
    sizes, steps, symbols = np.full(500, 10), np.ones(5_000, np.float32), np.arange(5_000, dtype=np.int32)
    cells = Cells(keys[::10].astype(np.float32), sizes)  # the first entry of each is its centre
    store = PackedDatastore(keys, steps, symbols, cells)
    entries, _ = store.nearest(cells.centres, 1, probes=1)
    assert np.array_equal(entries[:, 0], np.arange(0, 5_000, 10))


def test_a_sentence_in_cells_is_the_same_in_any_company(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources = drawn.model("pre-norm"), drawn.sentences(20)
    store, _, _ = in_cells(entries_of(drawn, model))
    compiled = NeighbourSearch(Engine(model, "int8"), store, COUNT, SHARE, TEMPERATURE, 2)
    asked = SearchTask(drawn.symbols, max_lengths=12, n_best=3), Search(beam=3)
    together = compiled.search(sources, *asked, workers=1)
    assert [compiled.search([one], *asked, workers=2)[0] for one in sources] == together
    monkeypatch.setattr(module, "MANY_ROWS", 6)
    assert compiled.search(sources[::-1], *asked, workers=2) == together[::-1]


def test_cells_are_those_of_the_nearest_centres() -> None:
    """Entries around a few points, which are all found; a single entry is its own cell."""
    draw = np.random.default_rng(4)
    points, own = draw.normal(size=(6, 24)).astype(np.float32), draw.integers(0, 6, 900)
    values = points[own] + 0.01 * draw.normal(size=(900, 24)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multihead.translating.cells.CELL", 30)
        order, cells = divide(*rounded(values))
    ends = np.cumsum(cells.sizes)
    assert ends[-1] == 900
    for start, stop in zip(ends - cells.sizes, ends, strict=True):
        assert len(set(own[order[start:stop]])) == 1
        assert (np.diff(order[start:stop]) > 0).all()
    few, alone = divide(*rounded(values[:1]))
    assert list(few) == [0]
    assert list(alone.sizes) == [1]


def test_one_symbol_gets_the_whole_share(drawn: Any) -> None:
    """All entries are followed by the end symbol: the empty translation has (1 - s) p + s."""
    model, sources, end = drawn.model(), drawn.sentences(4), drawn.symbols.end
    keys, steps, symbols = entries_of(drawn, model)
    compiled = NeighbourSearch(
        Engine(model), PackedDatastore(keys, steps, np.full_like(symbols, end)), 7, 0.75, TEMPERATURE
    )
    with torch.no_grad():
        first, _ = model.step(torch.full((4,), drawn.symbols.begin), model.start(*drawn.padded(sources)))
    wanted = (0.25 * first[:, end].double().exp() + 0.75).log().tolist()
    found = compiled.search(sources, SearchTask(drawn.symbols, max_lengths=8), Search(beam=1))
    assert [(one.tokens, one.finished) for (one,) in found] == [((), True)] * 4
    assert [one.log_probability for (one,) in found] == pytest.approx(wanted, abs=1e-5)


def test_what_does_not_fit_is_refused(drawn: Any) -> None:
    model = drawn.model()
    engine, (keys, steps, symbols) = Engine(model), entries_of(drawn, model)
    store = PackedDatastore(keys, steps, symbols)
    for count, share, temperature in ((0, 0.5, 1.0), (MOST + 1, 0.5, 1.0), (4, 1.0, 1.0), (4, 0.0, 1.0), (4, 0.5, 0.0)):
        with pytest.raises(ConfigurationError, match=f"got {count}, {share} and {temperature}"):
            NeighbourSearch(engine, store, count, share, temperature)
    with pytest.raises(ConfigurationError, match=r"width 32 .* this one has 128"):
        NeighbourSearch(Engine(drawn.model("wide heads")), store, 4, 0.5, 1.0)
    beyond = PackedDatastore(keys, steps, symbols + drawn.vocab)
    with pytest.raises(ConfigurationError, match="this one has 32 and 90"):
        NeighbourSearch(engine, beyond, 4, 0.5, 1.0)
    everything = Shortlist(range(drawn.vocab), [0] * (drawn.vocab + 1), [])
    with pytest.raises(ConfigurationError, match="leave out the shortlist"):
        NeighbourSearch(Engine(model, shortlist=everything), store, 4, 0.5, 1.0)
    for wrong in (
        (keys[:0], steps[:0], symbols[:0]),
        (keys, steps[1:], symbols),
        (keys, steps, symbols[1:]),
        (keys[0], steps, symbols),
        (keys, steps, symbols - drawn.vocab),
    ):
        with pytest.raises(ShapeError):
            PackedDatastore(*wrong)
    with pytest.raises(ShapeError, match="width 32, got \\[2, 31\\]"):
        store.nearest(np.zeros((2, 31), np.float32), 4)
    with pytest.raises(ConfigurationError, match="got 0"):
        store.nearest(np.zeros((2, 32), np.float32), 0)
    with pytest.raises(ConfigurationError, match="there are 0 cells, got 3"):
        NeighbourSearch(engine, store, 4, 0.5, 1.0, 3)
    one = np.zeros((2, 32), np.float32)
    for cells in (
        Cells(one, np.array([200, 99])),
        Cells(one, np.array([300, 0])),
        Cells(one, np.array([300])),
        Cells(one[:, 1:], np.array([200, 100])),
    ):
        with pytest.raises(ShapeError, match="expected cells with 300 entries together"):
            PackedDatastore(keys, steps, symbols, cells)


def test_a_draft_rests_and_the_library_refuses_what_cannot_be(drawn: Any) -> None:
    model, sources = drawn.model(), drawn.sentences()
    entries, engine = entries_of(drawn, model), Engine(model)
    task = SearchTask(drawn.symbols, max_lengths=9), Search(beam=1)
    drafted = DraftedSearch(engine, Engine(drawn.model("pre-norm")))
    expected = with_neighbours(engine, entries).search(sources, *task)
    assert with_neighbours(drafted, entries).search(sources, *task) == expected
    store = PackedDatastore(*entries)
    with drafted.open(*task, 9, 1) as running:
        assert running._library.decoding_neighbours(running._search, store.handle, 4, 0, 0.5, 1.0) == 1
    with engine.open(*task, 9, 1) as running:
        library, handle = running._library, running._search
        for count, share, temperature in (
            (0, 0.5, 1.0),
            (5000, 0.5, 1.0),
            (4, 0.0, 1.0),
            (4, 1.0, 1.0),
            (4, 0.5, -1.0),
        ):
            assert library.decoding_neighbours(handle, store.handle, count, 0, share, temperature) == 1
        for probes in (-1, 2):
            assert library.decoding_neighbours(handle, store.handle, 4, probes, 0.5, 1.0) == 1
        assert library.decoding_datastore_cells(store.handle, 0, 0, 7) == 1
        empty = library.decoding_datastore(32)
        assert library.decoding_neighbours(handle, empty, 4, 0, 0.5, 1.0) == 1
        negative = np.array([-1], np.int64)
        key = np.zeros((1, 32), np.float32)
        assert library.decoding_datastore_add(empty, key.ctypes.data, key.ctypes.data, negative.ctypes.data, 1) == 1
        library.decoding_datastore_free(empty)
        assert library.decoding_datastore(0) is None
        running.add(0, sources[0], 9)
        assert library.decoding_neighbours(handle, store.handle, 4, 0, 0.5, 1.0) == 1
    broken = replace(drawn.symbols, forbidden=(0, 1, 2, int(entries[2][0])))
    found = with_neighbours(engine, entries).search(sources, replace(task[0], symbols=broken), Search(beam=4))
    assert all(int(entries[2][0]) not in row[0].tokens for row in found)
