"""What the machine can do, as far as decisions depend on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """Facts of the machine."""

    cores: int
    """Processor cores that this process may use."""
    device: str
    """cuda where there is one, else cpu."""
    fast_bfloat16: bool
    """Whether bfloat16 products are done in hardware on ``device``."""
    name: str
    """For the log."""


def inspect_machine() -> Machine:
    """Looks at the machine; changes nothing."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if torch.cuda.is_available():
        return Machine(cores, "cuda", torch.cuda.is_bf16_supported(), torch.cuda.get_device_name())
    flags = _processor_flags()
    found = sorted(flags & {"avx512_bf16", "amx_bf16"})
    name = f"{cores} processor cores" + (f" with {' and '.join(found)}" if found else "")
    return Machine(cores, "cpu", bool(found), name)


def _processor_flags() -> set[str]:
    """The features that Linux lists; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
