"""What the benchmarks share: interleaved timing, flags, and a file of figures."""

from __future__ import annotations

import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds per call of one contender."""

    minimum: float
    median: float
    calls: int


def interleave(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    seconds: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Call every contender once per round, in rotating order, so that other load on the machine affects all alike.

    Args:
        calls: the contenders.
        rounds: maximum number of rounds, after one to warm up.
        seconds: no round starts after this time.
        clock: what times a call, in seconds; ``time.thread_time`` where one thread computes and others use the machine.
    """
    names = list(calls)
    for name in names:
        calls[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    begin = time.perf_counter()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            calls[name]()
            times[name].append(1000 * (clock() - start))
        if time.perf_counter() - begin > seconds:
            break
    return {name: Timing(min(taken), statistics.median(taken), len(taken)) for name, taken in times.items()}


def parser(description: str | None, rounds: int) -> ArgumentParser:
    """A parser with the flags of every benchmark."""
    made = ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--rounds", type=int, default=rounds, help=f"maximum number of rounds per case ({rounds})")
    made.add_argument("--seconds", type=float, default=10.0, help="approximate maximum time per case (10)")
    made.add_argument("--threads", type=int, help="default: PyTorch's choice")
    made.add_argument("--json", type=Path, help="write the figures to this file")
    return made


def describe_machine() -> dict[str, Any]:
    """The processor, its instructions, the threads and PyTorch's version, reported with every figure."""
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
    fields = dict(line.replace("\t", "").split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    name = fields.get("model name", platform.machine()).strip()
    numbers = [f"{key.removeprefix('cpu ')}{fields[key]}" for key in ("cpu family", "model") if key in fields]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def write_figures(arguments: Namespace, figures: dict[str, Any]) -> None:
    """Write the figures and the machine to the file given by ``--json``, if any."""
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_machine(), **figures}, indent=2) + "\n", encoding="utf-8")


def importable(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a package can be imported here, or by a process with this environment."""
    if importlib.util.find_spec(name):
        return True
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def multihead(*words: object) -> None:
    """Run a command; its messages are shown."""
    subprocess.run([sys.executable, "-m", "multihead", *map(str, words)], check=True)
