"""What a run says about itself: lines for people, JSON lines for programs, and what it took, kept apart.

log.txt         what was printed
log.jsonl       one record a line; a function of the configuration and the data alone, so that a resumed run's
                is the uninterrupted run's byte for byte (on the same machine)
timing.jsonl    seconds and tokens a second of the same records

How hard the machine works: operations of an update over those of nothing but matrix products in the same time.

A weight of a matrix takes two operations for each token that passes it, and four more on the way back (Kaplan et al.
2020, 2.1), so an update takes about

    6 (N_encoder source tokens + N_decoder target tokens)

where N counts the weights of matrices; embeddings count where they are the output projection, attention's products of
queries and keys do not (2% of a small model's, at 20 tokens a sentence). The peak is measured once, with products of
the size and precision at hand: the share says what is lost to everything that is no matrix product.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multihead.files import write_errors, write_text


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
        with write_errors(path), path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(line + "\n")


def _is_record(line: str, last_step: int) -> bool:
    """Whether a line is a whole record of ``last_step`` or before."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("step", last_step + 1) <= last_step


def format_duration(seconds: float) -> str:
    """Seconds as people read them: 42 s, 3:20, 1:02:07."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else minutes


_NAMED = 8
"""Lines of a file that are named on the screen; log.jsonl has all."""


def format_lines(places: Mapping[str, list[int]]) -> str:
    """Lines of each file, as people read them."""
    found = []
    for name, lines in places.items():
        more = f" and {len(lines) - _NAMED} more (see log.jsonl)" if len(lines) > _NAMED else ""
        found.append(f"{name}: {', '.join(map(str, lines[:_NAMED]))}{more}")
    return "; ".join(found)


_SIDE = 1024
"""Rows and columns of the matrices of the measurement."""
_SECONDS = 0.15


@dataclass(frozen=True)
class ModelFlops:
    """What a token costs, and what the machine could do."""

    source: float
    """Operations a source token takes."""
    target: float
    """Operations a target token takes."""
    peak_flops: float
    """Operations a second of matrix products alone."""

    def utilization(self, source_tokens: int, target_tokens: int, seconds: float) -> float:
        """Operations that so many tokens took, over those that the time would have been enough for."""
        return (self.source * source_tokens + self.target * target_tokens) / (seconds * self.peak_flops)


def measure_flops(model: nn.Module, output: nn.Linear, device: str, precision: str) -> ModelFlops:
    """The effort of training a translator on this machine; takes a fraction of a second.

    Args:
        model: its parameters whose names begin with ``encoder`` are passed by source tokens, others by target tokens.
        output: its output projection.
        device: where it is trained.
        precision: of its matrix products.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    counts = [output.weight.numel(), 0]
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and id(parameter) not in tables | {id(output.weight)}:
            counts[name.startswith("encoder")] += parameter.numel()
    return ModelFlops(6.0 * counts[1], 6.0 * counts[0], peak_flops(device, precision))


@torch.no_grad()
def peak_flops(device: str, precision: str) -> float:
    """Operations a second of products of two square matrices, the best of some rounds."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    one, other = (torch.full((_SIDE, _SIDE), 1.0 / _SIDE, dtype=dtype, device=device) for _ in range(2))
    best, ends = float("inf"), time.perf_counter() + _SECONDS
    rounds = 0
    while time.perf_counter() < ends or rounds < 3:
        started = time.perf_counter()
        torch.mm(one, other)
        if one.is_cuda:
            torch.cuda.synchronize()
        best, rounds = min(best, time.perf_counter() - started), rounds + 1
    return 2.0 * _SIDE**3 / max(best, 1e-9)
