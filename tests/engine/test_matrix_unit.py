"""Products by the processor's matrix unit equal those without it: of bytes bit for bit, of bfloat16 up to the order of
summation. The tests are skipped on a processor without a matrix unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from multihead.engine.search import Engine
from multihead.engine.weights import load_search_library


@pytest.fixture
def use() -> Iterator[Callable[[bool], bool]]:
    """Turns the unit on and off; returns whether it is on."""
    library = load_search_library().library
    assert library is not None
    if not library.decoding_matrix_unit(1):
        pytest.skip("this processor has no matrix unit, or the system does not lend it")
    yield lambda wanted: bool(library.decoding_matrix_unit(int(wanted)))
    library.decoding_matrix_unit(1)


@pytest.mark.parametrize("beam", [1, 5])
def test_bytes_are_multiplied_as_without_it(drawn: Any, kind: str, beam: int, use: Callable[[bool], bool]) -> None:
    """For widths that do not fill a tile, one row, several tiles, and tiles that overlap."""
    engine, sources = Engine(drawn.model(kind), "int8"), drawn.sentences(45)
    asked: dict[str, Any] = {"max_lengths": 7, "beam": beam, "n_best": beam}
    assert use(True)
    found = engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
    assert not use(False)
    assert engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=1) == found


def test_bfloat16_differs_by_the_order_of_its_sums(drawn: Any, use: Callable[[bool], bool]) -> None:
    """This is small compared with rounding to bfloat16, and independent of other sentences."""
    model, sources = drawn.model("pre-norm"), drawn.sentences(40)
    engine, asked = Engine(model, "bfloat16"), {"max_lengths": 1, "beam": 1}

    def scores(of: Engine) -> torch.Tensor:
        """Probabilities of the first symbol, which is the same except in a near tie."""
        return torch.tensor(
            [one.log_probability for (one,) in of.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)]
        )

    exact = scores(Engine(model))
    assert use(True)
    by_unit = scores(engine)
    assert not use(False)
    without = scores(engine)
    assert not torch.equal(by_unit, without)  # otherwise the unit was not used
    assert (by_unit - without).abs().median() < 0.1 * (by_unit - exact).abs().median()
    alone = [engine.search([source], *drawn.split(drawn.symbols, **asked), workers=1)[0] for source in sources]
    assert alone == engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
