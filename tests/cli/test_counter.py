"""Progress: count, speed and remaining time; a bar in a terminal, otherwise a line every half minute."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from multihead.cli import streams as progress
from multihead.cli.streams import counter


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made)
    return made


def said(
    capsys: pytest.CaptureFixture[str], clock: Clock, total: int | None, steps: list[tuple[float, int]], begin: int = 0
) -> list[str]:
    with counter("translated", "lines", total) as count:
        count.begin(begin)
        for seconds, more in steps:
            clock.now += seconds
            count(more)
    return capsys.readouterr().err.splitlines()


def test_a_line_every_half_a_minute(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    steps = [(10.0, 1000)] * 7
    assert said(capsys, clock, 100_000, steps) == [
        "translated 3,000 of 100,000 lines, 100 a second, 16 min left",
        "translated 6,000 of 100,000 lines, 100 a second, 16 min left",
    ]


def test_what_an_earlier_process_did_counts_but_not_for_the_speed(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    (line,) = said(capsys, clock, 100_000, [(40.0, 200)], begin=50_000)
    assert line == "translated 50,200 of 100,000 lines, 5 a second, 2 h 46 min left"


def test_soon_done_or_without_an_end_says_nothing(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    assert said(capsys, clock, 100, [(9.0, 50), (9.0, 50)]) == []
    assert said(capsys, clock, None, [(50.0, 50), (50.0, 50)]) == []


@pytest.mark.parametrize(("seconds", "words"), [(0, "0 s"), (89, "89 s"), (100, "2 min"), (5399, "1 h 30 min")])
def test_durations(seconds: float, words: str) -> None:
    assert progress._duration(float(seconds)) == words


@pytest.mark.parametrize("total", [None, 40])
def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    check: list[Callable[[int], None]] = []
    with counter("translated", "lines", total) as count:
        count.begin(10)
        count(5)
        check.append(count)
    drawn = terminal.getvalue()
    assert "translated" in drawn
    assert f"15/{total or '?'}" in drawn
