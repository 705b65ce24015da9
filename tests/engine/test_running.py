"""A running search can be inspected, and sentences can be removed from it, without any effect on the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import processes
import pytest

from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine, RunningSearch
from multihead.errors import ConfigurationError

LIMIT = 14

Found = dict[int, list[Hypothesis]]


def finish(running: RunningSearch, sources: Sequence[list[int]], between: Callable[[int, Found], None]) -> Found:
    """The results of the sentences, one step at a time; ``between`` is called with the number of steps made."""
    found: Found = {}
    for number, source in enumerate(sources):
        running.add(number, source, LIMIT)
    steps = 0
    between(steps, found)
    while running.left:
        found.update(running.run(0.0))
        steps += 1
        between(steps, found)
    return found


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_dropped_ones_never_come_and_the_others_do_not_notice(drawn: Any, beam: int, workers: int) -> None:
    """From the queue, from the batch, when done, twice, or unknown: the results of the others are equal bit for bit."""
    engine, sources = Engine(drawn.model("pre-norm")), drawn.sentences(24)
    settings = SearchTask(drawn.symbols, n_best=beam), Search(beam=beam)
    with engine.open(*settings, LIMIT, workers) as running:
        whole = finish(running, sources, lambda steps, found: None)
    assert whole.keys() == set(range(24))
    gone: dict[int, int] = {}

    def drop(steps: int, found: Found) -> None:
        for number, when in ((0, 0), (23, 0), (1, 1), (5, 2), (6, 2), (7, 4), (11, 6)):
            if when != steps or number in found:
                continue
            left = running.left
            assert running.drop(number)
            assert running.left == left - 1
            assert not running.drop(number)
            assert running.leading(number) is None
            assert running.left == left - 1
            gone[number] = steps
        assert not running.drop(99)

    with engine.open(*settings, LIMIT, workers) as running:
        found = finish(running, sources, drop)
    assert len(gone) >= 5
    assert found == {number: hypotheses for number, hypotheses in whole.items() if number not in gone}


def test_what_is_done_and_not_yet_handed_over_can_be_dropped(drawn: Any) -> None:
    engine, sources = Engine(drawn.model()), drawn.sentences(3)
    with engine.open(SearchTask(drawn.symbols), Search(beam=2), LIMIT, 1) as running:
        for number, source in enumerate(sources):
            running.add(number, source, 1)  # a step each
        first, _ = next(running.run(0.0))
        rest = [number for number in range(3) if number != first]
        assert running.left == 0
        assert running.drop(rest[0])
        assert running.left == 0
        assert [number for number, _ in running.run(0.0)] == [rest[1]]


def test_leading_is_the_best_of_what_goes_on(drawn: Any) -> None:
    """After t steps it is the best unfinished one of the same search with a limit of t; before, there is none."""
    beam, source = 3, drawn.sentences(1, seed=5)[0]
    engine = Engine(drawn.model("pre-norm"))
    seen = []

    def look(steps: int, found: Found) -> None:
        leading = running.leading(0)
        assert (leading is None) == (steps == 0 or bool(found))
        if leading is not None:
            seen.append(leading)

    with engine.open(SearchTask(drawn.symbols, n_best=beam), Search(beam=beam), LIMIT, 1) as running:
        finish(running, [source], look)
    assert len(seen) > 4
    compared = 0
    for steps, leading in enumerate(seen, 1):
        (cut,) = engine.search([source], SearchTask(drawn.symbols, max_lengths=steps, n_best=beam), Search(beam=beam))
        open_ones = [hypothesis.tokens for hypothesis in cut if not hypothesis.finished]
        assert len(leading) == steps
        assert not open_ones or leading == open_ones[0]
        compared += bool(open_ones)
    assert compared > 3


def test_with_a_beam_of_one_leading_grows_into_the_translation(drawn: Any) -> None:
    engine, sources = Engine(drawn.model()), drawn.sentences(9)
    settings = SearchTask(drawn.symbols), Search(beam=1)
    views: dict[int, list[tuple[int, ...]]] = {}

    def look(steps: int, found: Found) -> None:
        for number in range(9):
            leading = running.leading(number)
            assert leading is None or number not in found
            if leading is not None:
                views.setdefault(number, []).append(leading)

    with engine.open(*settings, LIMIT, 2) as running:
        found = finish(running, sources, look)
    for number, seen in views.items():
        whole = found[number][0].tokens
        assert seen == [whole[: len(one)] for one in seen]
        assert [len(one) for one in seen] == list(range(1, len(seen) + 1))
    assert len(views) > 4


def test_reordering_is_a_part_of_a_step(drawn: Any) -> None:
    """Its time is reported separately; before the first step it is zero."""
    engine = Engine(drawn.model())
    with engine.open(SearchTask(drawn.symbols), Search(beam=5), LIMIT, 2) as running:
        assert running.seconds == (0.0, 0.0)
        before = 0.0

        def look(steps: int, found: Found) -> None:
            nonlocal before
            reordering, stepping = running.seconds
            assert 0.0 <= reordering <= stepping
            assert stepping > before or steps == 0
            before = stepping

        finish(running, drawn.sentences(9), look)
        assert running.seconds[0] > 0.0


def test_nothing_is_asked_of_a_closed_search(drawn: Any) -> None:
    with Engine(drawn.model()).open(SearchTask(drawn.symbols), Search(beam=2), LIMIT) as running:
        pass
    for ask in (lambda: running.drop(0), lambda: running.leading(0), lambda: running.seconds):
        with pytest.raises(ConfigurationError, match="closed"):
            ask()


FULL = """
import resource, sys
import torch
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine
from multihead.errors import SurroundingsError
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

torch.set_num_threads(int(sys.argv[1]))
sizes = dict(width=64, heads=2, inner=64, encoder_layers=1, decoder_layers=2)
model = Transformer(TransformerConfig(source_vocab=40, target_vocab=40, **sizes)).eval()
engine, symbols, sources = Engine(model), Symbols(2, 3, (0, 1, 2)), [[5, 6, 7, 3]] * 8
short, long, search = SearchTask(symbols, 9), SearchTask(symbols, 2000, 1999), Search(beam=8)
engine.search(sources, short, search)
engine.packed.positions(2000)
with open("/proc/self/statm") as sizes:
    now = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (24 << 20), resource.RLIM_INFINITY))
try:
    engine.search(sources, long, search)
except SurroundingsError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(engine.search(sources, short, search)))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is set by what Linux says of a process")
@pytest.mark.parametrize("threads", [1, 2])
def test_too_little_memory_is_said_and_the_next_search_runs(threads: int) -> None:
    done = processes.run([sys.executable, "-c", FULL, str(threads)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said, found = done.stdout.splitlines()
    assert said.startswith("there is not enough memory for this search")
    assert found == "8"
