"""Budgets of connections: active ones are kept; of the others, the one that has been idle longest is closed."""

from __future__ import annotations

import random
import resource

import pytest

from multihead.errors import SurroundingsError
from multihead.serving.connections import Connections, Wait, connection_limits


class Line:
    """A connection that records why it was closed."""

    def __init__(self) -> None:
        self.reason = ""

    def abort(self, reason: str) -> None:
        self.reason = reason


def lines(connections: Connections, *waits: Wait | None, held: int = 0) -> list[Line]:
    made = [Line() for _ in waits]
    for line, wait in zip(made, waits, strict=True):
        assert connections.add(line)
        connections.update(line, wait, held)
    return made


def test_the_one_that_waits_longest_goes_first_ones_before_kept_ones() -> None:
    connections = Connections(6, 1000)
    kept = lines(connections, Wait.FRESH, Wait.NEXT, None, Wait.HEAD, Wait.BODY, Wait.HEAD)
    order = [kept[3], kept[5], kept[4], kept[1], kept[0]]
    for place, gone in enumerate(order):
        assert not gone.reason
        lines(connections, None)
        assert [line.reason for line in order[: place + 1]] == ["too_many"] * (place + 1)
        assert len(connections) == 6
    assert not connections.add(Line())  # the server is working for all the others
    assert not kept[2].reason


def test_a_connection_that_begins_to_wait_anew_is_the_last_to_go() -> None:
    connections = Connections(2, 1000)
    first, second = lines(connections, Wait.HEAD, Wait.HEAD)
    assert connections.update(first, None, 0)
    assert connections.update(first, Wait.HEAD, 0)
    assert not connections.update(first, Wait.HEAD, 5)
    lines(connections, None)
    assert (first.reason, second.reason) == ("", "too_many")


def test_bytes_are_held_within_their_limit() -> None:
    connections = Connections(10, 100)
    idle, body, answer, work = lines(connections, Wait.NEXT, Wait.BODY, Wait.TAKING, None, held=25)
    assert connections.held == 100
    connections.update(work, None, 60)
    assert (body.reason, answer.reason, idle.reason) == ("too_many_bytes", "too_many_bytes", "")
    assert connections.held == 85
    connections.update(work, None, 500)
    assert (idle.reason, work.reason) == ("too_many_bytes", "")


def test_counts_are_those_of_the_open_connections() -> None:
    """After any sequence of events."""
    draw, connections = random.Random(1), Connections(20, 500)
    open_ones: dict[Line, int] = {}
    for _ in range(5_000):
        if draw.random() < 0.2 and connections.add(line := Line()):
            open_ones[line] = 0
        elif draw.random() < 0.1 and open_ones:
            gone = draw.choice(list(open_ones))
            connections.remove(gone)
            gone.reason = "closed"
        elif open_ones:
            line = draw.choice(list(open_ones))
            open_ones[line] = held = draw.randrange(60)
            connections.update(line, draw.choice([None, *Wait]), held)
        open_ones = {line: held for line, held in open_ones.items() if not line.reason}
        assert len(connections) == len(open_ones) <= 20
        assert connections.held == sum(open_ones.values())


def test_connections_are_fewer_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for files, wanted in ((100_000, 1000), (300, 1000), (300, 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))  # noqa: B023
        most, at_once = connection_limits(wanted, said.append)
        assert most == wanted or (len(said) == 1 and at_once == 16)
        assert most + 4 * at_once + 48 < files
    assert "connections, not 1000: this process may open 300 files (ulimit -n)" in said[0]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(SurroundingsError, match=r"may open 64 files, too few to serve: expected \d+ \(ulimit -n\)"):
        connection_limits(10, said.append)
