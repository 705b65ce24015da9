"""Compiled forced decoding equals forced decoding: alone or together, in any order, with or without common prefixes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multihead.decoding.scoring import force as step_by_step
from multihead.engine import forcing
from multihead.engine.forcing import force
from multihead.engine.search import WIDEST, Engine
from multihead.engine.weights import PRECISIONS, Precision
from multihead.errors import ConfigurationError, ShapeError

Rows = list[list[int]]


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> Precision:
    found: Precision = request.param
    return found


def pairs(drawn: Any, sources: int = 6, seed: int = 4) -> tuple[Rows, Rows]:
    """Sources with 1 to 9 targets each, of which many begin alike and some are equal, empty, or a part of another."""
    draw = random.Random(seed)
    read, written = [], []
    for source in drawn.sentences(sources, seed=seed):
        whole = [draw.randrange(4, drawn.vocab) for _ in range(draw.randint(1, 14))]
        for _ in range(draw.randint(1, 9)):
            tail = [draw.randrange(4, drawn.vocab) for _ in range(draw.choice([0, 0, 1, 3]))]
            read.append(source)
            written.append([*whole[: draw.randint(0, len(whole))], *tail, drawn.symbols.end])
    return read, written


def test_every_model_scores_as_step_by_step(drawn: Any, kind: str) -> None:
    model = drawn.model(kind)
    sources, targets = pairs(drawn)
    source, lengths = drawn.padded(sources)
    expected = step_by_step(model, source, lengths, [row[:-1] for row in targets], drawn.symbols)
    found = force(Engine(model), sources, targets, drawn.symbols.begin)
    assert [len(row) for row in found] == [len(row) for row in targets]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=drawn.near)


@pytest.mark.parametrize("kind", ["post-norm", "no source end", "three heads, vectors", "parallel blocks, gated, RMS"])
def test_a_translation_is_as_probable_as_its_search_says(drawn: Any, kind: str, precision: Precision) -> None:
    engine, sources = Engine(drawn.model(kind), precision), drawn.sentences(5)
    limits, _ = drawn.limits(sources)
    found = engine.search(sources, *drawn.split(drawn.symbols, beam=6, n_best=6, max_lengths=limits))
    each = [(source, one) for source, row in zip(sources, found, strict=True) for one in row]
    targets = [[*one.tokens, drawn.symbols.end] for _, one in each]
    values = force(engine, [source for source, _ in each], targets, drawn.symbols.begin)
    for (_, one), row in zip(each, values, strict=True):
        assert sum(row[: len(one.tokens) + one.finished]) == pytest.approx(one.log_probability, abs=drawn.near)


def test_together_alone_and_in_any_order_to_the_last_bit(
    drawn: Any, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(drawn.model("two heads of keys, reglu"), precision)
    sources, targets = pairs(drawn, 40)
    together = force(engine, sources, targets, drawn.symbols.begin, workers=2)
    alone = [force(engine, [one], [other], drawn.symbols.begin)[0] for one, other in zip(sources, targets, strict=True)]
    assert alone == together
    order = random.Random(1).sample(range(len(sources)), len(sources))
    mixed = force(engine, [sources[i] for i in order], [targets[i] for i in order], drawn.symbols.begin, workers=1)
    assert mixed == [together[i] for i in order]
    monkeypatch.setattr(forcing, "_AT_A_TIME", 50)
    assert force(engine, sources, targets, drawn.symbols.begin, workers=3) == together


def test_more_targets_of_a_source_than_are_computed_together(drawn: Any) -> None:
    engine, (source, *_) = Engine(drawn.model("pre-norm")), drawn.sentences(1)
    draw = random.Random(6)
    every = [[*(draw.randrange(4, 7) for _ in range(draw.randint(0, 9))), 3] for _ in range(2 * WIDEST + 1)]
    found = force(engine, [source] * len(every), every, drawn.symbols.begin)
    known: dict[tuple[int, ...], list[float]] = {}
    for target, row in zip(every, found, strict=True):
        assert known.setdefault(tuple(target), row) == row
    for target in list(known)[:20]:
        assert force(engine, [source], [list(target)], drawn.symbols.begin) == [known[target]]


def test_nothing_to_score(drawn: Any) -> None:
    assert force(Engine(drawn.model()), [], [], drawn.symbols.begin) == []


def test_what_cannot_be_scored(drawn: Any) -> None:
    engine = Engine(drawn.model())
    with pytest.raises(ShapeError, match="1 targets for 2 sources"):
        force(engine, [[3], [3]], [[3]], 2)
    for sources, targets, said in (
        ([[]], [[3]], "ids of a source"),
        ([[3]], [[]], "ids of a target"),
        ([[drawn.vocab]], [[3]], f"from 0 to {drawn.vocab - 1}"),
        ([[3]], [[-1]], "ids of a target"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            force(engine, sources, targets, 2)
    with pytest.raises(ConfigurationError, match="begin symbol"):
        force(engine, [[3]], [[3]], drawn.vocab)
    with pytest.raises(ConfigurationError, match="threads"):
        force(engine, [[3]], [[3]], 2, workers=0)
