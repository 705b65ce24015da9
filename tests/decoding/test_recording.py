"""Recorded searches: recording changes nothing, costs nothing if it is off, and the tree is what the search did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from multihead.decoding.beam import beam_search
from multihead.decoding.diverse import diverse_beam_search
from multihead.decoding.lexical import lexical_beam_search
from multihead.decoding.recording import Recorder, Tree
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask

PHRASES = [[[[3]]], [[[4, 5], [5, 5]]], [], [[[3]], [[5]]], []]

SEARCHES: dict[str, tuple[Any, dict[str, Any]]] = {
    "one": (beam_search, {"beam": 1}),
    "beam": (beam_search, {"beam": 3, "n_best": 3}),
    "wide": (beam_search, {"beam": 5, "n_best": 2, "alpha": 0.3}),
    "cut": (beam_search, {"beam": 3, "n_best": 3, "max_lengths": 3, "min_lengths": 2}),
    "groups": (diverse_beam_search, {"beam": 4, "groups": 2, "n_best": 3}),
    "phrases": (lexical_beam_search, {"beam": 4, "n_best": 2, "phrases": PHRASES}),
}


def searched(toys: Any, name: str, seed: int, recorder: Recorder | None) -> Any:
    function, given = SEARCHES[name]
    source, lengths = toys.padded(toys.sources)
    stepper = toys.stepper(toys.random(seed))
    settings = {"max_lengths": 6, **given, "recorder": recorder}
    phrases = [settings.pop("phrases")] if "phrases" in settings else []
    return function(stepper, source, lengths, *phrases, *toys.split(toys.symbols, **settings))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SEARCHES)
def test_the_paths_that_survive_are_what_was_found(toys: Any, name: str, seed: int) -> None:
    """Recording changes nothing, bit for bit."""
    recorder = Recorder(toys.symbols)
    found = searched(toys, name, seed, recorder)
    assert found == searched(toys, name, seed, None)
    parties = SEARCHES[name][1].get("groups", 1)
    for sentence, hypotheses in enumerate(found):
        tree = recorder.tree(hypotheses, sentence, parties)
        end = (toys.symbols.end,)
        assert [tree.path(place) for place in tree.best()] == [h.tokens + end * h.finished for h in hypotheses]
        nodes = [tree.nodes[place] for place in tree.best()]
        assert [(node.rank, node.log_probability, node.score, node.fate) for node in nodes] == [
            (rank, h.log_probability, h.score, "best") for rank, h in enumerate(hypotheses, 1)
        ]
        parents = {node.parent for node in tree.nodes}
        leaves = [node for place, node in enumerate(tree.nodes) if place not in parents]
        assert all(node.fate != "extended" for node in leaves)
        assert sorted(node.rank for node in leaves if node.rank) == [*range(1, len(hypotheses) + 1)]


@pytest.mark.parametrize("seed", range(4))
def test_the_tree_is_the_definition_of_the_search(toys: Any, seed: int) -> None:
    """Every extension of the beam, computed by hand at each step: which ones continued, ended, and were pruned."""
    table, beam = toys.random(seed), 3
    recorder = Recorder(toys.symbols)
    found = searched(toys, "beam", seed, recorder)
    for sentence, source in enumerate(toys.sources):
        tree = recorder.tree(found[sentence], sentence)
        standing: dict[tuple[int, ...], float] = {(): 0.0}
        for step in range(1, max(node.step for node in tree.nodes) + 1):
            extensions: dict[tuple[int, ...], float] = {}
            for path, total in standing.items():
                row = table(source, (toys.symbols.begin, *path)).tolist()
                allowed = set(range(len(row))) - set(toys.symbols.forbidden)
                extensions |= {(*path, symbol): total + row[symbol] for symbol in allowed}
            order = sorted(extensions, key=lambda path: -extensions[path])[: 2 * beam]
            on = [path for path in order if path[-1] != toys.symbols.end][:beam]
            ended = [path for path in order[:beam] if path[-1] == toys.symbols.end]
            here = {tree.path(place): node for place, node in enumerate(tree.nodes) if node.step == step}
            assert {path: node.log_probability for path, node in here.items()} == pytest.approx(
                {path: extensions[path] for path in order}, abs=1e-5
            )
            assert [path for path in on if here[path].place != on.index(path) + 1] == []
            assert {path for path, node in here.items() if node.place is None and node.score is not None} == {*ended}
            assert all(here[path].when == step and here[path].fate == "pruned" for path in {*order} - {*on, *ended})
            check_pruned(tree, step)
            standing = {path: extensions[path] for path in on}


def check_pruned(tree: Tree, step: int) -> None:
    """A hypothesis of the beam that is marked as pruned has no extension in the next beam and none that ended."""
    kept = {node.parent for node in tree.nodes if node.place is not None or node.score is not None}
    for place, node in enumerate(tree.nodes):
        if node.step == step and node.place is not None:
            assert (node.fate == "pruned") == (place not in kept and node.fate not in ("stopped", "best"))
            assert node.when == (step + 1 if node.fate == "pruned" else step)


def test_sentences_have_trees_of_their_own(toys: Any) -> None:
    together = Recorder(toys.symbols)
    found = searched(toys, "beam", 7, together)
    for sentence, source in enumerate(toys.sources):
        alone = Recorder(toys.symbols)
        given, lengths = toys.padded([source])
        stepper = toys.stepper(toys.random(7))
        (own,) = beam_search(
            stepper, given, lengths, SearchTask(toys.symbols, max_lengths=6, n_best=3, recorder=alone), Search(beam=3)
        )
        assert own == found[sentence]
        assert alone.tree(own) == together.tree(found[sentence], sentence)


class Idle(Recorder):
    """A recorder that is called and does nothing."""

    def note(self, *given: Any) -> None: ...


@contextmanager
def operations() -> Iterator[list[str]]:
    """Every operation of PyTorch, in order."""
    done: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            done.append(str(function))
            return function(*args, **(kwargs or {}))

    with Noted():
        yield done


@pytest.mark.parametrize("name", SEARCHES)
def test_without_a_recorder_nothing_is_computed_for_one(toys: Any, name: str) -> None:
    """The search makes the same operations with a recorder as without; the recorder's work is the only cost."""
    done = []
    for recorder in (None, Idle(toys.symbols), Recorder(toys.symbols)):
        with operations() as own:
            searched(toys, name, 1, recorder)
        done.append(own)
    nobody, idle, recorded = done
    assert idle == nobody
    assert len(recorded) > len(nobody)
