"""Plot the logs of runs: loss, score and learning rate.

Only ``log.jsonl`` is read, so runs of every kind can be plotted, even while they train.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multihead.errors import ConfigurationError, InputError
from multihead.files import check_new_file
from multihead.inspection.curves import Line, Panel, draw_curves

_SCORES = {"bleu": "validation BLEU", "exact": "validation: share exactly right"}
"""Scores that a run may log, and the titles of their panels."""


def plot(folders: Sequence[Path], output: Path) -> None:
    """Draw the curves of runs, each in its color.

    Args:
        folders: run folders.
        output: a PNG, SVG or PDF file that does not exist yet.

    Raises:
        InputError: a folder is not a run or has an empty log, or the file cannot be written or exists.
        MissingDependencyError: matplotlib is not installed.
    """
    check_new_file(output)
    panels = panels_of(folders)
    if not any(line.points for panel in panels for line in panel.lines):
        raise InputError(f"{', '.join(map(str, folders))}: nothing has been logged yet; wait for the first line")
    draw_curves(panels, output)


def panels_of(folders: Sequence[Path]) -> list[Panel]:
    """One panel per quantity; a run that has not logged it has a line without points.

    Raises:
        ConfigurationError: a folder is not a run, or is named twice.
    """
    logs = {name: _records(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    losses = [_line(name, log, kind, "loss") for kind in ("train", "validation") for name, log in logs.items()]
    scores = [
        Panel(title, [_line(name, log, "validation", key) for name, log in logs.items()])
        for key, title in _SCORES.items()
    ]
    rates = [_line(name, log, "train", "learning_rate") for name, log in logs.items()]
    title = "loss a token (training: solid, smoothed; validation: dashed)"
    return [Panel(title, losses), *scores, Panel("learning rate", rates)]


def _line(name: str, log: list[dict[str, Any]], kind: str, key: str) -> Line:
    points = [(record["step"], float(record[key])) for record in log if record["kind"] == kind and key in record]
    return Line(name, points, judged=kind == "validation")


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest suffixes of the paths that are all different."""
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise ConfigurationError("a run is named twice; name each once")
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest + 1):
        names = [str(Path(*path.parts[-count:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _records(folder: Path) -> list[dict[str, Any]]:
    """The records of a run; incomplete lines are skipped."""
    path = folder / "log.jsonl"
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    except OSError:
        raise ConfigurationError(f"{folder}: no run that has begun to train (there is no log.jsonl in it)") from None
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int) and "kind" in record:
            found.append(record)
    return found
