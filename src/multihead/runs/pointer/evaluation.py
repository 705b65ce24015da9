"""Measure how often a pointer network is right.

`measure` does so on given examples, `evaluate` on new problems of each length. For hulls this includes the measures of
Vinyals et al. 2015 (section 4.1, table 1): the share of the true hull's area that the polygon covers, and how often the
answer is not a polygon because it crosses itself or has no area.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from multihead.data.toy.pointing import Example, Hull, generator
from multihead.errors import ConfigurationError
from multihead.runs.pointer.model import Pointer, PointerAnswer
from multihead.runs.pointer.settings import ProblemName

TRAINING, VALIDATION, TEST = 0, 1, 2
"""Purposes of random numbers; examples for different purposes are drawn independently: see `generator`."""

_BEYOND = {"sort": (12, 15, 20), "hull": (25, 30, 50)}
"""Lengths to measure besides those of training."""


@dataclass(frozen=True)
class Measured:
    """The quality of answers, as shares from 0 to 1."""

    exact: float
    """Answers with exactly the right places in the right order."""
    coverage: float | None = None
    """For hulls: the mean share of the true hull's area within the polygon, over answers that are polygons."""
    invalid: float | None = None
    """For hulls: answers that are not polygons."""

    def as_dict(self) -> dict[str, float]:
        """The measures that exist for the problem."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __str__(self) -> str:
        shown = f"exact {self.exact:7.2%}"
        if self.invalid is None:
            return shown
        covered = "   none " if self.coverage is None else f"{self.coverage:8.3%}"
        return f"{shown}  area {covered}  invalid {self.invalid:6.2%}"


def measure(pointer: Pointer, examples: Sequence[Example], answers: Sequence[PointerAnswer]) -> Measured:
    """Compare answers with the right ones."""
    indices = [[place - 1 for place in answer.places] for answer in answers]
    exact = sum(
        answer.finished and found == example.answer.tolist()
        for example, answer, found in zip(examples, answers, indices, strict=True)
    ) / len(examples)
    if not isinstance(pointer.problem, Hull):
        return Measured(exact)
    covered = [Hull.area_coverage(example.inputs, found) for example, found in zip(examples, indices, strict=True)]
    valid = [share for share in covered if share is not None]
    return Measured(exact, sum(valid) / len(valid) if valid else None, 1 - len(valid) / len(covered))


# --------------------------------------------------------------------------- a table


@dataclass(frozen=True)
class Line:
    """The measures for problems of one length."""

    length: int
    learned: bool
    """Whether the model was trained on problems of this length."""
    measured: dict[str, Measured]
    """The measures of each search, by its name."""


@dataclass(frozen=True)
class Table:
    """The measures by length."""

    lines: tuple[Line, ...]
    count: int
    """Problems per length."""

    def mean(self, search: str) -> Measured | None:
        """The mean over the measured lengths that occurred in training; ``None`` if there are none."""
        learned = [line.measured[search] for line in self.lines if line.learned]
        if not learned:
            return None
        coverage = [m.coverage for m in learned if m.coverage is not None]
        invalid = [m.invalid for m in learned if m.invalid is not None]
        return Measured(
            fmean(m.exact for m in learned), fmean(coverage) if coverage else None, fmean(invalid) if invalid else None
        )

    def __str__(self) -> str:
        return "\n".join(self._rows())

    def _rows(self) -> Iterator[str]:
        searches = list(self.lines[0].measured)
        columns = ["exact", "area", "invalid"] if self.lines[0].measured[searches[0]].invalid is not None else ["exact"]
        yield f"{self.count:,} problems of each length; * = not a length that was learned from"
        yield " " * 8 + "".join(f"{search:>{10 * len(columns)}}" for search in searches)
        yield "  length" + "".join(f"{name:>10}" for name in columns * len(searches))
        for line in self.lines:
            cells = "".join(_cells(measured, columns) for measured in line.measured.values())
            yield f"{line.length:>6}{' ' if line.learned else '*'} {cells}"
        means = [mean for search in searches if (mean := self.mean(search)) is not None]
        if means:
            yield "    mean" + "".join(_cells(mean, columns) for mean in means) + "  (lengths learned from)"


def _cells(measured: Measured, columns: list[str]) -> str:
    cells = ((measured.exact, 1), (measured.coverage, 2), (measured.invalid, 1))
    texts = ("none" if share is None else f"{100 * share:.{places}f}%" for share, places in cells)
    return "".join(f"{text:>10}" for text, _ in zip(texts, columns, strict=False))


def evaluate(
    problem: ProblemName,
    model: str | Path | None = None,
    *,
    lengths: Sequence[int] | None = None,
    count: int = 1000,
    beam: int = 3,
    repeats: bool | None = None,
    seed: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """Measure a model on new problems.

    Args:
        problem: the problem that the model solves.
        model: a run or model folder; by default the one that ``multihead pointer train`` writes.
        lengths: numbers of inputs of the problems; by default those of training, and some beyond.
        count: problems per length.
        beam: width of a beam search measured beside greedy search; 1 for none.
        repeats: whether a place may occur twice; by default as in training.
        seed: seed of the problems.
        progress: called with the number of new answers.

    Raises:
        FormatError: there is no such model, or it is for another problem.
        ConfigurationError: a length or a number is below 1.
    """
    pointer = Pointer.of(problem, model)
    lengths = default_lengths(pointer) if lengths is None else lengths
    if min([count, beam, *lengths], default=0) < 1 or not lengths:
        raise ConfigurationError(f"lengths, count and beam must be at least 1, got {lengths}, {count} and {beam}")
    lines = []
    for length in lengths:
        examples = pointer.problem.draw(generator(seed, TEST, length), count, length, length)
        inputs = [example.inputs for example in examples]
        measured = {}
        for width in dict.fromkeys((1, beam)):
            answers = pointer.answers(inputs, beam=width, repeats=repeats)
            measured["greedy" if width == 1 else f"beam {width}"] = measure(pointer, examples, answers)
            if progress is not None:
                progress(count)
        lines.append(Line(length, pointer.task.smallest <= length <= pointer.task.largest, measured))
    return Table(tuple(lines), count)


def default_lengths(pointer: Pointer) -> list[int]:
    """The lengths of training, and some beyond."""
    task = pointer.task
    beyond = [length for length in _BEYOND[task.problem] if length > task.largest]
    return [*range(task.smallest, task.largest + 1), *beyond]
