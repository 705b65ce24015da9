"""What the benchmarks share: interleaved timing, flags, and a file of figures."""

from __future__ import annotations

import importlib.util
import json
import os
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

from multihead.data.text_files import read_lines


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
        clock: the clock, in seconds; ``time.thread_time`` if one thread computes and other programs use the machine.
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


def parser(
    description: str | None,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    threads: str | None = "PyTorch's choice",
) -> ArgumentParser:
    """A parser with ``--json``, and with those of the common flags that a benchmark uses.

    Args:
        description: the docstring of the benchmark; ``--help`` shows its first line.
        rounds: default of ``--rounds``; None leaves the flag out.
        seconds: default of ``--seconds``; None leaves the flag out.
        threads: the default of ``--threads``, in words; None leaves the flag out.
    """
    made = ArgumentParser(description=(description or "").partition("\n")[0])
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help=f"maximum number of rounds per case ({rounds})")
    if seconds is not None:
        told = f"approximate maximum time per case ({seconds:g})"
        made.add_argument("--seconds", type=float, default=seconds, help=told)
    if threads is not None:
        made.add_argument("--threads", type=int, help=f"processor threads ({threads})")
    made.add_argument("--json", type=Path, help="write the figures to this file")
    return made


MULTI30K = Path(__file__).resolve().parents[2] / "shared/data/multi30k"
"""The folder where Multi30k is expected: beside the project."""


def multi30k(name: str, language: str) -> list[str] | None:
    """The lines of a compressed file of Multi30k; None if it is not there."""
    path = MULTI30K / f"{name}.{language}.gz"
    return list(read_lines(path)) if path.is_file() else None


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
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**describe_machine(), **figures}, indent=2) + "\n"
        arguments.json.write_text(text, encoding="utf-8", newline="\n")


def importable(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a package can be imported here, or by a process with this environment."""
    if importlib.util.find_spec(name):
        return True
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def multihead(*words: object, threads: int | None = None) -> None:
    """Run a command, on a number of threads if given; its messages are shown."""
    environment = {} if threads is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    subprocess.run([sys.executable, "-m", "multihead", *map(str, words)], check=True, env={**os.environ, **environment})
