"""The log of a run: text for people, JSON lines for programs, timings.

    log.txt         what was printed
    log.jsonl       one record per line; depends on the configuration and the data only, so a resumed run writes the
                    same bytes as an uninterrupted one (on the same machine)
    timing.jsonl    seconds of training until then, of all starts, and tokens per second of the same records

`ModelFlops` computes the model FLOPs utilization (MFU): the operations of the model's matrix products, divided by the
operations that the machine's peak allows in the same time. A weight of a matrix takes two operations per token in the
forward pass and four in the backward pass (Kaplan et al. 2020, 2.1), so an update takes about

    6 (N_encoder source tokens + N_decoder target tokens)

where N counts weights of matrices. Embeddings count only as an output projection; attention's products of queries and
keys do not count (2% in a small model, at 20 tokens per sentence). The peak is measured once, with matrix products of
the run's precision.
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

RecordWriter = Callable[[str, int, dict[str, Any], dict[str, float]], None]
"""A function of kind, step, values and timing of a record."""


class RunLog:
    """Prints lines, and appends to the three files of a run folder.

    Args:
        folder: the run folder.
        say: called with each line of output.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self._print = say
        self._started = time.monotonic()
        self._second_writer: RecordWriter = lambda *_: None

    def copy_to(self, writer: RecordWriter) -> None:
        """From now on, also call ``writer`` with each record."""
        self._second_writer = writer

    def rewind(self, step: int) -> None:
        """Remove records after ``step`` and incomplete lines: the resumed run writes them again."""
        for name in ("log.jsonl", "timing.jsonl"):
            path = self.folder / name
            if path.exists():
                text = path.read_bytes().decode("utf-8", errors="replace")
                lines = [line for line in text.split("\n") if _is_record(line, step)]
                kept = "".join(line + "\n" for line in lines)
                if kept != text:
                    write_text(path, kept)
                if lines:
                    self._started -= json.loads(lines[-1]).get("elapsed", 0.0)

    def say(self, line: str) -> None:
        """Print a line and append it to log.txt."""
        self._append("log.txt", line)
        self._print(line)

    def record(self, kind: str, step: int, values: dict[str, Any], timing: dict[str, float]) -> None:
        """Append a record of ``step`` to log.jsonl, and its timing to timing.jsonl."""
        self._append("log.jsonl", json.dumps({"kind": kind, "step": step, **values}, ensure_ascii=False))
        elapsed = round(time.monotonic() - self._started, 3)
        self._append("timing.jsonl", json.dumps({"kind": kind, "step": step, "elapsed": elapsed, **timing}))
        self._second_writer(kind, step, values, timing)

    def _append(self, name: str, line: str) -> None:
        path = self.folder / name
        with write_errors(path), path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(line + "\n")


class SilentLog(RunLog):
    """A log that writes nothing, for all processes of a run but the first."""

    def rewind(self, step: int) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def record(self, kind: str, step: int, values: dict[str, Any], timing: dict[str, float]) -> None:
        pass


def _is_record(line: str, last_step: int) -> bool:
    """Whether a line is a complete record of ``last_step`` or before."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("step", last_step + 1) <= last_step


def format_duration(seconds: float) -> str:
    """Format seconds for people: 42 s, 3:20, 1:02:07."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else minutes


_MAX_LINES = 8
"""Lines of a file that are shown on the screen; log.jsonl has all."""


def format_lines(lines_of_files: Mapping[str, list[int]]) -> str:
    """Format line numbers by file name for people."""
    found = []
    for name, lines in lines_of_files.items():
        more = f" and {len(lines) - _MAX_LINES} more (see log.jsonl)" if len(lines) > _MAX_LINES else ""
        found.append(f"{name}: {', '.join(map(str, lines[:_MAX_LINES]))}{more}")
    return "; ".join(found)


_PEAK_SIZES = (128, 1024)
"""Rows and columns of the smallest and the largest matrices that measure the peak."""
_PEAK_SECONDS = 0.15
"""Duration of the measurement."""


@dataclass(frozen=True)
class ModelFlops:
    """Operations of the model per token, and peak operations per second of the machine."""

    source: float
    """Operations per source token."""
    target: float
    """Operations per target token."""
    peak_flops: float
    """Operations per second of plain matrix products."""

    def utilization(self, source_tokens: int, target_tokens: int, seconds: float) -> float:
        """Model FLOPs utilization (MFU): operations for these tokens over peak operations in this time."""
        return (self.source * source_tokens + self.target * target_tokens) / (seconds * self.peak_flops)


def measure_flops(model: nn.Module, output: nn.Linear, device: str, precision: str) -> ModelFlops:
    """Count a translator's operations per token and measure the machine's peak; takes a fraction of a second.

    Args:
        model: parameters whose names begin with ``encoder`` count for source tokens, others for target tokens.
        output: its output projection.
        device: the device that trains it.
        precision: type of the matrix products.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    counts = [_operations(output.weight), 0.0]  # of target tokens, of source tokens
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and id(parameter) not in tables | {id(output.weight)}:
            counts[name.startswith("encoder")] += _operations(parameter)
    return ModelFlops(counts[1], counts[0], peak_flops(device, precision))


def _operations(weight: torch.Tensor) -> float:
    """Of a token that passes a weight: for its output, the gradient of its input, and that of a weight that learns."""
    return (6.0 if weight.requires_grad else 4.0) * weight.numel()


@torch.no_grad()
def peak_flops(device: str, precision: str) -> float:
    """Operations per second of the fastest of several products of square matrices.

    The matrices grow as long as a product fits into the measurement: where a processor lacks bfloat16, one product of
    the largest takes seconds.
    """
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32

    def measured(size: int) -> tuple[float, float]:
        """Operations per second, and the seconds of a product."""
        a, b = (torch.full((size, size), 1.0 / size, dtype=dtype, device=device) for _ in range(2))
        started = time.perf_counter()
        torch.mm(a, b)
        if not a.is_cpu:
            torch.accelerator.synchronize()
        taken = max(time.perf_counter() - started, 1e-9)
        return 2.0 * size**3 / taken, taken

    size = _PEAK_SIZES[0]
    best, _ = measured(size)  # too slow: the first product starts what computes it
    deadline = time.perf_counter() + _PEAK_SECONDS
    while (left := deadline - time.perf_counter()) > 0:
        found, taken = measured(size)
        best = max(best, found)
        if 8 * taken < left:
            size = min(2 * size, _PEAK_SIZES[1])
    return best
