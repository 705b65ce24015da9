"""What the benchmarks share: contenders that take turns, what is known of the machine, and a file of figures."""

from __future__ import annotations

import json
import platform
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Taken:
    """Milliseconds of one contender."""

    least: float
    median: float
    calls: int


def in_turn(calls: Mapping[str, Callable[[], object]], rounds: int, seconds: float = float("inf")) -> dict[str, Taken]:
    """One call of each in every round, in an order that turns by one: whatever else the machine does meets all of them.

    Args:
        calls: the contenders.
        rounds: how many at most; one more comes first, to warm up.
        seconds: after which no new round begins.
    """
    names = list(calls)
    for name in names:
        calls[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    begin = time.perf_counter()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            calls[name]()
            times[name].append(1000 * (time.perf_counter() - start))
        if time.perf_counter() - begin > seconds:
            break
    return {name: Taken(min(taken), statistics.median(taken), len(taken)) for name, taken in times.items()}


def parser(description: str | None, rounds: int) -> ArgumentParser:
    """The arguments that every benchmark has."""
    made = ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--rounds", type=int, default=rounds, help=f"turns a case has at most ({rounds})")
    made.add_argument("--seconds", type=float, default=10.0, help="a case takes about so long at most (10)")
    made.add_argument("--threads", type=int, help="default: PyTorch's choice")
    made.add_argument("--json", type=Path, help="write the figures into this file")
    return made


def machine() -> dict[str, Any]:
    """What a figure stands with."""
    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    said = dict(line.replace("\t", "").split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    name = said.get("model name", platform.machine()).strip()
    numbers = [f"{what.removeprefix('cpu ')}{said[what]}" for what in ("cpu family", "model") if what in said]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def write(arguments: Namespace, figures: dict[str, Any]) -> None:
    """The figures with the machine, if a file was named."""
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine(), **figures}, indent=2) + "\n", encoding="utf-8")
