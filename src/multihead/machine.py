"""Facts about the machine: threads, device, processes started by torchrun.

torch is imported only by the functions that need it: commands call `get_launch` before they import torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class Machine:
    """Facts that settings depend on."""

    threads: int
    """Number of processor threads that PyTorch uses."""
    device: str
    """cuda if available, else cpu."""
    fast_bfloat16: bool
    """Whether ``device`` has hardware for bfloat16 products."""
    name: str
    """Description for the log."""


def inspect_machine() -> Machine:
    """Inspect the machine; changes nothing."""
    import torch

    threads = torch.get_num_threads()  # the number of cores, unless the user or the caller has set it
    if torch.cuda.is_available():
        return Machine(threads, "cuda", torch.cuda.is_bf16_supported(), torch.cuda.get_device_name())
    flags = _processor_flags()
    found = sorted(flags & {"avx512_bf16", "amx_bf16"})
    name = f"{threads} processor threads" + (f" with {' and '.join(found)}" if found else "")
    return Machine(threads, "cpu", bool(found), name)


def require_device(name: str) -> None:
    """Check that a device is available.

    Raises:
        ConfigurationError: the device is CUDA, which PyTorch does not find.
    """
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(f"device: got {name}, but PyTorch finds no CUDA on this machine; use cpu")


def _processor_flags() -> set[str]:
    """The processor features that Linux lists; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())


class Launch(NamedTuple):
    """The place of a process among the processes of its run."""

    rank: int = 0
    """Number of the process, from 0; the first one writes the run folder and prints."""
    size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Number of the process on its machine; selects its GPU."""
    local_size: int = 1
    """Number of processes on its machine."""


def get_launch() -> Launch:
    """The place of this process as ``torchrun`` set it in the environment; without ``torchrun`` a single process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Launch()
    return Launch(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
