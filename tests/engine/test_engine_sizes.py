"""Sizes, ids and times are checked before they reach compiled code; wrong ones raise an error."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.networks import NetworkWeights, why_not
from multihead.engine.search import LONGEST, Engine, EngineCache
from multihead.engine.weights import load_search_library, model_weights
from multihead.errors import ConfigurationError, ShapeError
from multihead.models.transformer import Transformer


def cut(module: nn.Module, name: str = "weight", rows: int = 1) -> None:
    weight = getattr(module, name)
    setattr(module, name, nn.Parameter(weight.detach()[:-rows].clone()))


WRONG: dict[str, Callable[[Transformer], object]] = {
    "output.weight": lambda model: cut(model.output),
    "source_embedding.table.weight": lambda model: cut(model.source_embedding.table),
    "target_embedding.table.weight": lambda model: cut(model.target_embedding.table),
    "encoder.0.feed_forward.expand.weight": lambda model: cut(model.encoder[0].feed_forward.expand),
    "encoder.1.feed_forward.contract.bias": lambda model: cut(model.encoder[1].feed_forward.contract, "bias"),
    "decoder.0.cross_attention.in_projection.weight": lambda model: cut(model.decoder[0].cross_attention.in_projection),
    "decoder.1.self_attention.output_projection.weight": lambda model: cut(
        model.decoder[1].self_attention.output_projection
    ),
    "decoder.1.self_residual.norm.weight": lambda model: cut(model.decoder[1].self_residual.norm),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_weight_of_another_shape_is_refused_by_name(drawn: Any, name: str) -> None:
    model = drawn.model("odd widths, no biases" if "target" in name else "pre-norm")
    assert why_not(model) is None
    WRONG[name](model)
    reason = why_not(model)
    assert reason is not None
    assert name.split(".")[-1] in reason
    assert "and the model's settings say" in reason
    with pytest.raises(ConfigurationError, match="the model's settings say"):
        Engine(model)
    assert EngineCache().get(model, "float32") == reason
    with pytest.raises(ShapeError, match="the compiled search expected a float32 weight"):
        model_weights(NetworkWeights(model), "int8")


def test_sizes_of_the_heads_that_do_not_fit_the_weights_are_refused(drawn: Any) -> None:
    for name, value in (("heads", 4), ("heads", 1), ("kv_heads", 1), ("key_width", 64)):
        model = drawn.model("pre-norm")
        setattr(next(m for m in model.modules() if hasattr(m, "kv_heads")), name, value)
        with pytest.raises((ShapeError, ConfigurationError)):
            Engine(model)


def test_positions_that_were_cut_or_converted_later_are_refused(drawn: Any) -> None:
    for change in (lambda table: cut(table, rows=7), lambda table: table.double()):
        model = drawn.model("learned positions, gelu")
        engine = Engine(model)
        change(model.target_embedding.positions.table)
        with pytest.raises(ShapeError, match="expected a float32 weight"):
            engine.search(drawn.sentences(2), SearchTask(drawn.symbols, max_lengths=9))


def test_embeddings_whose_memory_was_released_are_not_read(drawn: Any) -> None:
    model = drawn.model()
    engine = Engine(model)
    model.source_embedding.table.weight.untyped_storage().resize_(0)
    with pytest.raises(ConfigurationError, match="memory of the model's embeddings was released"):
        engine.search([[3]], SearchTask(drawn.symbols, max_lengths=9))


def test_numbers_outside_their_range_are_refused(drawn: Any) -> None:
    engine = Engine(drawn.model())
    task = SearchTask(drawn.symbols, max_lengths=9)
    for longest in (0, -1, LONGEST + 1, 2**64 + 9):
        with pytest.raises(ConfigurationError, match="a length limit is from 1 to"):
            engine.open(task, Search(), longest)
    for symbols in (Symbols(drawn.vocab, 3, ()), Symbols(2, 3, (), forced=(2**64 + 2,))):
        with pytest.raises(ConfigurationError, match="not of a vocabulary"):
            engine.open(SearchTask(symbols), Search(), 9)
    with engine.open(SearchTask(Symbols(2, 3, (0, 2**70))), Search(), 9) as running:
        for source in ([2**64 + 4], [-1], [drawn.vocab], []):
            with pytest.raises(ConfigurationError, match="ids from 0"):
                running.add(0, source, 9)
        with pytest.raises(TypeError):
            running.add(0, [4.5], 9)  # type: ignore[list-item]
        with pytest.raises(ConfigurationError, match="ids from 0"):
            running.add_all([0, 1], [[4, 3], [drawn.vocab]], [9, 9], [0, 0])
        with pytest.raises(ValueError, match="longer"):
            running.add_all([0], [[4, 3], [4, 3]], [9, 9], [0, 0])
        assert running.left == 0
        for limit, minimum in ((10, 0), (0, 0), (2**64 + 5, 0), (9, 9), (9, -1)):
            with pytest.raises(ConfigurationError, match="0 <= minimum < limit"):
                running.add(0, [4, 3], limit, minimum)
        for seconds in (-1.0, math.nan):
            with pytest.raises(ConfigurationError, match="number of seconds"):
                list(running.run(seconds))
        running.add(0, [4, 3], 9)
        assert [number for number, _ in running.run(math.inf)] == [0]


def test_a_search_that_is_closed_while_its_results_are_read_is_not_touched(drawn: Any) -> None:
    with Engine(drawn.model()).open(SearchTask(drawn.symbols), Search(), 9) as running:
        for number in range(3):
            running.add(number, [4, 3], 9)
        results = running.run(10.0)
        next(results)
    with pytest.raises(ConfigurationError, match="was closed"):
        next(results)
    with pytest.raises(ConfigurationError, match="was closed"):
        next(running.run(10.0))
    with pytest.raises(ConfigurationError, match="was closed"):
        running.add(3, [4, 3], 9)


def test_threads_that_share_a_search_take_turns(drawn: Any) -> None:
    sources = drawn.sentences(120)
    engine = Engine(drawn.model())
    expected = engine.search(sources, SearchTask(drawn.symbols, max_lengths=9), Search(beam=3))
    found: dict[int, Any] = {}
    with engine.open(SearchTask(drawn.symbols), Search(beam=3), 9) as running:

        def work(first: int) -> None:
            for number in range(first, 120, 4):
                running.add(number, sources[number], 9)
                running.leading(number)
                found.update(running.run(0.0))

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while running.left:
            found.update(running.run(1.0))
        found.update(running.run(0.0))
    assert [found[number] for number in range(120)] == expected


def test_the_c_interface_refuses_sizes_whose_products_overflow() -> None:
    library = load_search_library().library
    assert library is not None
    good = [0, 8, 2, 2, 4, 4, 8, 1, 1, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    scales, tensors = (ctypes.c_float * 3)(1, 1, 1e-5), (ctypes.c_void_p * 1)()
    for place in range(1, 11):
        for size in (-1, 2**31 + 1, 2**62, -(2**63)):
            sizes = [*good[:place], size, *good[place + 1 :]]
            assert library.decoding_model((ctypes.c_int64 * len(sizes))(*sizes), scales, tensors) is None
    wrong: list[dict[int, int]] = [
        {2: 2**20, 4: 2**20},
        {2: 3},
        {0: 3},
        {11: 8},
        {1: 0},
        {16: -1},
        {16: 2**40},
        {17: 2},
    ]
    for changes in (
        *wrong,
        {18: 2},
        {18: 1, 4: 5},
        {19: 2},
        {19: 1, 16: 9},
        {20: 3},
        {21: -1},
        {22: 1},
        {22: 2, 12: 1},
        {23: -1},
        {23: 4, 16: 9},
    ):
        sizes = [changes.get(place, size) for place, size in enumerate(good)]
        assert library.decoding_model((ctypes.c_int64 * len(sizes))(*sizes), scales, tensors) is None


def test_the_c_interface_refuses_impossible_searches(drawn: Any) -> None:
    engine = Engine(drawn.model())
    library = load_search_library().library
    assert library is not None
    good, divisors = [1, 2, 1, 0, 2, 3, 1, 64, 0, 1], (ctypes.c_double * 10)(*[1.0] * 10)
    models, shortlists = (ctypes.c_void_p * 1)(engine.packed.handle), (ctypes.c_void_p * 1)(None)

    def opened_with(given: list[int]) -> int | None:
        numbers, shares = (ctypes.c_int64 * 10)(*given), (ctypes.c_double * 1)(1.0)
        search: int | None = library.decoding_search(
            models, shortlists, shares, numbers, 1.0, None, 0, None, 0, divisors, 10
        )
        return search

    wrong = [(1, 0), (1, 256), (2, 0), (2, 3), (3, 3), (4, -1), (4, 90), (5, 2**40), (6, 0), (6, 2000)]
    wrong += [(7, 0), (8, 2), (9, 0)]
    for place, value in wrong:
        assert opened_with([*good[:place], value, *good[place + 1 :]]) is None
    opened = opened_with(good)
    assert opened is not None
    one, other = engine.packed.positions(9)
    assert library.decoding_positions(opened, 0, one.data_ptr(), len(one), other.data_ptr(), len(other)) == 0
    for words, limit, minimum in (([90], 9, 0), ([-1], 9, 0), ([4], 10, 0), ([4], 0, 0), ([4], 9, -1), ([], 9, 0)):
        row = (ctypes.c_int64 * len(words))(*words)
        assert library.decoding_add(opened, 1, row, len(words), limit, minimum) == 1
    assert library.decoding_add(opened, 1, (ctypes.c_int64 * 1)(4), 2**62, 9, 0) == 1
    library.decoding_search_free(opened)


def test_weights_with_a_negative_view_are_read_as_they_are(drawn: Any) -> None:
    model, negated = drawn.model(), drawn.model()
    with torch.no_grad():
        negated.output.weight = nn.Parameter(torch._neg_view(-negated.output.weight.detach()))
    sources, task = drawn.sentences(3), SearchTask(drawn.symbols, max_lengths=9)
    assert Engine(negated).search(sources, task) == Engine(model).search(sources, task)
