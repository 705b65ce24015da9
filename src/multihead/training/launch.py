"""Which of how many processes this is, as ``torchrun`` says in the environment; asked before PyTorch is imported.

What processes do together is in `training.parallel`.
"""

from __future__ import annotations

import os
from typing import NamedTuple


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


def launched() -> Launch:
    """This process's place; that of a process alone, unless ``torchrun`` started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Launch()
    return Launch(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
