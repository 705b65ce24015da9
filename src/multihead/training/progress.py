"""What a run says about itself: lines for people, JSON lines for programs, and what it took, kept apart.

log.txt         what was printed
log.jsonl       one record a line; a function of the configuration and the data alone, so that a resumed run's
                is the uninterrupted run's byte for byte (on the same machine)
timing.jsonl    seconds and tokens a second of the same records
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from multihead.files import explained, write_text


class RunLog:
    """Appends to the three files of a run folder and prints.

    Args:
        folder: the run.
        say: prints a line.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self._print = say
        self._started = time.monotonic()
        self._also: Callable[[str, int, dict[str, Any], dict[str, float]], None] = lambda *_: None

    def copy_to(self, writer: Callable[[str, int, dict[str, Any], dict[str, float]], None]) -> None:
        """From now on tells ``writer`` of each record, too."""
        self._also = writer

    def rewind(self, step: int) -> None:
        """Forgets records after ``step``, and what a stopped writer left half-written: the run makes them again."""
        for name in ("log.jsonl", "timing.jsonl"):
            path = self.folder / name
            if path.exists():
                text = path.read_bytes().decode("utf-8", errors="replace")
                kept = "".join(line + "\n" for line in text.split("\n") if _is_record(line, step))
                if kept != text:
                    write_text(path, kept)

    def say(self, line: str) -> None:
        """Prints a line and keeps it in log.txt."""
        self._print(line)
        self._append("log.txt", line)

    def record(self, kind: str, step: int, values: dict[str, Any], timing: dict[str, float]) -> None:
        """Writes one record: what happened at ``step``, and how long it took."""
        self._append("log.jsonl", json.dumps({"kind": kind, "step": step, **values}, ensure_ascii=False))
        elapsed = round(time.monotonic() - self._started, 3)
        self._append("timing.jsonl", json.dumps({"kind": kind, "step": step, "elapsed": elapsed, **timing}))
        self._also(kind, step, values, timing)

    def _append(self, name: str, line: str) -> None:
        path = self.folder / name
        with explained(path), path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(line + "\n")


def _is_record(line: str, last_step: int) -> bool:
    """Whether a line is a whole record of ``last_step`` or before."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("step", last_step + 1) <= last_step


def duration(seconds: float) -> str:
    """Seconds as people read them: 42 s, 3:20, 1:02:07."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else minutes


_NAMED = 8
"""Lines of a file that are named on the screen; log.jsonl has all."""


def naming(places: Mapping[str, list[int]]) -> str:
    """Lines of each file, as people read them."""
    found = []
    for name, lines in places.items():
        more = f" and {len(lines) - _NAMED} more (see log.jsonl)" if len(lines) > _NAMED else ""
        found.append(f"{name}: {', '.join(map(str, lines[:_NAMED]))}{more}")
    return "; ".join(found)
