"""Which pairs of a corpus were left out, and why: for the log, and for a person who wants to mend the files.

What counts as a fault is for the readers to say (`corpus`: not UTF-8, an empty side; `records`, `tmx`: no record)
and for who makes tokens of the text (too long).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_NAMED_LINES = 5  # how many line numbers a line of the summary names


class Fault(NamedTuple):
    """Why one pair was left out: the file and line at fault, the kind of fault, and what exactly."""

    path: Path
    line: int
    reason: str
    detail: str


@dataclass
class _Group:
    first: Fault
    lines: list[int] = field(default_factory=list)
    count: int = 0


class Report:
    """The pairs that were left out: how many for each reason, and where.

    One fault is kept for a pair, so ``pairs kept + report.left_out == all there were``: lines of two aligned files,
    records or translation units of a file of pairs. A report may be of several corpora.

    Args:
        limit: how many places are kept in ``faults``; counting goes on beyond it.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self.faults: list[Fault] = []
        self._limit = limit
        self._groups: dict[tuple[Path, str], _Group] = {}

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        """Leave a pair out: ``reason`` is the kind ("more than 512 tokens"), ``detail`` this case ("811")."""
        fault = Fault(Path(path), line, reason, detail)
        if len(self.faults) < self._limit:
            self.faults.append(fault)
        group = self._groups.setdefault((fault.path, reason), _Group(fault))
        group.count += 1
        if len(group.lines) < _NAMED_LINES:
            group.lines.append(line)

    @property
    def left_out(self) -> int:
        """The number of pairs that were left out, for whatever reason."""
        return sum(group.count for group in self._groups.values())

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs that were left out for each reason, all files together."""
        counts: Counter[str] = Counter()
        for (_, reason), group in self._groups.items():
            counts[reason] += group.count
        return dict(counts)

    def summary(self) -> str:
        """One line for each file and reason, to be shown to a person; empty when nothing was left out."""
        return "\n".join(_summary_line(group) for group in self._groups.values())


def _summary_line(group: _Group) -> str:
    path, line, reason, detail = group.first
    what = f"{path}:{line}: {reason}" + (f" ({detail})" if detail else "")
    if group.count == 1:
        return f"{what}; 1 pair left out for this reason"
    numbers = ", ".join(map(str, group.lines))
    which = "lines" if group.count == len(group.lines) else "first lines"
    return f"{what}; {group.count:,} pairs left out for this reason, {which} {numbers}"
