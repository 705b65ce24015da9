"""What the machine can do, as far as decisions depend on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from multihead.errors import ConfigurationError


@dataclass(frozen=True)
class Machine:
    """Facts of the machine."""

    threads: int
    """Processor threads that PyTorch computes with."""
    device: str
    """cuda where there is one, else cpu."""
    fast_bfloat16: bool
    """Whether bfloat16 products are done in hardware on ``device``."""
    name: str
    """For the log."""


def inspect_machine() -> Machine:
    """Looks at the machine; changes nothing."""
    import torch

    threads = torch.get_num_threads()  # the processor's cores, unless the user or the caller said otherwise
    if torch.cuda.is_available():
        return Machine(threads, "cuda", torch.cuda.is_bf16_supported(), torch.cuda.get_device_name())
    flags = _processor_flags()
    found = sorted(flags & {"avx512_bf16", "amx_bf16"})
    name = f"{threads} processor threads" + (f" with {' and '.join(found)}" if found else "")
    return Machine(threads, "cpu", bool(found), name)


def require_device(name: str) -> None:
    """Refuses a device that this machine, or this PyTorch, does not have.

    Raises:
        ConfigurationError: there is no CUDA here.
    """
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(f"device: got {name}, but PyTorch finds no CUDA on this machine; use cpu")


def _processor_flags() -> set[str]:
    """The features that Linux lists; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())


class Launch(NamedTuple):
    """The place of a process among those of its run."""

    rank: int = 0
    """Its number, from 0; the first one holds the folder, writes and speaks."""
    size: int = 1
    """How many there are."""
    local_rank: int = 0
    """Its number on this machine: the GPU it takes."""
    local_size: int = 1
    """How many there are on this machine."""


def get_launch() -> Launch:
    """This process's place; that of a process alone, unless ``torchrun`` started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Launch()
    return Launch(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
