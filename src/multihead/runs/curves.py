"""Learning curves of runs and of other programs: loss, score, rate.

Of a run only ``log.jsonl`` and ``timing.jsonl`` are read, so runs of every kind have curves, even while they train. The
curve of another program is a table of what it validated, ``.csv`` with these columns or ``.jsonl`` with these keys:

    name       of the curve; by default the name of the file
    updates    seconds    when; one of both may be missing
    bleu       loss       what was measured; one of both may be missing, and a cell may be empty
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError, DataError, InputError, shown
from multihead.files import check_new_file
from multihead.inspection.curves import Line, Panel, draw_curves

Axis = Literal["step", "seconds"]

_SCORES = {"bleu": "validation BLEU", "exact": "validation: share exactly right"}
"""Scores that a run may log, and the titles of their panels."""
_AXES: dict[Axis, str] = {"step": "update", "seconds": "minutes of training"}
_MINUTE = 60.0
_WHEN, _WHAT = {"updates": "step", "seconds": "seconds"}, ("bleu", "loss")
"""Columns of a table, and what they are called in a log."""
_MEASURED = ("bleu", "loss", "exact", "learning_rate", "elapsed", "seconds")
"""Values of a log that are numbers."""

Log = list[dict[str, Any]]


def plot(paths: Sequence[Path], output: Path, over: Axis = "step") -> None:
    """Draw curves, each in its color.

    Args:
        paths: run folders, and tables of other programs.
        output: a PNG, SVG or PDF file that does not exist yet.
        over: draw over updates or over time.

    Raises:
        InputError: a folder is not a run or has an empty log, a table is damaged, or the file cannot be written or
            exists.
        MissingDependencyError: matplotlib is not installed.
    """
    check_new_file(output)
    panels = panels_of(read_curves(paths), over)
    if not any(line.points for panel in panels for line in panel.lines):
        raise InputError(f"{', '.join(map(str, paths))}: nothing has been logged yet; wait for the first line")
    draw_curves(panels, output)


def panels_of(logs: Mapping[str, Log], over: Axis = "step") -> list[Panel]:
    """One panel per quantity; a curve that does not know it has a line without points."""
    losses = [_line(name, log, kind, "loss", over) for kind in ("train", "validation") for name, log in logs.items()]
    scores = [
        Panel(title, [_line(name, log, "validation", key, over) for name, log in logs.items()], _AXES[over])
        for key, title in _SCORES.items()
    ]
    rates = [_line(name, log, "train", "learning_rate", over) for name, log in logs.items()]
    title = "loss a token (training: solid, smoothed; validation: dashed)"
    return [Panel(title, losses, _AXES[over]), *scores, Panel("learning rate", rates, _AXES[over])]


def _line(name: str, log: Log, kind: str, key: str, over: Axis) -> Line:
    unit = _MINUTE if over == "seconds" else 1
    points = [
        (record[over] / unit if unit != 1 else record[over], float(record[key]))
        for record in log
        if record["kind"] == kind and record.get(key) is not None and record.get(over) is not None
    ]
    return Line(name, points, judged=kind == "validation")


def read_curves(paths: Sequence[Path]) -> dict[str, Log]:
    """The records of runs and tables by name, with the update (``step``) and the time (``seconds``) of each.

    Raises:
        ConfigurationError: a folder is not a run, or a name occurs twice.
        DataError: a table is damaged.
    """
    found: dict[str, Log] = {}
    for name, path in zip(_names(paths), paths, strict=True):
        curves = dict(_read_table(path)) if path.is_file() else {name: read_log(path)}
        twice = [other for other in curves if other in found]
        if twice:
            raise ConfigurationError(f"{path}: two curves are called {shown(twice[0])}; give each a name of its own")
        found |= curves
    return found


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest suffixes of the paths that are all different."""
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < len(resolved):
        raise ConfigurationError("a run is named twice; name each once")
    longest = max(len(path.parts) for path in resolved)
    for count in range(1, longest + 1):
        names = [str(Path(*path.parts[-count:])) for path in resolved]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in resolved]


# --------------------------------------------------------------------------- runs


def read_log(folder: Path) -> Log:
    """The records of a run with the seconds that it had trained, and those that a validation took (``took``).

    Incomplete lines are skipped.

    Raises:
        ConfigurationError: the folder is not a run that has begun to train.
    """
    try:
        records = list(_records(folder / "log.jsonl"))
    except OSError:
        raise ConfigurationError(f"{folder}: no run that has begun to train (there is no log.jsonl in it)") from None
    times, before, last = dict[tuple[str, int], dict[str, Any]](), 0.0, 0.0
    timing = folder / "timing.jsonl"
    for record in _records(timing) if timing.is_file() else ():
        elapsed = last if record.get("elapsed") is None else float(record["elapsed"])
        if elapsed < last:  # older versions counted anew at each start
            before += last
        last = elapsed
        times[record["kind"], record["step"]] = {"seconds": before + elapsed, "took": record.get("seconds")}
    unknown = {"seconds": None, "took": None}
    return [{**record, **times.get((record["kind"], record["step"]), unknown)} for record in records]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().decode("utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("kind"), str):
            yield {key: value if key not in _MEASURED or _is_number(value) else None for key, value in record.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --------------------------------------------------------------------------- tables of other programs


def _read_table(path: Path) -> Iterator[tuple[str, Log]]:
    """The curves of a table, in the order of their first rows."""
    curves: dict[str, Log] = {}
    for number, row in _rows(path):
        values = {key: _number(row.get(key), key, path, number) for key in (*_WHEN, *_WHAT)}
        if all(values[key] is None for key in _WHEN) or all(values[key] is None for key in _WHAT):
            raise DataError(
                f"expected when ({' or '.join(_WHEN)}) and what ({' or '.join(_WHAT)}) was measured, got {shown(row)}",
                path,
                number,
            )
        record = {"kind": "validation", **{_WHEN.get(key, key): value for key, value in values.items()}}
        curves.setdefault(str(row.get("name") or path.stem), []).append(record)
    if not curves:
        raise DataError("has no rows; expected a curve", path)
    yield from curves.items()


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise DataError("expected a run folder, or a curve that ends in .csv or .jsonl", path)
    lines = list(read_lines(path))
    if path.suffix.lower() == ".csv":
        table = csv.DictReader(lines, strict=True)
        try:
            yield from ((table.line_num, row) for row in table)
        except csv.Error as error:
            raise DataError(f"is not a table of comma-separated values: {error}", path, table.line_num) from None
        return
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise DataError(f"expected a JSON object, got {shown(line)}", path, number)
        yield number, row


def _number(value: object, key: str, path: Path, line: int) -> float | None:
    """A cell as a number; None if it is empty."""
    if value is None or value == "":
        return None
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DataError(f"{key}: expected a number of at least 0, got {shown(value)}", path, line)
    return number
